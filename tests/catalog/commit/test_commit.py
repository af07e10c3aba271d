"""Commits: what is appended, what is refused, and what happens to a lost answer."""

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


def test_offsets_go_on_where_the_log_ends(scene: Scene) -> None:
    topic = scene.topic()
    first = scene.commit(topic, run_of(3))
    second = scene.commit(topic, run_of(2), run_of(4))
    assert [run.base_offset for run in (*first.runs, *second.runs)] == [0, 3, 5]
    assert (second.log_start_offset, second.high_watermark) == (0, 9)
    assert [(each.base_offset, each.last_offset) for each in scene.extents(topic)] == [(0, 2), (3, 8)]


def test_sections_are_answered_in_their_order(scene: Scene) -> None:
    topic = scene.topic(partitions=4)
    commit = scene.file({PartitionId(topic.topic_id, partition): [run_of(1)] for partition in range(4)})
    shuffled = replace(commit, sections=tuple(reversed(commit.sections)))
    results = scene.catalog.commits.commit(shuffled)
    assert [result.partition for result in results] == [3, 2, 1, 0]


def test_a_refused_run_belongs_to_nobody(scene: Scene) -> None:
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


def test_duplicates_get_their_first_offsets(scene: Scene) -> None:
    topic = scene.topic()
    offsets = [scene.commit(topic, run_of(2, producer=(1, 0, 2 * n))).runs[0].base_offset for n in range(6)]
    for number in range(1, 6):
        (again,) = scene.commit(topic, run_of(2, producer=(1, 0, 2 * number))).runs
        assert (again.base_offset, again.duplicate) == (offsets[number], True)
    (forgotten,) = scene.commit(topic, run_of(2, producer=(1, 0, 0))).runs
    assert forgotten.refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert len(scene.extents(topic)) == 6


def test_sequence_numbers_wrap_round(scene: Scene) -> None:
    topic = scene.topic()
    top = 2**31 - 1
    scene.commit(topic, run_of(top, producer=(1, 0, 0)))
    (across,) = scene.commit(topic, run_of(4, producer=(1, 0, top))).runs
    assert (across.base_offset, across.refusal) == (top, None)
    (behind,) = scene.commit(topic, run_of(1, producer=(1, 0, 3))).runs
    assert (behind.base_offset, behind.refusal) == (top + 4, None)
    (again,) = scene.commit(topic, run_of(4, producer=(1, 0, top))).runs
    assert (again.base_offset, again.duplicate) == (top, True)


def test_a_producer_that_outlives_a_topic_goes_on_in_the_next_of_that_name(scene: Scene) -> None:
    """Kafka's clients go on counting. Producers that came after the first topic begin anew."""
    catalog, topic = scene.catalog, scene.topic()
    before = catalog.producers.new_id()
    assert scene.commit(topic, run_of(5, producer=(before, 0, 0))).runs[0].refusal is None
    catalog.topics.delete(topic.name)
    again = catalog.topics.create(topic.name, 1)
    grown = catalog.topics.add_partitions(topic.name, 2)
    since = catalog.producers.new_id()
    for partition in (0, 1):
        for producer, refusal in ((before, None), (since, RunRefusal.OUT_OF_ORDER_SEQUENCE)):
            answer = scene.commit(grown, run_of(1, producer=(producer, 0, 5)), partition=partition)
            assert answer.runs[0].refusal is refusal
    assert again.topic_id == grown.topic_id
    other = catalog.topics.create("other", 1)
    answer = scene.commit(other, run_of(1, producer=(before, 0, 5)))
    assert answer.runs[0].refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE


def test_who_was_refused_for_good_goes_on_with_any_number(scene: Scene) -> None:
    catalog, topic = scene.catalog, scene.topic(partitions=2)
    known, admitted, other = (catalog.producers.new_id() for _ in range(3))
    scene.commit(topic, run_of(1, producer=(known, 0, 0)))
    catalog.producers.accept_any_sequence(
        [(topic.topic_id, 0, each) for each in (known, admitted, 2**63 - 1)]
    )
    catalog.producers.accept_any_sequence([(topic.topic_id, 7, admitted)])
    catalog.producers.accept_any_sequence([])

    def begin(producer: int, partition: int = 0) -> RunRefusal | None:
        return scene.commit(topic, run_of(1, producer=(producer, 0, 5)), partition=partition).runs[0].refusal

    wrong = RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert [begin(known), begin(other), begin(admitted, partition=1), begin(admitted)] == [wrong] * 3 + [None]


def test_names_of_past_topics_are_forgotten_in_the_end(scene: Scene, clock: ManualClock) -> None:
    topic = scene.topic()
    scene.catalog.topics.delete(topic.name)
    clock.advance(90 * 86_400)
    assert scene.catalog.expiry.expire_deleted_topics() == 0
    clock.advance(1)
    assert scene.catalog.expiry.expire_deleted_topics() == 1
    assert scene.catalog.expiry.expire_deleted_topics() == 0


def test_a_newer_epoch_fences_the_older(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(1, producer=(1, 0, 0)))
    scene.commit(topic, run_of(1, producer=(1, 1, 0)))
    (old,) = scene.commit(topic, run_of(1, producer=(1, 0, 1))).runs
    assert old.refusal is RunRefusal.INVALID_PRODUCER_EPOCH


def test_the_live_are_committed_beside_the_deleted(scene: Scene) -> None:
    kept, deleted = scene.topic("kept"), scene.topic("deleted")
    commit = scene.file({PartitionId(topic.topic_id, 0): [run_of(2)] for topic in (kept, deleted)})
    scene.catalog.topics.delete("deleted")
    results = {result.topic_id: result for result in scene.catalog.commits.commit(commit)}
    assert results[kept.topic_id].runs[0].base_offset == 0
    (refused,) = results[deleted.topic_id].runs
    assert refused.refusal is RunRefusal.UNKNOWN_TOPIC_OR_PARTITION
    assert len(scene.extents(kept)) == 1


def test_a_file_of_which_nothing_is_taken_is_garbage_at_once(scene: Scene) -> None:
    topic = scene.topic()
    commit = scene.file({PartitionId(topic.topic_id, 5): [run_of(2)]})
    first = scene.catalog.commits.commit(commit)
    (dead,) = scene.catalog.garbage.dead_files(2**62, 10)
    assert dead.file_id == commit.file_id
    assert scene.catalog.garbage.forget([commit.file_id]) == 1
    assert scene.catalog.commits.commit(commit) == first


def test_only_an_active_session_commits(scene: Scene) -> None:
    topic = scene.topic()
    sections = {PartitionId(topic.topic_id, 0): [run_of(2)]}
    before, after = scene.file(sections), scene.file(sections)
    unknown = replace(scene.file(sections), session_id=scene.ids.new_uuid())
    answer = scene.catalog.commits.commit(before)
    scene.catalog.sessions.fence(scene.session_id)
    for refused in (after, unknown):
        with pytest.raises(SessionFencedError):
            scene.catalog.commits.commit(refused)
    assert scene.catalog.commits.commit(before) == answer, "what was committed before is still answered"
    assert len(scene.extents(topic)) == 1


def test_an_answer_is_kept_for_a_while(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    topic = scene.topic()
    old = scene.file({PartitionId(topic.topic_id, 0): [run_of(2)]})
    answer = scene.catalog.commits.commit(old)
    clock.advance(COMMIT_RESULT_RETENTION_MS / 1000 + 1)
    assert scene.catalog.commits.commit(old) == answer
    scene.commit(topic, run_of(1))  # a commit forgets a few that are too old
    with pytest.raises(CommitResultExpiredError):
        scene.catalog.commits.commit(old)


def test_an_identifier_is_for_one_file(scene: Scene) -> None:
    topic = scene.topic()
    commit = scene.file({PartitionId(topic.topic_id, 0): [run_of(2)]})
    scene.catalog.commits.commit(commit)
    other = scene.file({PartitionId(topic.topic_id, 0): [run_of(2), run_of(3)]})
    with pytest.raises(InvalidCommitError, match="other contents"):
        scene.catalog.commits.commit(replace(other, file_id=commit.file_id))


def test_a_lost_answer_is_given_again(catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids) -> None:
    """The server commits, the connection breaks before the answer, and the caller does not notice."""
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic()
        wire.lose_next_commit()
        result = scene.commit(topic, run_of(3, producer=(1, 0, 0)))
        assert (result.runs[0].base_offset, result.runs[0].duplicate) == (0, False)
        assert len(scene.extents(topic)) == 1
        assert catalog.operation_counts()["commits.commit"].retries >= 1


@pytest.mark.parametrize("partitions", [1, 300])
def test_a_commit_waits_twice_for_the_server(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids, partitions: int
) -> None:
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic(partitions=partitions)
        for number in range(8):  # beyond the point where psycopg begins to prepare statements
            commit = scene.file(
                {
                    PartitionId(topic.topic_id, partition): [run_of(1, producer=(1, 0, number)), run_of(1)]
                    for partition in range(partitions)
                }
            )
            before = wire.waits
            catalog.commits.commit(commit)
            assert wire.waits - before == 2
