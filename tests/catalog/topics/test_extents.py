"""Look-up of extents by offset and by timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.database.sql_files import load_queries
from catalog.topics import extents as extents_module
from tests.catalog.scene import run_of

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
