"""Dead files and known files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.clock import ManualClock
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from core.clock import Clock
    from tests.catalog.scene import Scene


def test_dead_files_are_returned_after_their_time(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    live = scene.commit(topic, run_of(5))
    died = clock.now_ms()
    scene.catalog.retention.advance_log_start(topic.topic_id, 0, 5)
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
