"""Queries of readers, the planner and garbage collection: bounded cost, and correct results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.database.connection import DatabaseLimits, connection_string
from catalog.database.sql_files import load_queries
from catalog.errors import SessionFencedError
from catalog.model import PartitionId
from catalog.topics import extents as extents_module
from core.clock import ManualClock
from core.errors import NotFoundError
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from catalog.model import Topic
    from core.clock import Clock
    from tests.catalog.scene import Scene


def _ten_extents(scene: Scene) -> Topic:
    topic = scene.topic()
    for _ in range(10):
        scene.commit(topic, run_of(5))
    return topic


def test_extents_start_with_the_one_that_covers_the_offset(scene: Scene) -> None:
    topic = _ten_extents(scene)
    for offset in range(51):
        found = scene.extents(topic, 0, offset)
        assert [extent.base_offset for extent in found] == list(range(offset // 5 * 5, 50, 5))


def test_extents_are_bounded_in_number_and_bytes(scene: Scene) -> None:
    topic = _ten_extents(scene)
    extents = scene.catalog.extents.from_offset
    assert len(extents(topic.topic_id, 0, 12, max_extents=3)) == 3
    for max_bytes, count in ((1, 1), (100, 1), (199, 1), (200, 2), (10_000, 8)):
        assert len(extents(topic.topic_id, 0, 12, max_bytes=max_bytes)) == count
    assert extents(topic.topic_id, 7, 0) == []
    assert extents(scene.ids.new_uuid(), 0, 0) == []


def _plan_of(connection: psycopg.Connection[Any], sql: bytes, params: dict[str, object]) -> str:
    connection.execute("SET enable_seqscan = off")
    rows = connection.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + sql, params).fetchall()
    return str(rows[0][0])


def test_a_read_costs_as_much_as_its_result(scene: Scene, catalog_url: str) -> None:
    """A read in the middle of a long log reads only the rows of its result."""
    topic = scene.topic()
    for _ in range(60):
        scene.commit(topic, run_of(5))
    params = {
        "topic_id": topic.topic_id,
        "partition": 0,
        "offset": 150,
        "max_extents": 2,
        "max_bytes": 1000,
        "timestamp": 1002,
        "page": 10,
    }
    with psycopg.connect(connection_string(catalog_url, DatabaseLimits()), autocommit=True) as connection:
        for name in ("extents_from_offset", "page_of_timestamp"):
            plan = _plan_of(connection, load_queries("extents")[name].sql, params)
            assert "Seq Scan" not in plan
            assert "'Rows Removed by Filter': 0" in plan or "Rows Removed by Filter" not in plan


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(
    timestamps=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    start=st.integers(0, 30),
    compacted=st.tuples(st.integers(0, 11), st.integers(1, 6)),
)
def test_the_timestamp_search_agrees_with_a_full_scan(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    timestamps: list[int],
    start: int,
    compacted: tuple[int, int],
) -> None:
    monkeypatch.setattr(extents_module, "_TIMESTAMP_PAGE", 2)
    topic = scene.topic(f"t{scene.ids.new_uuid()}")
    for timestamp in timestamps:
        scene.commit(topic, run_of(3, at=1000 + timestamp))
    first, count = compacted
    if chosen := scene.extents(topic)[first : first + count]:
        scene.catalog.jobs.complete(scene.result(scene.claimed(chosen, reaches_log_start=False)))
    begin = scene.catalog.retention.advance_log_start(topic.topic_id, 0, start)
    scene.catalog.retention.remove_expired(topic.topic_id, 0)
    extents = scene.extents(topic, 0, begin)
    for timestamp in range(995, 1050, 3):
        expected = next((extent for extent in extents if extent.max_timestamp >= timestamp), None)
        found = scene.catalog.extents.first_at_or_after_timestamp(topic.topic_id, 0, timestamp)
        assert found == expected
    assert scene.catalog.extents.first_at_or_after_timestamp(scene.ids.new_uuid(), 0, 0) is None


def test_the_planner_gets_unclaimed_extents_in_commit_order(scene: Scene) -> None:
    topic = scene.topic(partitions=3)
    files = [
        scene.file({PartitionId(topic.topic_id, partition): [run_of(2)] for partition in partitions})
        for partitions in ((0, 1), (2,), (0, 2))
    ]
    for file in files:
        scene.catalog.commits.commit(file)
    seen = scene.catalog.planning.ingestion_files(10)
    assert [file.file_id for file in seen] == [file.file_id for file in files]
    assert [extent.partition for extent in seen[0].extents] == [0, 1]
    assert [file.file_id for file in scene.catalog.planning.ingestion_files(2)] == [
        file.file_id for file in files[:2]
    ]
    spec = scene.submitted(scene.extents(topic, 0))
    seen = scene.catalog.planning.ingestion_files(10)
    assert [[extent.partition for extent in file.extents] for file in seen] == [[1], [2], [2]]
    claimed = scene.catalog.planning.extents_of(PartitionId(topic.topic_id, 0), 0, 10)
    assert {extent.claimed_by for extent in claimed} == {spec.job_id}
    both = scene.catalog.planning.extents_of_each(
        [(PartitionId(topic.topic_id, 2), 0), (PartitionId(topic.topic_id, 0), 3)], 1
    )
    assert [(extent.partition, extent.base_offset) for extent in both] == [(0, 2), (2, 0)]


def test_partition_sizes_are_paged(scene: Scene) -> None:
    one, two = scene.topic("one", 3), scene.topic("two", 2)
    scene.commit(one, run_of(2), partition=1)
    planning = scene.catalog.planning
    everything = planning.partition_sizes()
    assert len(everything) == 5
    assert planning.partition_sizes(limit=2) == everything[:2]
    assert planning.partition_sizes(after=everything[1].partition_id) == everything[2:]
    sizes = planning.partition_sizes([one.topic_id])
    assert [size.live_bytes for size in sizes] == [0, 100, 0]
    assert planning.partition_sizes([]) == []
    assert {size.state.topic_id for size in planning.partition_sizes([two.topic_id])} == {two.topic_id}


def test_totals_cover_the_whole_catalog(scene: Scene) -> None:
    topic = _ten_extents(scene)
    scene.catalog.jobs.complete(scene.result(scene.claimed(scene.extents(topic)[:4])))
    totals = scene.catalog.planning.totals()
    assert (totals.partitions, totals.ingestion_extents, totals.compacted_extents) == (1, 6, 1)
    assert (totals.live_bytes, totals.dirty_bytes) == (640, 600)
    assert totals.live_ingestion_files.count == 6
    assert totals.live_compacted_files.count == 1
    assert (totals.dead_files.count, totals.dead_files.size) == (4, 4 * 164)


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


def test_known_files_are_paged_by_name(scene: Scene) -> None:
    _ten_extents(scene)
    garbage = scene.catalog.garbage
    everything = garbage.known_files()
    names = [file.object_name for file in everything]
    assert len(names) == 10
    assert names == sorted(names)
    assert garbage.known_files(limit=4) == everything[:4]
    assert garbage.known_files(after=names[3]) == everything[4:]
    assert garbage.known_files(f"v1/ingest/{scene.session_id}/") == everything
    assert garbage.known_files(names[5]) == [everything[5]]
    assert garbage.known_files("v1/compact/") == []


def test_the_log_start_never_decreases_or_passes_the_end(scene: Scene) -> None:
    topic = _ten_extents(scene)
    retention = scene.catalog.retention
    assert retention.advance_log_start(topic.topic_id, 0, 12) == 12
    assert retention.advance_log_start(topic.topic_id, 0, 3) == 12
    assert retention.remove_expired(topic.topic_id, 0, limit=1) == 1
    assert retention.remove_expired(topic.topic_id, 0) == 1
    assert scene.extents(topic)[0].base_offset == 10
    assert retention.advance_log_start(topic.topic_id, 0, 999) == 50
    assert retention.remove_expired(topic.topic_id, 0) == 8
    assert retention.remove_expired(scene.ids.new_uuid(), 0) == 0
    with pytest.raises(NotFoundError):
        retention.advance_log_start(topic.topic_id, 9, 1)


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


def test_producers_of_several_partitions_are_returned_together(scene: Scene) -> None:
    """At most `limit` of each partition, the most recent first."""
    topic, other = scene.topic(partitions=2), scene.topic("other")
    for number in range(3):
        scene.commit(topic, run_of(1, producer=(number, 0, 0)))
    scene.commit(other, run_of(1, producer=(7, 2, 0)))
    keys = [PartitionId(other.topic_id, 0), PartitionId(topic.topic_id, 1), PartitionId(topic.topic_id, 0)]
    found = scene.catalog.producers.of_partitions(keys, limit=2)
    assert {key: [(each.producer_id, each.producer_epoch) for each in found[key]] for key in keys} == {
        keys[0]: [(7, 2)],
        keys[1]: [],
        keys[2]: [(0, 0), (1, 0)],
    }


def test_sessions_without_a_recent_heartbeat_are_fenced(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    sessions = scene.catalog.sessions
    other = scene.ids.new_uuid()
    sessions.register(other, "another")
    clock.advance(20)
    assert sessions.heartbeat(other) == 20_000
    assert sessions.heartbeat(other) == 0
    assert sessions.fence_silent(10_000) == [scene.session_id]
    assert [session.session_id for session in sessions.active()] == [other]
    silent = sessions.get(scene.session_id)
    assert silent is not None
    assert silent.state == "fenced"
    with pytest.raises(SessionFencedError):
        sessions.heartbeat(scene.session_id)
    sessions.end(other)
    ended = sessions.get(other)
    assert ended is not None
    assert ended.state == "ended"
    assert sessions.get(scene.ids.new_uuid()) is None
