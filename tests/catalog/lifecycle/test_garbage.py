"""Dead files and known files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.groups.offsets import CommittedOffset
from catalog.model import PartitionId
from core.clock import ManualClock
from tests.catalog.scene import advance_log_start, run_of

if TYPE_CHECKING:
    from core.clock import Clock
    from tests.catalog.scene import Scene


def test_dead_files_are_returned_after_their_time(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    live = scene.commit(topic, run_of(5))
    died = clock.now_ms()
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, 5)
    scene.catalog.retention.remove_expired(topic.topic_id, 0)
    garbage = scene.catalog.garbage
    assert garbage.dead_files(died, 10) == []
    (dead,) = garbage.dead_files(died + 1, 10)
    assert dead.dead_ms == died
    (kept,) = scene.extents(topic)
    assert garbage.delete_rows([dead.file_id, kept.file_id]) == 1
    assert garbage.dead_files(2**62, 10) == []
    assert live.high_watermark == 10


def test_each_removal_returns_the_number_of_rows(scene: Scene) -> None:
    """The topic is removed last: one extent, two producers and three partitions precede it."""
    topic = scene.topic(partitions=3)
    scene.commit(topic, run_of(1, producer=(1, 0, 0)), run_of(1, producer=(2, 0, 0)))
    scene.catalog.topics.delete(topic.name)
    assert [scene.catalog.garbage.remove_deleted() for _ in range(3)] == [6, 1, 0]


def test_a_removal_counts_rows_of_every_kind(scene: Scene) -> None:
    """Two extents, one of them a control batch, a producer, two offsets, a transaction and a partition."""
    topic = scene.topic()
    producer = scene.catalog.transactions.initialize("t", 60_000).producer
    scene.catalog.transactions.add_partitions("t", producer, [PartitionId(topic.topic_id, 0)])
    scene.commit(topic, run_of(2, producer=(*producer, 0), in_transaction=True))
    scene.catalog.transactions.end("t", producer, commits=False)
    for group in "ab":
        claim_id = scene.ids.new_uuid()
        scene.catalog.groups.claim(group, claim_id, create=True)
        offset = CommittedOffset(topic_id=topic.topic_id, partition=0, offset=1)
        scene.catalog.group_offsets.commit(group, claim_id, None, [offset])
    scene.catalog.topics.delete(topic.name)
    assert [scene.catalog.garbage.remove_deleted() for _ in range(3)] == [7, 1, 0]


def test_a_deleted_topic_is_removed_after_the_delay(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    topic = scene.topic_with_extents(1)
    scene.catalog.topics.delete(topic.name)
    clock.advance(1)
    assert scene.catalog.garbage.remove_deleted(delay_ms=2000) == 0
    clock.advance(1)
    assert scene.catalog.garbage.remove_deleted(delay_ms=2000) == 2


def test_known_files_are_paged_by_name(scene: Scene) -> None:
    scene.topic_with_extents(10)
    garbage = scene.catalog.garbage
    everything = garbage.known_files()
    names = [file.object_name for file in everything]
    assert len(names) == 10
    assert names == sorted(names)
    assert garbage.known_files(limit=4) == everything[:4]
    assert garbage.known_files(after=names[3]) == everything[4:]
    assert garbage.known_files(f"v2/00/ingest/{scene.session_id}/") == everything
    assert garbage.known_files(names[5]) == [everything[5]]
    assert garbage.known_files("v2/00/compact/") == []
