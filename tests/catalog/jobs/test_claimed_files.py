"""Jobs that claim whole files: the same rules as for claims of extents, with one row for each file."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.errors import ExtentsUnavailableError, JobInputsChangedError
from catalog.invariants import file_counts_agree
from catalog.jobs import claims
from catalog.model import PartitionId
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import advance_log_start, run_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from catalog.model import Extent, Job, Topic
    from tests.catalog.scene import Scene

_PARTITIONS = 3
_WAITING = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def topic(scene: Scene) -> Topic:
    """Return a topic whose partitions all have one extent, in one file."""
    topic = scene.topic(partitions=_PARTITIONS)
    _commit_wide(scene, topic)
    return topic


def _commit_wide(scene: Scene, topic: Topic) -> None:
    sections = {PartitionId(topic.topic_id, partition): [run_of(5)] for partition in range(_PARTITIONS)}
    scene.catalog.commits.commit(scene.file(sections))


def _all(scene: Scene, topic: Topic) -> list[Extent]:
    return [extent for partition in range(_PARTITIONS) for extent in scene.extents(topic, partition)]


def _claims(scene: Scene, topic: Topic) -> set[UUID | None]:
    keys = [(PartitionId(topic.topic_id, partition), 0) for partition in range(_PARTITIONS)]
    return {extent.claimed_by for extent in scene.catalog.planning.extents_of_each(keys, 10)}


def _backlog(scene: Scene) -> tuple[int, int]:
    backlog = scene.catalog.planning.backlog()
    return backlog.ingestion_files, backlog.ingestion_extents


def test_a_claimed_file_has_its_job_and_no_extent_does(scene: Scene, topic: Topic, catalog_url: str) -> None:
    spec = scene.submitted(_all(scene, topic))

    assert [each.is_whole for each in spec.inputs] == [True]
    assert _claims(scene, topic) == {spec.job_id}
    with psycopg.connect(catalog_url) as connection:
        assert connection.execute("SELECT count(job_id) FROM siltstone.extents").fetchone() == (0,)
    planning = scene.catalog.planning
    assert planning.ingestion_files(10).files == []
    assert {each.claimed_by for each in planning.extents_of_files([spec.inputs[0].file_id])} == {spec.job_id}
    assert _backlog(scene) == (0, 0)
    assert InvariantChecker(scene.catalog).violations() == []


def test_the_claimed_extents_of_a_compacted_file_name_the_job(scene: Scene, topic: Topic) -> None:
    scene.catalog.jobs.complete(scene.result(scene.claimed(_all(scene, topic))))
    spec = scene.submitted(_all(scene, topic))
    keys = [PartitionId(topic.topic_id, partition) for partition in range(_PARTITIONS)]
    found = scene.catalog.planning.newest_compacted_extents(keys, 1)
    assert [each.claimed_by for each in found] == [spec.job_id] * _PARTITIONS
    merge = scene.catalog.planning.files_to_merge(
        below_bytes=10**9, dead_bytes=1, dead_share=0.5, limit=10, max_extents=100
    )
    assert merge.files == []


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_no_extent_is_claimed_twice(scene: Scene, topic: Topic, first: bool, second: bool) -> None:
    """Neither as part of a file nor by itself."""
    extents = _all(scene, topic)
    scene.submitted(extents if first else extents[:1])
    scene.claims_files = second
    with pytest.raises(ExtentsUnavailableError, match="another job has claimed"):
        scene.submitted(extents)
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_claim_of_a_file_beside_a_claim_of_another_extent_of_it_is_refused(
    scene: Scene, topic: Topic
) -> None:
    """The extents are disjoint, but the file has more than the job read."""
    extents = _all(scene, topic)
    rest = scene.spec(extents[1:])
    scene.submitted(extents[:1])
    whole = replace(rest, inputs=tuple(replace(file, is_whole=True) for file in rest.inputs))
    with pytest.raises(ExtentsUnavailableError, match=whole.inputs[0].object_name):
        scene.catalog.jobs.submit(whole)
    scene.catalog.jobs.submit(rest)
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_file_that_lost_an_extent_since_it_was_planned_is_not_claimed(scene: Scene, topic: Topic) -> None:
    spec = scene.spec(_all(scene, topic))
    _expire(scene, topic)
    with pytest.raises(ExtentsUnavailableError, match=spec.inputs[0].object_name):
        scene.catalog.jobs.submit(spec)
    assert _backlog(scene) == (1, _PARTITIONS - 1)


def _expire(scene: Scene, topic: Topic, partition: int = 0) -> None:
    advance_log_start(scene.catalog.retention, topic.topic_id, partition, 5)
    scene.catalog.retention.remove_expired(topic.topic_id, partition)


def test_one_job_may_claim_a_file_and_extents_of_another(scene: Scene, topic: Topic) -> None:
    _commit_wide(scene, topic)
    first, *_ = extents = _all(scene, topic)
    newest = max(extents, key=lambda each: (each.partition, each.base_offset))
    left_out = [each for each in extents if each != newest]
    job = scene.claimed(left_out)
    assert {file.file_id: file.is_whole for file in job.spec.inputs} == {
        first.file_id: True,
        newest.file_id: False,
    }
    assert _backlog(scene) == (1, 1)
    assert InvariantChecker(scene.catalog).violations() == []

    scene.catalog.jobs.complete(scene.result(job))

    assert _backlog(scene) == (1, 1)
    assert _claims(scene, topic) == {None}
    assert InvariantChecker(scene.catalog).violations() == []


def _fail(scene: Scene, job: Job) -> None:
    assert job.attempt_id is not None
    scene.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "a test")


def _cancel(scene: Scene, job: Job) -> None:
    scene.catalog.jobs.cancel(job.spec.job_id, "a test")


@pytest.mark.parametrize("end", [_fail, _cancel])
def test_the_file_of_a_job_that_ends_without_a_result_is_free(
    scene: Scene, topic: Topic, end: Callable[[Scene, Job], None]
) -> None:
    job = scene.claimed(_all(scene, topic))
    end(scene, job)
    assert _claims(scene, topic) == {None}
    assert _backlog(scene) == (1, _PARTITIONS)
    assert InvariantChecker(scene.catalog).violations() == []
    scene.submitted(_all(scene, topic))


def test_a_job_that_is_released_keeps_its_files(scene: Scene, topic: Topic) -> None:
    job = scene.claimed(_all(scene, topic))
    assert job.attempt_id is not None
    scene.catalog.jobs.release(job.spec.job_id, job.attempt_id)
    assert _claims(scene, topic) == {job.spec.job_id}


def test_extents_of_a_claimed_file_may_expire(scene: Scene, topic: Topic) -> None:
    job = scene.claimed(_all(scene, topic))
    _expire(scene, topic)
    assert InvariantChecker(scene.catalog).violations() == []

    scene.catalog.jobs.complete(scene.result(job))

    assert scene.extents(topic, 0) == []
    assert [each.file_id for each in scene.extents(topic, 1)] != [job.spec.inputs[0].file_id]
    dead = scene.catalog.garbage.dead_files(2**62, 10)
    assert job.spec.inputs[0].file_id in {file.file_id for file in dead}
    assert InvariantChecker(scene.catalog).violations() == []


def test_all_extents_of_a_claimed_file_may_expire(scene: Scene, topic: Topic) -> None:
    """The file stays until its job ends, because the job reads it."""
    job = scene.claimed(_all(scene, topic))
    for partition in range(_PARTITIONS):
        _expire(scene, topic, partition)
    assert scene.catalog.garbage.dead_files(2**62, 10) == []
    _fail(scene, job)
    assert [each.file_id for each in scene.catalog.garbage.dead_files(2**62, 10)] == [
        job.spec.inputs[0].file_id
    ]
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_process_of_the_previous_release_may_remove_extents_of_a_claimed_file(
    scene: Scene, topic: Topic, catalog_url: str
) -> None:
    """It does not subtract them from the claims, because no extent names a job."""
    job = scene.claimed(_all(scene, topic))
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, 5)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("SET search_path TO siltstone")
        connection.execute("DELETE FROM extents WHERE partition = 0")
        connection.execute("UPDATE files SET live_extents = live_extents - 1, live_bytes = live_bytes - 100")
        connection.execute(
            "UPDATE partitions SET live_bytes = 0, dirty_bytes = 0, dirty_since_ms = NULL,"
            " ingestion_extents = 0 WHERE partition = 0"
        )
    assert scene.catalog.planning.ingestion_files(10).files == []

    _fail(scene, job)

    assert _backlog(scene) == (1, _PARTITIONS - 1)
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_partition_that_is_left_out_keeps_its_extents_and_loses_the_claim(scene: Scene) -> None:
    """Its topic is no longer compacted."""
    topic, other = scene.topic("t"), scene.topic("other")
    keys = [PartitionId(each.topic_id, 0) for each in (topic, other)]
    scene.catalog.commits.commit(scene.file({key: [run_of(5)] for key in keys}))
    job = scene.claimed([*scene.extents(topic), *scene.extents(other)])
    scene.catalog.topics.alter_config("other", {"cleanup.policy": "delete"})

    scene.catalog.jobs.complete(scene.result(job))

    (kept,) = scene.extents(other)
    assert kept.file_id == job.spec.inputs[0].file_id
    assert _backlog(scene) == (1, 1)
    assert InvariantChecker(scene.catalog).violations() == []
    scene.submitted([kept])


def test_a_restore_releases_claimed_files(scene: Scene, topic: Topic) -> None:
    scene.submitted(_all(scene, topic))
    scene.catalog.incarnations.declare_restore("the operator says so")
    assert _claims(scene, topic) == {None}
    assert _backlog(scene) == (1, _PARTITIONS)
    assert InvariantChecker(scene.catalog).violations() == []


def test_the_claim_of_a_job_that_is_not_open_is_found_and_repaired(
    scene: Scene, topic: Topic, catalog_url: str
) -> None:
    spec = scene.submitted(_all(scene, topic))
    (file,) = spec.inputs
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.jobs SET state = 'failed', finished_ms = 1")
    (counts,) = scene.catalog.repair.wrong_file_counts()
    assert (counts.file_id, counts.stale_claims) == (file.file_id, _PARTITIONS)
    assert len(file_counts_agree(counts)) == 1

    scene.catalog.repair.recount_file(file.file_id)

    assert list(scene.catalog.repair.wrong_file_counts()) == []
    assert _backlog(scene) == (1, _PARTITIONS)


@pytest.mark.parametrize("whole_first", [True, False])
def test_one_of_two_concurrent_claims_of_a_file_and_of_its_extent_is_refused(
    scene: Scene, topic: Topic, catalog_url: str, whole_first: bool
) -> None:
    """Both have read the file without a claim, and wait for its lock."""
    extents = _all(scene, topic)
    specs = [scene.spec(extents), scene.spec(extents[:1])]
    with (
        psycopg.connect(catalog_url) as holder,
        psycopg.connect(catalog_url, autocommit=True) as watcher,
        ThreadPoolExecutor(2) as pool,
    ):
        holder.execute("SELECT FROM siltstone.files FOR UPDATE")
        submitted = []
        for number, spec in enumerate(specs if whole_first else reversed(specs), 1):
            submitted.append(pool.submit(scene.catalog.jobs.submit, spec))
            while watcher.execute(_WAITING).rowcount < number:
                time.sleep(0.01)
        holder.commit()
        errors = [each.exception(timeout=240) for each in submitted]
    assert errors[0] is None
    assert isinstance(errors[1], ExtentsUnavailableError)
    assert InvariantChecker(scene.catalog).violations() == []


@pytest.mark.parametrize("old_job_fails", [True, False])
def test_a_planner_of_the_previous_release_may_claim_an_extent_of_a_claimed_file(
    scene: Scene, topic: Topic, monkeypatch: pytest.MonkeyPatch, old_job_fails: bool
) -> None:
    """It does not see the claim. The new job fails, the old one continues, and the counts are right again."""
    job = scene.claimed(_all(scene, topic))
    with monkeypatch.context() as patch:
        for name in ("lock_inputs", "add_claims"):
            query = claims._SQL[name]
            patch.setitem(
                claims._SQL, name, replace(query, sql=query.sql.replace(b" AND f.job_id IS NULL", b""))
            )
        scene.claims_files = False
        old = scene.claimed(scene.extents(topic, 0))

    with pytest.raises(JobInputsChangedError, match="offset 0 is no longer the job's"):
        scene.catalog.jobs.complete(scene.result(job))
    _fail(scene, job)
    assert _backlog(scene) == (1, _PARTITIONS - 1)
    assert InvariantChecker(scene.catalog).violations() == []

    if old_job_fails:
        _fail(scene, old)
    else:
        scene.catalog.jobs.complete(scene.result(old))
    assert _claims(scene, topic) == {None}
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_repair_takes_no_file_from_an_open_job(scene: Scene, topic: Topic) -> None:
    spec = scene.submitted(_all(scene, topic))
    scene.catalog.repair.recount_file(spec.inputs[0].file_id)
    assert _claims(scene, topic) == {spec.job_id}
    assert _backlog(scene) == (0, 0)
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_topic_that_is_deleted_after_the_plan_is_left_out(scene: Scene) -> None:
    kept, deleted = scene.topic("kept"), scene.topic("deleted")
    keys = [PartitionId(each.topic_id, 0) for each in (kept, deleted)]
    scene.catalog.commits.commit(scene.file({key: [run_of(5)] for key in keys}))
    spec = scene.spec([*scene.extents(kept), *scene.extents(deleted)])
    scene.catalog.topics.delete("deleted")
    scene.catalog.jobs.submit(spec)
    (job,) = scene.catalog.jobs.claim("a driver", 1)

    scene.catalog.jobs.complete(scene.result(job))

    assert [each.file_id for each in scene.extents(kept)] != [spec.inputs[0].file_id]
    scene.remove_deleted_topics()
    dead = scene.catalog.garbage.dead_files(2**62, 10)
    assert spec.inputs[0].file_id in {file.file_id for file in dead}
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_publication_without_its_claim_is_rejected(scene: Scene, topic: Topic, catalog_url: str) -> None:
    job = scene.claimed(_all(scene, topic))
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.files SET job_id = NULL, claimed_extents = 0")
    with pytest.raises(JobInputsChangedError, match="is no longer the job's"):
        scene.catalog.jobs.complete(scene.result(job))
    assert len(_all(scene, topic)) == _PARTITIONS


def test_an_extent_that_the_job_did_not_plan_is_never_removed(
    scene: Scene, topic: Topic, catalog_url: str
) -> None:
    """Its records would be lost. Only damage to the catalog can bring this about."""
    *planned, left_out = _all(scene, topic)
    job = scene.claimed(planned)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.extents SET job_id = NULL")
        connection.execute("UPDATE siltstone.files SET job_id = %s", [job.spec.job_id])

    with pytest.raises(JobInputsChangedError, match="partition 2 at offset 0 was not planned"):
        scene.catalog.jobs.complete(scene.result(job))

    assert scene.extents(topic, 2) == [left_out]
