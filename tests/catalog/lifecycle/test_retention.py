"""Retention by time, by size and by log start offset."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
from typing_extensions import override

from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.lifecycle.retention import RetentionRule
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import ManualClock, SystemClock
from core.ids import SystemIds
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import Scene, advance_log_start, run_of

if TYPE_CHECKING:
    from catalog.model import Topic
    from core.clock import Clock

HOUR_MS = 3_600_000


@pytest.fixture
def manual(clock: Clock) -> ManualClock:
    assert isinstance(clock, ManualClock)
    return clock


def expire(scene: Scene, topic: Topic, *, limit: int = 1000) -> int:
    return scene.catalog.retention.expire([PartitionId(topic.topic_id, 0)], limit=limit).extents


def log_start(scene: Scene, topic: Topic) -> int:
    (state,) = scene.catalog.topics.partitions(topic.topic_id)
    return state.log_start_offset


def hourly(scene: Scene, topic: Topic, manual: ManualClock, hours: int) -> None:
    """Commit ten records per hour with the current timestamp."""
    for _ in range(hours):
        scene.commit(topic, run_of(10, at=manual.now_ms() - 9))
        manual.advance(3600)


def test_an_extent_expires_when_its_newest_record_is_too_old(scene: Scene, manual: ManualClock) -> None:
    """As in Kafka, a record that is exactly retention.ms old has not expired."""
    topic = scene.topic(retention_ms=str(2 * HOUR_MS))
    hourly(scene, topic, manual, 4)
    assert expire(scene, topic) == 2
    assert log_start(scene, topic) == 20
    manual.advance(0.001)
    assert expire(scene, topic) == 1
    assert [extent.base_offset for extent in scene.extents(topic)] == [30]
    assert InvariantChecker(scene.catalog).violations() == []


def test_the_last_extent_expires_and_offsets_continue(scene: Scene, manual: ManualClock) -> None:
    """There is no active segment, so the last extent expires like any other. Offsets are never reused."""
    topic = scene.topic(retention_ms=str(HOUR_MS))
    hourly(scene, topic, manual, 2)
    manual.advance(3600)
    assert expire(scene, topic) == 2
    assert (log_start(scene, topic), scene.extents(topic)) == (20, [])
    assert scene.commit(topic, run_of(1)).runs[0].base_offset == 20
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_young_extent_protects_older_ones_after_it(scene: Scene, manual: ManualClock) -> None:
    """Only a prefix of the log expires."""
    topic = scene.topic(retention_ms=str(HOUR_MS))
    scene.commit(topic, run_of(10, at=manual.now_ms() + 5 * HOUR_MS))
    scene.commit(topic, run_of(10, at=1000))
    assert expire(scene, topic) == 0
    assert len(scene.extents(topic)) == 2


def test_the_age_of_an_extent_without_timestamps_counts_from_its_commit(
    scene: Scene, manual: ManualClock
) -> None:
    topic = scene.topic(retention_ms=str(HOUR_MS))
    scene.commit(topic, run_of(1, at=-1))
    manual.advance(3600)
    assert expire(scene, topic) == 0
    manual.advance(0.001)
    assert expire(scene, topic) == 1


@pytest.mark.parametrize(
    ("keep", "left"), [(-1, 5), (0, 0), (100, 1), (299, 3), (300, 3), (499, 5), (500, 5)]
)
def test_retention_by_size_keeps_at_least_retention_bytes(scene: Scene, keep: int, left: int) -> None:
    """Each extent has 100 bytes. As in Kafka, it expires only if at least retention.bytes remain."""
    topic = scene.topic(retention_ms="-1", retention_bytes=str(keep))
    for _ in range(5):
        scene.commit(topic, run_of(10))
    assert expire(scene, topic) == 5 - left
    assert log_start(scene, topic) == 10 * (5 - left)


def test_a_compacted_topic_loses_only_extents_below_its_log_start(scene: Scene, manual: ManualClock) -> None:
    only = scene.topic("only", cleanup_policy="compact", retention_ms="1", retention_bytes="0")
    both = scene.topic("both", cleanup_policy="compact,delete", retention_ms="1")
    for topic in (only, both):
        hourly(scene, topic, manual, 2)
        advance_log_start(scene.catalog.retention, topic.topic_id, 0, 15)
    assert [expire(scene, topic) for topic in (only, both)] == [1, 2]
    assert [log_start(scene, topic) for topic in (only, both)] == [15, 20]


def test_many_extents_are_removed_in_several_transactions(scene: Scene) -> None:
    topic = scene.topic(retention_ms="-1", retention_bytes="0")
    for _ in range(5):
        scene.commit(topic, run_of(1))
    key = PartitionId(topic.topic_id, 0)
    steps = [scene.catalog.retention.expire([key], limit=2) for _ in range(3)]
    assert [(step.extents, step.unfinished) for step in steps] == [(2, (key,)), (2, (key,)), (1, ())]
    assert InvariantChecker(scene.catalog).violations() == []


def test_only_partitions_with_expired_extents_are_due(scene: Scene, manual: ManualClock) -> None:
    """The last partition of a page is the start of the next page."""
    old = scene.topic("old", 3, retention_ms=str(HOUR_MS))
    kept = scene.topic("kept", 3, retention_ms="-1")
    for topic in (old, kept):
        for partition in (0, 2):
            scene.commit(topic, run_of(1), partition=partition)
    manual.advance(2 * 3600)
    rules = {topic.topic_id: RetentionRule.of(topic.config) for topic in (old, kept)}
    found: list[PartitionId] = []
    page = scene.catalog.retention.due(rules, limit=2)
    while page.last is not None:
        found += page.partitions
        page = scene.catalog.retention.due(rules, after=page.last, limit=2)
    assert found == [PartitionId(old.topic_id, 0), PartitionId(old.topic_id, 2)]


def test_a_change_of_retention_before_the_removal_applies(scene: Scene, catalog_url: str) -> None:
    """The settings at the time of the removal count, not those at the start of the call."""
    topic = scene.topic(retention_ms="-1", retention_bytes="0")
    scene.commit(topic, run_of(1))
    with (
        psycopg.connect(connection_string(catalog_url, DatabaseLimits())) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        query = b"""UPDATE topics SET config = '{"retention.ms": "-1"}' WHERE topic_id = %s"""
        other.execute(query, (topic.topic_id,))
        expiring = pool.submit(expire, scene, topic)
        _wait_for_a_lock(catalog_url)
        other.commit()
        assert expiring.result() == 0
    assert len(scene.extents(topic)) == 1


def _wait_for_a_lock(catalog_url: str) -> None:
    """Wait until a connection waits for a lock."""
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        query = b"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while connection.execute(query).fetchall() == [(0,)]:
            pass


def test_concurrent_commits_and_retention_keep_the_invariants(scene: Scene) -> None:
    """Offsets have no gap, and the totals are correct."""
    topic = scene.topic(retention_ms="-1", retention_bytes="300")
    done = threading.Event()

    def keep_expiring() -> int:
        removed = 0
        while not done.is_set():
            removed += expire(scene, topic, limit=2)
        return removed + expire(scene, topic)

    with ThreadPoolExecutor(3) as pool:
        expiring = [pool.submit(keep_expiring) for _ in range(2)]
        ends = [scene.commit(topic, run_of(3)).high_watermark for _ in range(40)]
        done.set()
        removed = sum(each.result() for each in expiring)
    assert ends == [3 * number for number in range(1, 41)]
    assert (removed, len(scene.extents(topic, offset=log_start(scene, topic)))) == (37, 3)
    assert InvariantChecker(scene.catalog).violations() == []


def test_the_log_start_never_decreases_or_passes_the_end(scene: Scene) -> None:
    topic = scene.topic_with_extents(10)
    retention = scene.catalog.retention
    assert advance_log_start(retention, topic.topic_id, 0, 12) == 12
    assert advance_log_start(retention, topic.topic_id, 0, 3) == 12
    assert retention.remove_expired(topic.topic_id, 0, limit=1) == 1
    assert retention.remove_expired(topic.topic_id, 0) == 1
    assert scene.extents(topic)[0].base_offset == 10
    assert advance_log_start(retention, topic.topic_id, 0, 999) == 50
    assert retention.remove_expired(topic.topic_id, 0) == 8
    assert retention.remove_expired(scene.ids.new_uuid(), 0) == 0
    assert retention.advance_log_starts({PartitionId(topic.topic_id, 9): 1}) == {}


def test_several_log_starts_advance_together(scene: Scene) -> None:
    """Each advances within its own bounds; unknown partitions are left out."""
    topics = [scene.topic(name, partitions=2) for name in ("u", "t")]
    keys = [PartitionId(topic.topic_id, partition) for topic in topics for partition in (1, 0)]
    for count, topic in enumerate(topics):
        scene.commit(topic, run_of(5 + count))
    offsets = dict(zip(keys, [0, 3, 1, 99], strict=True)) | {PartitionId(topics[0].topic_id, 2): 0}
    starts = scene.catalog.retention.advance_log_starts(offsets)
    assert starts == dict(zip(keys, [0, 3, 0, 6], strict=True))
    states = {PartitionId(s.topic_id, s.partition): s for s in scene.catalog.topics.states(keys)}
    assert {key: state.log_start_offset for key, state in states.items()} == starts
    assert scene.catalog.retention.advance_log_starts(dict.fromkeys(keys, 1)) == dict(
        zip(keys, [0, 3, 0, 6], strict=True)
    )


class WrongClock(SystemClock):
    """Clock of a machine that is 30 days ahead."""

    @override
    def now_ms(self) -> int:
        return super().now_ms() + 30 * 24 * HOUR_MS


def test_the_clock_of_a_machine_has_no_effect(catalog_url: str) -> None:
    """A machine that is 30 days ahead fences no session, expires nothing, and stores the server's time."""
    with (
        open_catalog(catalog_url, SystemClock(), SystemIds(SystemClock())) as right,
        open_catalog(catalog_url, WrongClock(), SystemIds(SystemClock())) as wrong,
    ):
        scene = Scene.set_up(right, SystemIds(SystemClock()))
        topic = scene.topic(retention_ms=str(HOUR_MS))
        scene.commit(topic, run_of(1, at=right.clock.now_ms()))
        assert abs(wrong.clock.now_ms() - right.clock.now_ms()) < HOUR_MS
        assert wrong.sessions.fence_silent(HOUR_MS, 0) == []
        assert wrong.retention.due({topic.topic_id: RetentionRule.of(topic.config)}).partitions == ()
        assert wrong.retention.expire([PartitionId(topic.topic_id, 0)]).extents == 0
        job = scene.claimed(scene.extents(topic))
        assert wrong.jobs.release_expired(HOUR_MS, 0) == []
        wrong.jobs.complete(scene.result(job))
        assert right.garbage.dead_files(right.clock.now_ms() + HOUR_MS, 10) != []
        other = Scene.set_up(wrong, SystemIds(SystemClock()))
        other.commit(topic, run_of(1))
        assert other.extents(topic)[-1].committed_ms < right.clock.now_ms() + HOUR_MS
