"""Look-up of extents by offset and by timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.database import arrays
from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.database.sql_files import load_queries
from catalog.model import PartitionId
from catalog.topics import extents as extents_module
from catalog.topics.extents import ExtentRequest
from tests.catalog.scene import advance_log_start, run_of

if TYPE_CHECKING:
    import pytest

    from tests.catalog.scene import Scene


def test_extents_start_with_the_one_that_covers_the_offset(scene: Scene) -> None:
    topic = scene.topic_with_extents(10)
    for offset in range(51):
        found = scene.extents(topic, 0, offset)
        assert [extent.base_offset for extent in found] == list(range(offset // 5 * 5, 50, 5))


def test_extents_are_bounded_in_number_and_bytes(scene: Scene) -> None:
    topic = scene.topic_with_extents(10)
    extents = scene.catalog.extents.from_offset
    assert len(extents(topic.topic_id, 0, 12, max_extents=3)) == 3
    for max_bytes, count in ((1, 1), (100, 1), (199, 1), (200, 2), (10_000, 8)):
        assert len(extents(topic.topic_id, 0, 12, max_bytes=max_bytes)) == count
    assert extents(topic.topic_id, 7, 0) == []
    assert extents(scene.ids.new_uuid(), 0, 0) == []


def _plan_of(connection: psycopg.Connection[Any], sql: bytes, params: dict[str, Any]) -> dict[str, Any]:
    connection.execute("SET enable_seqscan = off")
    rows = connection.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + sql, params).fetchall()
    plan: dict[str, Any] = rows[0][0][0]["Plan"]
    return plan


def test_partitions_share_a_limit_of_bytes_in_their_order(scene: Scene) -> None:
    """Extents have 100 bytes. Only the first of a partition may exceed the partition's share."""
    topic = scene.topic(partitions=4)
    for number in (0, 1, 3):
        for _ in range(4):
            scene.commit(topic, run_of(5), partition=number)

    def counts(*wanted: tuple[int, int, int], most: int = 100, **limits: int) -> list[int]:
        requests = [
            ExtentRequest(PartitionId(topic.topic_id, number), 7, of_partition, ahead)
            for number, of_partition, ahead in wanted
        ]
        found = scene.catalog.extents.from_offsets(requests, max_extents=most, **limits)
        for request, extents in zip(requests, found, strict=True):
            expected = scene.extents(topic, request.partition.partition, 7)
            assert extents == expected[: len(extents)]
        return [len(extents) for extents in found]

    everything = [(number, 10_000, 0) for number in range(4)]
    assert counts(*everything, max_bytes=10_000) == [3, 3, 0, 3]
    for max_bytes, expected in (
        (0, [1, 0, 0, 0]),
        (100, [1, 0, 0, 0]),
        (350, [3, 1, 0, 0]),
        (301, [3, 1, 0, 0]),
    ):
        assert counts(*everything, max_bytes=max_bytes) == expected
    assert counts((0, 200, 0), (2, 200, 0), (1, 10, 0), (3, 200, 0), max_bytes=310) == [2, 0, 1, 1]
    assert counts((3, 0, 0), (0, 0, 0), max_bytes=0) == [1, 0]
    assert counts((0, 100, 300), (1, 100, 300), (3, 100, 300), max_bytes=200) == [3, 3, 0]
    assert counts(*everything, max_bytes=10_000, most=4) == [3, 1, 0, 0]
    assert counts(*everything, max_bytes=10_000, max_extents_of_one=2) == [2, 2, 0, 2]
    assert counts(max_bytes=10_000) == []


def test_a_partition_may_be_requested_from_two_offsets(scene: Scene) -> None:
    topic = scene.topic_with_extents(3)
    partition = PartitionId(topic.topic_id, 0)
    requests = [ExtentRequest(partition, offset, 1000) for offset in (12, 0, 15)]
    found = scene.catalog.extents.from_offsets(requests, max_bytes=1000, max_extents=100)
    assert [len(extents) for extents in found] == [1, 3, 0]


def _rows_read(plan: dict[str, Any]) -> int:
    """Return the rows that the plan's scans of tables have read."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if "Relation Name" in plan else 0
    return int(own) + sum(_rows_read(each) for each in plan.get("Plans", ()))


def test_a_read_costs_as_much_as_its_result(scene: Scene, catalog_url: str) -> None:
    """A read in the middle of long logs reads few rows beyond those of its result."""
    topic = scene.topic(partitions=3)
    for _ in range(60):
        for number in range(3):
            scene.commit(topic, run_of(5), partition=number)
    of_one = {"topic_id": topic.topic_id, "partition": 0, "offset": 150, "timestamp": 1002, "page": 10}
    of_many = {
        "topic_ids": arrays.uuids([topic.topic_id] * 3),
        "partitions": arrays.integers(range(3)),
        "offsets": arrays.bigints([150] * 3),
        "max_bytes_of": arrays.bigints([200] * 3),
        "ahead_bytes_of": arrays.bigints([0] * 3),
        "max_bytes": 400,
        "max_extents": 50,
        "max_extents_of_one": 20,
    }
    with psycopg.connect(connection_string(catalog_url, DatabaseLimits()), autocommit=True) as connection:
        arrays.register(connection)
        for name, params, rows in (("extents_from_offsets", of_many, 24), ("page_of_timestamp", of_one, 10)):
            plan = _plan_of(connection, load_queries("extents")[name].sql, params)
            assert "Seq Scan" not in str(plan)
            assert "'Rows Removed by Filter': 0" in str(plan) or "Rows Removed by Filter" not in str(plan)
            assert _rows_read(plan) <= rows


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
    begin = advance_log_start(scene.catalog.retention, topic.topic_id, 0, start)
    scene.catalog.retention.remove_expired(topic.topic_id, 0)
    extents = scene.extents(topic, 0, begin)
    for timestamp in range(995, 1050, 3):
        expected = next((extent for extent in extents if extent.max_timestamp >= timestamp), None)
        found = scene.catalog.extents.first_at_or_after_timestamp(topic.topic_id, 0, timestamp)
        assert found == expected
    assert scene.catalog.extents.first_at_or_after_timestamp(scene.ids.new_uuid(), 0, 0) is None
