"""Publication of jobs: the order of locks, exactness, and totals of partitions."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.errors import JobInputsChangedError
from catalog.model import Exactness, FileKind, JobState, PartitionId
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import advance_log_start, run_of, with_keys

if TYPE_CHECKING:
    from core.clock import ManualClock
    from tests.catalog.scene import Scene

_WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def _wait_for_a_blocked_connection(url: str) -> None:
    deadline = time.monotonic() + 240
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(_WAITING.encode()).fetchone() == (0,):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_publication_locks_extents_before_files(scene: Scene, catalog_url: str) -> None:
    """The removal of a deleted topic's extents uses the same order, so the two cannot deadlock."""
    scene.claims_files = False
    kept, deleted = scene.topic("kept"), scene.topic("deleted")
    sections = {PartitionId(topic.topic_id, 0): [run_of(5)] for topic in (kept, deleted)}
    scene.catalog.commits.commit(scene.file(sections))
    job = scene.claimed([*scene.extents(kept), *scene.extents(deleted)])
    scene.catalog.topics.delete("deleted")

    with ThreadPoolExecutor(1) as pool, psycopg.connect(catalog_url) as remover:
        remover.execute("SELECT FROM siltstone.extents WHERE topic_id = %s FOR UPDATE", (deleted.topic_id,))
        done = pool.submit(scene.catalog.jobs.complete, scene.result(job))
        _wait_for_a_blocked_connection(catalog_url)
        remover.execute("SELECT FROM siltstone.files FOR UPDATE NOWAIT")
        remover.rollback()
        done.result(timeout=240)

    assert scene.catalog.operation_counts()["jobs.complete"].retries == 0
    while scene.catalog.garbage.remove_deleted():
        pass
    assert scene.catalog.jobs.get(job.spec.job_id).state is JobState.COMPLETED
    assert InvariantChecker(scene.catalog).violations() == []


@pytest.mark.parametrize(
    ("exact", "unique", "records", "keep", "expected"),
    [
        (False, True, 10, 9, Exactness.EXACT),
        (False, False, 10, 9, Exactness.DEDUP_INCOMPLETE),
        (False, False, 10, 10, Exactness.DEDUP_INCOMPLETE),  # the job was not an exact one
        (True, True, 10, 10, Exactness.EXACT),
        (True, False, 10, 9, Exactness.DEDUP_INCOMPLETE),  # it dropped a tenth of the records
        (True, False, 10, 10, Exactness.DEDUP_IMPOSSIBLE),
        (True, False, 11, 10, Exactness.DEDUP_IMPOSSIBLE),  # it dropped one of 11
    ],
)
def test_a_publication_records_whether_keys_may_be_duplicated(
    scene: Scene, *, exact: bool, unique: bool, records: int, keep: int, expected: Exactness
) -> None:
    """It depends on the outputs, on the kind of the job, and on the share of dropped records."""
    topic = scene.topic(cleanup_policy="compact")
    scene.commit(topic, run_of(records))
    job = scene.claimed(scene.extents(topic), exact=exact)
    scene.catalog.jobs.complete(with_keys(scene.result(job, keep=keep), unique=unique))
    (size,) = scene.catalog.planning.partition_sizes()
    assert size.exactness is expected
    assert size.state.first_dirty_offset == records
    assert InvariantChecker(scene.catalog).violations() == []


def test_an_exact_job_over_a_part_leaves_deduplication_incomplete(scene: Scene) -> None:
    """Only an exact job from the log start to the end of the inexact one makes the partition exact."""
    topic = scene.topic(cleanup_policy="compact")
    for _ in range(2):
        scene.commit(topic, run_of(10))
    job = scene.claimed(scene.extents(topic))
    result = with_keys(scene.result(job), unique=False)
    (file,) = result.files
    (whole,) = file.extents
    halves = (
        replace(whole, last_offset=9, length=20, index_position=20),
        replace(whole, base_offset=10, position=20, length=20),
    )
    scene.catalog.jobs.complete(replace(result, files=(replace(file, extents=halves),)))
    states: list[Exactness] = []
    for extents, reaches in (
        (scene.extents(topic)[:1], True),
        (scene.extents(topic)[1:], False),
        (None, True),
    ):
        job = scene.claimed(extents or scene.extents(topic), reaches_log_start=reaches, exact=reaches)
        scene.catalog.jobs.complete(scene.result(job, keep=0))
        (size,) = scene.catalog.planning.partition_sizes()
        states.append(size.exactness)
    assert states == [Exactness.DEDUP_INCOMPLETE, Exactness.DEDUP_INCOMPLETE, Exactness.EXACT]


def test_an_extent_that_the_clean_part_covers_is_no_longer_dirty(scene: Scene) -> None:
    """An expired extent that is not removed yet leaves the dirty total when the clean part covers it."""
    topic = scene.topic(cleanup_policy="compact")
    for _ in range(3):
        scene.commit(topic, run_of(10))
    checker = InvariantChecker(scene.catalog)
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, 10)
    job = scene.claimed([extent for extent in scene.extents(topic) if extent.base_offset == 10])
    scene.catalog.jobs.complete(scene.result(job))
    assert checker.violations() == []
    (size,) = scene.catalog.planning.partition_sizes()
    assert size.dirty_bytes == 100
    scene.catalog.retention.remove_expired(topic.topic_id, 0)
    assert checker.violations() == []


def test_an_output_becomes_an_extent_with_the_same_fields(scene: Scene) -> None:
    topic = scene.topic_with_extents(2)
    result = scene.result(scene.claimed(scene.extents(topic)), keep=3)
    (file,) = result.files
    (output,) = file.extents
    output = replace(
        output, min_timestamp=5, max_timestamp=900, position=3, index_position=43, index_length=7
    )
    scene.catalog.jobs.complete(replace(result, files=(replace(file, extents=(output,)),)))
    (extent,) = scene.extents(topic)
    for each in fields(output):
        assert getattr(extent, each.name) == getattr(output, each.name)
    assert (extent.file_id, extent.file_kind, extent.offset_shift) == (file.file_id, FileKind.COMPACTED, 0)


@pytest.mark.parametrize("start", [5, 6, 9])
def test_an_output_that_straddles_the_log_start_is_published(scene: Scene, start: int) -> None:
    """Its records from the log start on are the only copy once the inputs are removed."""
    topic = scene.topic()
    for _ in range(2):
        scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, start)
    scene.catalog.jobs.complete(scene.result(job, keep=10))
    assert [(each.base_offset, each.last_offset) for each in scene.extents(topic, 0, start)] == [(0, 9)]
    assert InvariantChecker(scene.catalog).violations() == []


@pytest.mark.parametrize(("start", "is_missed"), [(5, True), (6, True), (9, True), (10, False)])
def test_a_missing_input_that_straddles_the_log_start_fails_the_publication(
    scene: Scene, catalog_url: str, start: int, *, is_missed: bool
) -> None:
    """Only an input that is wholly below the log start may be gone: retention removed it."""
    scene.claims_files = False
    topic = scene.topic()
    for _ in range(3):
        scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, start)
    scene.catalog.retention.remove_expired(topic.topic_id, 0)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.extents SET job_id = NULL WHERE base_offset = 5")
    if is_missed:
        with pytest.raises(JobInputsChangedError, match="offset 5 "):
            scene.catalog.jobs.complete(scene.result(job))
        assert [extent.base_offset for extent in scene.extents(topic, 0, start)] == [5, 10]
    else:
        scene.catalog.jobs.complete(scene.result(job))
        assert InvariantChecker(scene.catalog).violations() == []


def test_outputs_have_the_dirtiness_and_the_commit_time_of_their_inputs(
    scene: Scene, clock: ManualClock
) -> None:
    """A job that cleans nothing copies a clean record, the first dirty one, and another one."""
    topic = scene.topic(cleanup_policy="compact")
    for _ in range(3):
        scene.commit(topic, run_of(1))
        clock.advance(1)
    before = scene.extents(topic)
    scene.catalog.jobs.complete(scene.result(scene.claimed(before[:1])))
    job = scene.claimed(scene.extents(topic), reaches_log_start=False)
    result = scene.result(job)
    (file,) = result.files
    (whole,) = file.extents
    extents = tuple(
        replace(whole, base_offset=each, last_offset=each, position=15 * each, length=10, index_length=5)
        for each in range(3)
    )
    scene.catalog.jobs.complete(replace(result, files=(replace(file, extents=extents),)))
    assert InvariantChecker(scene.catalog).violations() == []
    (size,) = scene.catalog.planning.partition_sizes()
    assert (size.live_bytes, size.dirty_bytes) == (30, 20)
    after = scene.extents(topic)
    assert [extent.committed_ms for extent in after] == [extent.committed_ms for extent in before]


def test_a_plan_of_a_history_that_lost_older_records_is_not_published(scene: Scene) -> None:
    """A failover has lost the new log start. Tombstones were dropped of keys that have records again."""
    topic = scene.topic(cleanup_policy="compact")
    for _ in range(2):
        scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic)[1:], reaches_log_start=True)
    with pytest.raises(JobInputsChangedError, match="records from offset 0 on"):
        scene.catalog.jobs.complete(scene.result(job))
    assert len(scene.extents(topic)) == 2


def test_a_missing_input_is_found_behind_partitions_of_deleted_topics(scene: Scene, catalog_url: str) -> None:
    scene.claims_files = False
    deleted, kept = scene.topic("deleted"), scene.topic("kept")
    for topic in (deleted, kept):
        scene.commit(topic, run_of(5))
    job = scene.claimed([*scene.extents(deleted), *scene.extents(kept)])
    scene.catalog.topics.delete("deleted")
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.extents SET job_id = NULL")
    with pytest.raises(JobInputsChangedError, match="topic t, partition 0 at offset 0 "):
        scene.catalog.jobs.complete(scene.result(job))


def test_outputs_behind_one_below_the_log_start_are_published(scene: Scene) -> None:
    topic = scene.topic()
    for _ in range(2):
        scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, 5)
    result = scene.result(job, keep=5)
    (file,) = result.files
    (whole,) = file.extents
    halves = (
        replace(whole, last_offset=4, length=20, index_position=20),
        replace(whole, base_offset=5, position=20, length=20),
    )
    scene.catalog.jobs.complete(replace(result, files=(replace(file, extents=halves),)))
    assert [extent.base_offset for extent in scene.extents(topic, 0, 5)] == [5]
    assert InvariantChecker(scene.catalog).violations() == []
