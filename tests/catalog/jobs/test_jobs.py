"""Jobs: claims, attempts, and the publication of outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.errors import (
    ExtentsUnavailableError,
    JobInputsChangedError,
    JobNotFoundError,
    JobOutputError,
    JobSupersededError,
)
from catalog.jobs import repository
from catalog.jobs.json_format import read_spec
from catalog.jobs.repository import MAX_DEATHS
from catalog.model import FileKind, JobState, PartitionId
from core.clock import ManualClock
from core.errors import InvalidInputError
from tests.catalog.scene import advance_log_start, run_of

if TYPE_CHECKING:
    from catalog.model import JobSpec
    from core.clock import Clock
    from tests.catalog.scene import Scene


def test_a_publication_replaces_inputs_by_outputs(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    for partition in (0, 1, 0, 1):
        scene.commit(topic, run_of(5), partition=partition)
    before = [*scene.extents(topic, 0), *scene.extents(topic, 1)]
    job = scene.claimed(before)
    result = scene.result(job)

    scene.catalog.jobs.complete(result)

    after = [*scene.extents(topic, 0), *scene.extents(topic, 1)]
    assert [(each.base_offset, each.last_offset, each.record_count) for each in after] == [(0, 9, 1)] * 2
    assert {each.file_kind for each in after} == {FileKind.COMPACTED}
    assert {each.file_id for each in after} == {result.files[0].file_id}
    assert [state.first_dirty_offset for state in scene.catalog.topics.partitions(topic.topic_id)] == [10, 10]
    done = scene.catalog.jobs.get(job.spec.job_id)
    assert (done.state, done.counts) == (JobState.COMPLETED, {"records_in": 10, "records_out": 1})
    dead = scene.catalog.garbage.dead_files(2**62, 10)
    assert {file.file_id for file in dead} == {extent.file_id for extent in before}


def test_completing_a_job_is_idempotent(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    result = scene.result(job)
    scene.catalog.jobs.complete(result)
    scene.catalog.jobs.complete(result)
    assert len(scene.extents(topic)) == 1


def test_a_publication_with_the_claimed_specification_does_not_read_the_job(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    result = scene.result(job)
    (file,) = result.files
    (extent,) = file.extents
    scene.catalog.jobs.release(job.spec.job_id, result.attempt_id)
    (again,) = scene.catalog.jobs.claim("another", 1)
    new = scene.result(again)

    with pytest.raises(JobSupersededError):
        scene.catalog.jobs.complete(result, job.spec)
    wrong = replace(file, extents=(replace(extent, last_offset=3),))
    with pytest.raises(JobOutputError):
        scene.catalog.jobs.complete(replace(new, files=(wrong,)), again.spec)
    with pytest.raises(JobOutputError, match="is not one of job"):
        scene.catalog.jobs.complete(new, replace(again.spec, job_id=scene.ids.new_uuid()))
    scene.catalog.jobs.complete(new, again.spec)
    scene.catalog.jobs.complete(new, again.spec)  # idempotent

    assert [each.file_kind for each in scene.extents(topic)] == [FileKind.COMPACTED]
    assert "jobs.get" not in scene.catalog.operation_counts()


def test_an_extent_is_claimed_by_one_job(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    spec = scene.submitted(scene.extents(topic))
    scene.catalog.jobs.submit(spec)  # a retry adds no second job
    with pytest.raises(ExtentsUnavailableError, match="another job has claimed"):
        scene.submitted(scene.extents(topic))
    with pytest.raises(JobNotFoundError):
        scene.catalog.jobs.get(scene.ids.new_uuid())
    assert scene.catalog.jobs.counts()[JobState.SUBMITTED] == 1


def test_a_process_does_not_read_the_jobs_that_it_has_just_submitted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = scene.topic()
    for _ in range(2):
        scene.commit(topic, run_of(5))
    specs = [scene.submitted([extent]) for extent in scene.extents(topic)]
    with monkeypatch.context() as patch:
        patch.setattr(repository, "read_spec", _read_nothing)
        jobs = scene.catalog.jobs.claim("a driver", 2)
    assert [job.spec for job in jobs] == specs
    assert [scene.catalog.jobs.get(spec.job_id).spec for spec in specs] == specs
    for job in jobs:
        assert job.attempt_id is not None
        scene.catalog.jobs.release(job.spec.job_id, job.attempt_id)
    assert [job.spec for job in scene.catalog.jobs.claim("a driver", 2)] == specs


def _read_nothing(_stored: str) -> JobSpec:
    raise AssertionError("a specification was read")


def test_a_process_remembers_a_bounded_number_of_submitted_jobs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def count(stored: str) -> JobSpec:
        read.append(stored)
        return read_spec(stored)

    monkeypatch.setattr(repository, "_MAX_SUBMITTED_SPECS", 2)
    monkeypatch.setattr(repository, "read_spec", count)
    specs = [scene.submitted([extent]) for extent in scene.extents(scene.topic_with_extents(3))]
    assert [job.spec for job in scene.catalog.jobs.claim("a driver", 3)] == specs
    assert len(read) == 1


def test_removed_extents_cannot_be_claimed(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    old = scene.extents(topic)
    scene.catalog.jobs.complete(scene.result(scene.claimed(old)))
    with pytest.raises(ExtentsUnavailableError):
        scene.submitted(old)


def test_one_attempt_owns_a_job(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    old = job.attempt_id
    assert old is not None
    scene.catalog.jobs.release(job.spec.job_id, old)
    (again,) = scene.catalog.jobs.claim("another", 1)
    new = again.attempt_id
    assert new is not None
    with pytest.raises(JobSupersededError):
        scene.catalog.jobs.heartbeat(job.spec.job_id, old)
    with pytest.raises(JobSupersededError):
        scene.catalog.jobs.complete(scene.result(job))
    with pytest.raises(JobSupersededError):
        scene.catalog.jobs.fail(job.spec.job_id, old, "no")
    scene.catalog.jobs.heartbeat(job.spec.job_id, new)
    scene.catalog.jobs.complete(scene.result(job, attempt_id=new))
    with pytest.raises(JobSupersededError):
        scene.catalog.jobs.complete(scene.result(job, attempt_id=old))


def test_an_attempt_without_heartbeats_loses_its_job(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    assert job.attempt_id is not None
    clock.advance(10)
    scene.catalog.jobs.heartbeat(job.spec.job_id, job.attempt_id)
    clock.advance(10)
    assert scene.catalog.jobs.release_expired(15_000, 5_000) == []
    assert scene.catalog.jobs.suspected() == 0
    clock.advance(6)
    assert scene.catalog.jobs.release_expired(15_000, 5_000) == []
    assert scene.catalog.jobs.suspected() == 1
    clock.advance(4)
    assert scene.catalog.jobs.release_expired(15_000, 5_000) == []
    clock.advance(1)
    assert scene.catalog.jobs.release_expired(15_000, 5_000) == [job.spec.job_id]
    assert scene.catalog.jobs.suspected() == 0
    (again,) = scene.catalog.jobs.claim("another", 5)
    assert (again.spec, again.attempts) == (job.spec, 2)
    with pytest.raises(JobSupersededError):
        scene.catalog.jobs.complete(scene.result(job))
    scene.catalog.jobs.complete(scene.result(again))


def test_a_job_that_kills_all_its_workers_fails(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    spec = scene.submitted(scene.extents(topic))
    for attempt in range(1, MAX_DEATHS + 1):
        (job,) = scene.catalog.jobs.claim("application", 5)
        assert job.attempts == attempt
        clock.advance(20)
        released = scene.catalog.jobs.release_expired(15_000, 0)
        assert released == ([spec.job_id] if attempt < MAX_DEATHS else [])
    failed = scene.catalog.jobs.get(spec.job_id)
    assert failed.state is JobState.FAILED
    assert failed.failure == "given up after 5 attempts; the last one stopped sending heartbeats"
    assert scene.catalog.jobs.release_expired(15_000, 0) == []
    scene.submitted(scene.extents(topic))  # its extents are unclaimed again


def test_a_job_of_a_newer_version_holds_up_nothing(scene: Scene, clock: Clock, catalog_url: str) -> None:
    """This version is that of agents and watchers after a return to the previous release."""
    assert isinstance(clock, ManualClock)
    jobs = scene.catalog.jobs
    topic, other = scene.topic(), scene.topic("other")
    scene.commit(topic, run_of(5))
    scene.commit(other, run_of(5))
    newer, known = scene.submitted(scene.extents(topic)), scene.submitted(scene.extents(other))
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE jobs SET spec = jsonb_set(spec::jsonb, '{version}', '99')::json, spec_version = 99"
            " WHERE job_id = %s",
            (newer.job_id,),
        )
        assert (jobs.claimable(), jobs.claimable(is_probe=True)) == (1, 1)
        assert [each.spec.job_id for each in jobs.list()] == [known.job_id]
        assert [each.spec.job_id for each in jobs.claim("application", 5)] == [known.job_id]
        assert (jobs.claimable(), jobs.claimable(is_probe=True)) == (0, 0)
        connection.execute(
            "UPDATE jobs SET state = 'running', attempt_id = job_id, heartbeat_ms = 0, deaths = %s",
            (MAX_DEATHS - 1,),
        )
    clock.advance(20)
    assert jobs.release_expired(15_000, 0) == []
    assert [jobs.state_of(each.job_id)[0] for each in (newer, known)] == [JobState.RUNNING, JobState.FAILED]
    with pytest.raises(JobNotFoundError):
        jobs.state_of(scene.ids.new_uuid())


def test_a_release_is_idempotent(scene: Scene) -> None:
    """After a lost response, another driver may have claimed the job before the retry."""
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    assert job.attempt_id is not None
    scene.catalog.jobs.release(job.spec.job_id, job.attempt_id)
    scene.catalog.jobs.release(job.spec.job_id, job.attempt_id)
    (again,) = scene.catalog.jobs.claim("another", 5)
    scene.catalog.jobs.release(job.spec.job_id, job.attempt_id)
    scene.catalog.jobs.complete(scene.result(again))


def test_all_jobs_of_a_driver_are_released_and_no_others(scene: Scene) -> None:
    topic, jobs = scene.topic(), scene.catalog.jobs
    for _ in range(3):
        scene.commit(topic, run_of(5))
    specs = [scene.submitted([extent]) for extent in scene.extents(topic)]
    jobs.claim("one", 2)
    (other,) = jobs.claim("another", 1)
    assert [jobs.release_all("one"), jobs.release_all("one")] == [2, 0]
    assert [job.spec for job in jobs.claim("a third", 3)] == specs[:2]
    jobs.complete(scene.result(other))


def test_a_released_job_keeps_its_extents(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    assert job.attempt_id is not None
    scene.catalog.jobs.release(job.spec.job_id, job.attempt_id)
    assert scene.catalog.planning.ingestion_files(10).files == []
    (again,) = scene.catalog.jobs.claim("another", 5)
    scene.catalog.jobs.complete(scene.result(again))


def test_a_failed_job_releases_its_extents(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    assert job.attempt_id is not None
    scene.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "disk full")
    scene.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "disk full")
    failed = scene.catalog.jobs.get(job.spec.job_id)
    assert (failed.state, failed.failure) == (JobState.FAILED, "disk full")
    assert scene.catalog.quarantine.list() == []  # nothing is proven against its file
    (file,) = scene.catalog.planning.ingestion_files(10).files
    assert file.extents == tuple(scene.extents(topic))
    scene.catalog.jobs.complete(scene.result(scene.claimed(scene.extents(topic))))


def test_a_running_job_can_be_cancelled(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    assert scene.catalog.jobs.cancel(job.spec.job_id, "not wanted")
    assert not scene.catalog.jobs.cancel(job.spec.job_id, "not wanted")
    with pytest.raises(JobSupersededError):
        scene.catalog.jobs.complete(scene.result(job))


def test_jobs_are_claimed_oldest_first(scene: Scene) -> None:
    topic = scene.topic(partitions=3)
    specs = []
    for partition in range(3):
        scene.commit(topic, run_of(5), partition=partition)
        specs.append(scene.submitted(scene.extents(topic, partition)))
    assert [job.spec for job in scene.catalog.jobs.claim("a", 2)] == specs[:2]
    assert [job.spec for job in scene.catalog.jobs.claim("b", 2)] == specs[2:]
    assert [job.spec for job in scene.catalog.jobs.list(limit=2)] == specs[:0:-1]
    with pytest.raises(InvalidInputError):
        scene.catalog.jobs.claim("c", 0)


def test_outputs_must_cover_inputs(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    good = scene.result(job)
    (file,) = good.files
    (extent,) = file.extents
    for wrong in (
        (),
        (replace(extent, last_offset=3),),
        (replace(extent, base_offset=1),),
        (replace(extent, record_count=6),),
        (replace(extent, partition=7),),
        (extent, replace(extent, partition=7)),
    ):
        with pytest.raises(JobOutputError):
            scene.catalog.jobs.complete(replace(good, files=(replace(file, extents=wrong),)))
    scene.catalog.jobs.complete(good)


def test_a_publication_skips_deleted_topics(scene: Scene) -> None:
    kept, deleted = scene.topic("kept"), scene.topic("deleted")
    sections = {PartitionId(topic.topic_id, 0): [run_of(5)] for topic in (kept, deleted)}
    scene.catalog.commits.commit(scene.file(sections))
    job = scene.claimed([*scene.extents(kept), *scene.extents(deleted)])
    scene.catalog.topics.delete("deleted")
    assert scene.catalog.garbage.dead_files(2**62, 10) == []
    scene.catalog.jobs.complete(scene.result(job))
    assert len(scene.extents(kept)) == 1
    assert scene.extents(deleted) == []
    scene.remove_deleted_topics()
    assert [file.kind for file in scene.catalog.garbage.dead_files(2**62, 10)] == [FileKind.INGESTION]


def test_a_publication_accepts_that_retention_removed_inputs(scene: Scene) -> None:
    topic = scene.topic()
    for _ in range(3):
        scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    assert advance_log_start(scene.catalog.retention, topic.topic_id, 0, 7) == 7
    assert scene.catalog.retention.remove_expired(topic.topic_id, 0) == 1
    assert scene.catalog.garbage.dead_files(2**62, 10) == []  # the job still reads it
    scene.catalog.jobs.complete(scene.result(job))
    assert [(each.base_offset, each.last_offset) for each in scene.extents(topic, 0, 7)] == [(0, 14)]
    assert len(scene.catalog.garbage.dead_files(2**62, 10)) == 3


def test_outputs_below_the_log_start_are_garbage(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    scene.commit(topic, run_of(5))
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, 5)
    scene.catalog.retention.remove_expired(topic.topic_id, 0)
    scene.catalog.jobs.complete(scene.result(job))
    assert [each.base_offset for each in scene.extents(topic)] == [5]
    assert len(scene.catalog.garbage.dead_files(2**62, 10)) == 2


def test_a_publication_is_rejected_when_an_input_is_missing(scene: Scene, catalog_url: str) -> None:
    scene.claims_files = False
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.extents SET job_id = NULL")
    with pytest.raises(JobInputsChangedError):
        scene.catalog.jobs.complete(scene.result(job))
    assert len(scene.extents(topic)) == 1


def test_only_a_job_from_the_log_start_makes_a_partition_clean(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    scene.catalog.jobs.complete(scene.result(scene.claimed(scene.extents(topic), reaches_log_start=False)))
    (size,) = scene.catalog.planning.partition_sizes()
    assert (size.state.first_dirty_offset, size.live_bytes, size.dirty_bytes) == (0, 40, 40)
    assert (size.ingestion_extents, size.compacted_extents) == (0, 1)
    scene.commit(topic, run_of(5))
    extents = scene.extents(topic)
    scene.catalog.jobs.complete(scene.result(scene.claimed(extents)))
    (size,) = scene.catalog.planning.partition_sizes()
    assert (size.state.first_dirty_offset, size.live_bytes, size.dirty_bytes) == (10, 40, 0)
    assert size.dirty_since_ms is None
