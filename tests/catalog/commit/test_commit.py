"""Commits: appended and rejected runs, and retries after a lost response."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.errors import CommitResultExpiredError, InvalidCommitError, SessionFencedError
from catalog.lifecycle.expiry import COMMIT_RESULT_RETENTION_MS
from catalog.model import PartitionId, RunRefusal
from catalog.open import open_catalog
from core.clock import ManualClock
from tests.catalog.database.wire import WireProxy
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from pathlib import Path

    from core.clock import Clock
    from core.ids import Ids


def test_offsets_continue_at_the_log_end(scene: Scene) -> None:
    topic = scene.topic()
    first = scene.commit(topic, run_of(3))
    second = scene.commit(topic, run_of(2), run_of(4))
    assert [run.base_offset for run in (*first.runs, *second.runs)] == [0, 3, 5]
    assert (second.log_start_offset, second.high_watermark) == (0, 9)
    assert [(each.base_offset, each.last_offset) for each in scene.extents(topic)] == [(0, 2), (3, 8)]


def test_results_are_in_the_order_of_the_sections(scene: Scene) -> None:
    topic = scene.topic(partitions=4)
    commit = scene.file({PartitionId(topic.topic_id, partition): [run_of(1)] for partition in range(4)})
    shuffled = replace(commit, sections=tuple(reversed(commit.sections)))
    results = scene.catalog.commits.commit(shuffled)
    assert [result.partition for result in results] == [3, 2, 1, 0]


def test_a_rejected_run_belongs_to_no_extent(scene: Scene) -> None:
    topic = scene.topic()
    commit = scene.file(
        {
            PartitionId(topic.topic_id, 0): [
                run_of(2),
                run_of(3, producer=(1, 0, 0)),
                run_of(4, producer=(1, 0, 99)),
                run_of(5),
            ]
        }
    )
    (result,) = scene.catalog.commits.commit(commit, with_extents=True)
    assert [run.base_offset for run in result.runs] == [0, 2, -1, 5]
    assert result.runs[2].refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert [(e.base_offset, e.last_offset, e.offset_shift) for e in result.extents] == [(0, 4, 0), (5, 9, -4)]
    assert list(result.extents) == scene.extents(topic)


def test_duplicates_return_their_first_offsets(scene: Scene) -> None:
    topic = scene.topic()
    offsets = [scene.commit(topic, run_of(2, producer=(1, 0, 2 * n))).runs[0].base_offset for n in range(6)]
    for number in range(1, 6):
        (again,) = scene.commit(topic, run_of(2, producer=(1, 0, 2 * number))).runs
        assert (again.base_offset, again.duplicate) == (offsets[number], True)
    (expired,) = scene.commit(topic, run_of(2, producer=(1, 0, 0))).runs
    assert expired.refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert len(scene.extents(topic)) == 6


def test_sequence_numbers_wrap_around(scene: Scene) -> None:
    topic = scene.topic()
    top = 2**31 - 1
    scene.commit(topic, run_of(top, producer=(1, 0, 0)))
    (across,) = scene.commit(topic, run_of(4, producer=(1, 0, top))).runs
    assert (across.base_offset, across.refusal) == (top, None)
    (after,) = scene.commit(topic, run_of(1, producer=(1, 0, 3))).runs
    assert (after.base_offset, after.refusal) == (top + 4, None)
    (again,) = scene.commit(topic, run_of(4, producer=(1, 0, top))).runs
    assert (again.base_offset, again.duplicate) == (top, True)


def test_a_producer_continues_its_sequence_in_a_recreated_topic(scene: Scene) -> None:
    """Kafka's clients continue to count. A producer that is newer than the deletion must begin with 0."""
    catalog, topic = scene.catalog, scene.topic()
    before = catalog.producers.new_id()
    assert scene.commit(topic, run_of(5, producer=(before, 0, 0))).runs[0].refusal is None
    catalog.topics.delete(topic.name)
    again = catalog.topics.create(topic.name, 1)
    grown = catalog.topics.add_partitions(topic.name, 2)
    since = catalog.producers.new_id()
    for partition in (0, 1):
        for producer, refusal in ((before, None), (since, RunRefusal.OUT_OF_ORDER_SEQUENCE)):
            result = scene.commit(grown, run_of(1, producer=(producer, 0, 5)), partition=partition)
            assert result.runs[0].refusal is refusal
    assert again.topic_id == grown.topic_id
    other = catalog.topics.create("other", 1)
    result = scene.commit(other, run_of(1, producer=(before, 0, 5)))
    assert result.runs[0].refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE


def test_a_producer_after_a_permanent_refusal_continues_with_any_sequence(scene: Scene) -> None:
    catalog, topic = scene.catalog, scene.topic(partitions=2)
    known, accepted, other = (catalog.producers.new_id() for _ in range(3))
    scene.commit(topic, run_of(1, producer=(known, 0, 0)))
    catalog.producers.accept_any_sequence(
        [(topic.topic_id, 0, each) for each in (known, accepted, 2**63 - 1)]
    )
    catalog.producers.accept_any_sequence([(topic.topic_id, 7, accepted)])
    catalog.producers.accept_any_sequence([])

    def begin(producer: int, partition: int = 0) -> RunRefusal | None:
        return scene.commit(topic, run_of(1, producer=(producer, 0, 5)), partition=partition).runs[0].refusal

    wrong = RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert [begin(known), begin(other), begin(accepted, partition=1), begin(accepted)] == [wrong] * 3 + [None]


def test_records_of_deleted_topics_expire(scene: Scene, clock: ManualClock) -> None:
    topic = scene.topic()
    scene.catalog.topics.delete(topic.name)
    clock.advance(90 * 86_400)
    assert scene.catalog.expiry.expire_deleted_topics() == 0
    clock.advance(1)
    assert scene.catalog.expiry.expire_deleted_topics() == 1
    assert scene.catalog.expiry.expire_deleted_topics() == 0


def test_each_section_of_several_runs_knows_its_own_producers(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    for number in range(3):
        sections = {
            PartitionId(topic.topic_id, partition): [
                run_of(count, producer=(partition, 0, count * number)),
                run_of(1),
            ]
            for partition, count in ((0, 1), (1, 2))
        }
        for result in scene.catalog.commits.commit(scene.file(sections)):
            assert [run.refusal for run in result.runs] == [None, None]


def test_a_newer_producer_epoch_fences_the_older_one(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(1, producer=(1, 0, 0)))
    scene.commit(topic, run_of(1, producer=(1, 1, 0)))
    (old,) = scene.commit(topic, run_of(1, producer=(1, 0, 1))).runs
    assert old.refusal is RunRefusal.INVALID_PRODUCER_EPOCH


def test_live_topics_are_committed_although_others_were_deleted(scene: Scene) -> None:
    kept, deleted = scene.topic("kept"), scene.topic("deleted")
    commit = scene.file({PartitionId(topic.topic_id, 0): [run_of(2)] for topic in (kept, deleted)})
    scene.catalog.topics.delete("deleted")
    results = {result.topic_id: result for result in scene.catalog.commits.commit(commit)}
    assert results[kept.topic_id].runs[0].base_offset == 0
    gone = results[deleted.topic_id]
    assert (gone.log_start_offset, gone.high_watermark, gone.leader_epoch) == (-1, -1, -1)
    (refused,) = gone.runs
    assert refused.refusal is RunRefusal.UNKNOWN_TOPIC_OR_PARTITION
    assert len(scene.extents(kept)) == 1


def test_a_file_without_appended_runs_is_garbage_at_once(scene: Scene) -> None:
    topic = scene.topic()
    commit = scene.file({PartitionId(topic.topic_id, 5): [run_of(2)]})
    first = scene.catalog.commits.commit(commit)
    (dead,) = scene.catalog.garbage.dead_files(2**62, 10)
    assert dead.file_id == commit.file_id
    assert scene.catalog.garbage.delete_rows([commit.file_id]) == 1
    assert scene.catalog.commits.commit(commit) == first


def test_a_commit_is_rejected_when_the_session_is_not_active(scene: Scene) -> None:
    topic = scene.topic()
    sections = {PartitionId(topic.topic_id, 0): [run_of(2)]}
    before, after = scene.file(sections), scene.file(sections)
    unknown = replace(scene.file(sections), session_id=scene.ids.new_uuid())
    result = scene.catalog.commits.commit(before)
    scene.catalog.sessions.fence(scene.session_id)
    for refused in (after, unknown):
        with pytest.raises(SessionFencedError):
            scene.catalog.commits.commit(refused)
    assert scene.catalog.commits.commit(before) == result, "a retry of an earlier commit still succeeds"
    assert len(scene.extents(topic)) == 1


def test_commit_results_are_stored_for_their_retention(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    topic = scene.topic()
    old = scene.file({PartitionId(topic.topic_id, 0): [run_of(2)]})
    result = scene.catalog.commits.commit(old)
    clock.advance(COMMIT_RESULT_RETENTION_MS / 1000 + 1)
    assert scene.catalog.commits.commit(old) == result
    scene.commit(topic, run_of(1))  # a commit deletes a few expired results
    with pytest.raises(CommitResultExpiredError):
        scene.catalog.commits.commit(old)


def test_a_retry_of_an_earlier_commit_is_not_taken_for_the_last_commit(scene: Scene) -> None:
    """Its result expires earlier. A catalog that does not know it any more has lost nothing."""
    topic = scene.topic()
    first, last = (scene.file({PartitionId(topic.topic_id, 0): [run_of(1)]}) for _ in range(2))
    for commit in (first, last, first):
        scene.catalog.commits.commit(commit)
    assert scene.catalog.incarnations.evidence.last_commit == last.file_id


def test_a_stored_result_does_not_exclude_transactions(scene: Scene) -> None:
    """It does not tell whether the partition has some, and readers of committed records rely on that."""
    commit = scene.file({PartitionId(scene.topic().topic_id, 0): [run_of(1)]})
    results = [scene.catalog.commits.commit(commit)[0].has_transactions for _ in range(2)]
    assert results == [False, True]


def test_a_file_id_cannot_be_reused_for_other_contents(scene: Scene) -> None:
    topic = scene.topic()
    commit = scene.file({PartitionId(topic.topic_id, 0): [run_of(2)]})
    scene.catalog.commits.commit(commit)
    other = scene.file({PartitionId(topic.topic_id, 0): [run_of(2), run_of(3)]})
    with pytest.raises(InvalidCommitError, match="other contents"):
        scene.catalog.commits.commit(replace(other, file_id=commit.file_id))


def test_a_commit_is_retried_when_its_response_is_lost(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    """The server commits, the connection breaks before the response, and the caller does not notice."""
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic()
        wire.lose_next_commit()
        result = scene.commit(topic, run_of(3, producer=(1, 0, 0)))
        assert (result.runs[0].base_offset, result.runs[0].duplicate) == (0, False)
        assert len(scene.extents(topic)) == 1
        assert catalog.operation_counts()["commits.commit"].retries >= 1


def test_a_commit_that_arrives_after_its_retry_has_begun_is_applied_once(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    """The first transaction is still open, and holds its locks, while the caller tries again."""
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic()
        wire.delay_next_commit(0.3)
        result = scene.commit(topic, run_of(3, producer=(1, 0, 0)))
        assert (result.runs[0].base_offset, result.runs[0].duplicate) == (0, False)
        assert scene.commit(topic, run_of(3, producer=(1, 0, 3))).runs[0].base_offset == 3
        assert len(scene.extents(topic)) == 2
        assert catalog.operation_counts()["commits.commit"].retries >= 1


@pytest.mark.parametrize("partitions", [1, 300])
def test_a_commit_takes_two_round_trips(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids, partitions: int
) -> None:
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic(partitions=partitions)
        for number in range(8):  # psycopg prepares a statement after some executions
            commit = scene.file(
                {
                    PartitionId(topic.topic_id, partition): [run_of(1, producer=(1, 0, number)), run_of(1)]
                    for partition in range(partitions)
                }
            )
            before = wire.waits
            catalog.commits.commit(commit)
            assert wire.waits - before == 2
