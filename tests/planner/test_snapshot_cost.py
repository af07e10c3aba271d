"""The number of rows that planning reads from a large catalog is proportional to its result."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.rows import scalar_row, tuple_row

from benchmarks.planning import Size, fill
from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import FileKind
from catalog.open import open_catalog
from planner.planner import plan
from planner.settings import PlannerSettings
from planner.snapshot_loader import hashed, load_snapshot, small_files_from
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core.clock import Clock
    from core.ids import Ids
    from tests.fixtures.postgres import PostgresForTests

LARGE = Size(topics=10, partitions=300, extents_each=10)
QUERIES = load_queries("planning")
MERGE: Final[dict[str, object]] = {
    "below_bytes": 2**30,
    "dead_bytes": 2**20,
    "dead_share": 0.5,
    "extents_each": 2**40,
}
# Each file has an extent of a partition that exists: files of deleted topics are not merged.
_EXTENTS_OF_FILES: Final = b"""
, extent AS (
    INSERT INTO extents (
        topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,
        max_timestamp_so_far, file_id, position, length, index_position, index_length, offset_shift,
        leader_epoch, unique_keys, committed_ms
    )
    SELECT p.topic_id, p.partition, 1000000 + row_number() OVER (), 1000000 + row_number() OVER (),
           1, 1, 1, 1, file_id, 0, 1, 0, 0, 0, 0, true, 1
    FROM file, (SELECT topic_id, partition FROM partitions LIMIT 1) AS p
)
SELECT file_id FROM file
"""
_SMALL_FILES: Final = (
    b"""
WITH file AS (
    INSERT INTO files (
        file_id, object_name, kind, size, directory_length, owner_id, committed_ms, live_extents,
        claimed_extents, initial_bytes, live_bytes
    )
    SELECT gen_random_uuid(), 'small/' || n, 'compacted', 1, 1, gen_random_uuid(), 1, 2, 0, size, size
    FROM generate_series(1, %s) AS n, LATERAL (SELECT power(1.2, n %% 100)::bigint + n AS size) AS v
    RETURNING file_id
)
"""
    + _EXTENTS_OF_FILES
)
_MOSTLY_DEAD_FILE: Final = (
    b"""
WITH file AS (
    INSERT INTO files (
        file_id, object_name, kind, size, directory_length, owner_id, committed_ms, live_extents,
        initial_bytes, live_bytes
    )
    VALUES (gen_random_uuid(), 'mostly-dead', 'compacted', 1, 1, gen_random_uuid(), 1, 2, 10 * 2^30, 2^30)
    RETURNING file_id
)
"""
    + _EXTENTS_OF_FILES
)


@pytest.fixture(scope="module")
def large_url(postgres: PostgresForTests) -> Iterator[str]:
    """A catalog of 3,000 partitions with 30,000 extents in 500 ingestion and 100 compacted files."""
    url = postgres.create()
    fill(url, LARGE)
    yield url
    postgres.drop(url)


class QueryReader:
    """Runs queries of the planner, and counts the rows that they return and read."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, row_factory=scalar_row)
        arrays.register(self._connection)

    def close(self) -> None:
        self._connection.close()

    def column(self, statement: str) -> list[Any]:
        """Return the first column of a statement's result."""
        return self._connection.execute(statement.encode()).fetchall()

    def first_column(self, name: str, params: Mapping[str, object]) -> list[Any]:
        """Return the first column of the result of a planner's query."""
        return self._connection.execute(QUERIES[name].sql, params).fetchall()

    def fragmented(self, params: Mapping[str, object]) -> list[tuple[str, int]]:
        """Return the fragmented partitions, as the planner sees them."""
        rows = self._connection.cursor(row_factory=tuple_row).execute(
            QUERIES["fragmented_partitions"].sql, params
        )
        return [(str(row[0]), row[1]) for row in rows]

    def add_small_files(self, count: int) -> set[Any]:
        """Add compacted files of many sizes below 1 GB until `close`, and return their ids."""
        added = self._connection.execute(_SMALL_FILES, (count,)).fetchall()
        self._connection.execute("ANALYZE files, extents")
        return set(added)

    def add_mostly_dead_file(self) -> list[Any]:
        """Add a large file with mostly dead data, and return its id."""
        return self._connection.execute(_MOSTLY_DEAD_FILE).fetchall()

    def rows(self, name: str, params: Mapping[str, object]) -> tuple[int, int]:
        """Return the number of rows that a query returns, and that its scans read."""
        statement = b"EXPLAIN (ANALYZE, FORMAT JSON) " + QUERIES[name].sql
        (report,) = self._connection.execute(statement, params).fetchall()
        root = report[0]["Plan"]
        return int(root["Actual Rows"]), round(_scanned_rows(root))


def _scanned_rows(node: dict[str, Any]) -> float:
    """Return the rows that the scans below a plan node returned or filtered out."""
    rows = 0.0
    if "Relation Name" in node:
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        rows = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return rows + sum(_scanned_rows(child) for child in node.get("Plans", ()))


@pytest.fixture
def reader(large_url: str) -> Iterator[QueryReader]:
    reader = QueryReader(large_url)
    yield reader
    reader.close()


@pytest.mark.parametrize("name", ["unclaimed_extents_of_files", "extents_of_files"])
def test_only_the_extents_of_the_requested_files_are_read(reader: QueryReader, name: str) -> None:
    """Each extent costs two rows, its own and its partition's, and each file one row."""
    for kind, files in (("ingestion", 20), ("compacted", 2)):
        some = reader.column(f"SELECT file_id FROM files WHERE kind = '{kind}' LIMIT {files}")
        returned, read = reader.rows(name, {"file_ids": arrays.uuids(some)})
        assert 100 < returned < 2_000
        assert read <= 2 * returned + files


def test_files_to_merge_are_found_by_index(reader: QueryReader) -> None:
    """About a page of each kind is read, however many other files there are.

    Each file of the three groups costs its own row, some of its extents and their partitions.
    """
    reader.add_small_files(20_000)
    for from_bytes in (0, 2_000_000, 500_000_000):
        params = {**MERGE, "from_bytes": from_bytes, "limit": 10}
        returned, read = reader.rows("files_to_merge", params)
        assert returned == 10
        assert read <= 20 * returned


def test_ingestion_files_are_found_by_index(reader: QueryReader) -> None:
    """Each file costs its own row, one of its extents and that extent's partition."""
    returned, read = reader.rows("files_to_compact", {"limit": 10, "max_extents": 10_000, "after": 0})
    assert returned == 10
    assert read <= 3 * returned


def test_only_the_extents_of_the_requested_partitions_are_read(reader: QueryReader) -> None:
    """Each extent costs at most two rows, its own and its file's; each partition costs two."""
    topics = reader.column("SELECT topic_id FROM topics ORDER BY topic_id LIMIT 2")
    keys = [(topic, partition) for topic in topics for partition in range(50)]
    params = {
        "topic_ids": arrays.uuids(topic for topic, _ in keys),
        "partitions": arrays.integers([partition for _, partition in keys]),
        "offsets": arrays.bigints([0] * len(keys)),
        "with_controls": False,
        "limit": 1_000,
    }
    returned, read = reader.rows("extents_of", params)
    assert returned == 1_000
    assert read <= 2 * returned + 2 * len(keys) + 600  # a scan of all files may be cheaper


def test_only_the_newest_extents_of_the_requested_partitions_are_read(reader: QueryReader) -> None:
    """Extents in ingestion files, which are newer, are read; older extents are not."""
    topics = reader.column("SELECT topic_id FROM topics ORDER BY topic_id LIMIT 2")
    keys = [(topic, partition) for topic in topics for partition in range(50)]
    params = {
        "topic_ids": arrays.uuids(topic for topic, _ in keys),
        "partitions": arrays.integers([partition for _, partition in keys]),
        "limit": 4,
    }
    returned, read = reader.rows("newest_compacted_extents", params)
    assert returned == 4 * len(keys)
    assert read <= 2 * (returned + len(keys)) + len(keys)


def test_fragmented_partitions_are_neighbours_and_all_are_found_over_time(reader: QueryReader) -> None:
    """A plan sees a bounded number, starts at a position that changes, and wraps around at the end."""
    everything = reader.fragmented(
        {"section_bytes": 2**20, "resting_extents": 1, "start": 0.0, "limit": 10_000}
    )
    assert len(everything) == LARGE.topics * LARGE.partitions
    assert everything == sorted(everything)
    seen: set[object] = set()
    for second in range(400):
        params = {"section_bytes": 2**20, "resting_extents": 1, "start": hashed(second), "limit": 100}
        found = reader.fragmented(params)
        first = everything.index(found[0])
        assert found == [*everything[first:], *everything[:first]][:100]
        seen.update(found)
    assert len(seen) == len(everything)


def test_the_extents_of_a_snapshot_are_bounded(large_url: str, clock: Clock, ids: Ids) -> None:
    """Each kind of work has a share: ingestion files, partitions to clean or cluster, files to merge."""
    settings = PlannerSettings(max_plan_extents=4_000, merge_fan_in=2, section_floor_bytes=2**19)
    with open_catalog(large_url, clock, ids, limits=PATIENT) as catalog:
        snapshot = load_snapshot(catalog, clock.now_ms(), settings)
    kinds = [extent.file_kind for view in snapshot.partitions for extent in view.extents]
    merging = sum(len(file.extents) for file in snapshot.mergeable)
    sorting = sum(len(view.extents) for view in snapshot.fragmented)
    assert merging > 500
    assert sorting > 400
    assert kinds.count(FileKind.INGESTION) > 1_000
    assert kinds.count(FileKind.COMPACTED) > 400
    assert len(kinds) + merging + sorting <= 4_000


def test_planning_restores_the_state_of_the_cycle_collector(large_url: str, clock: Clock, ids: Ids) -> None:
    with open_catalog(large_url, clock, ids, limits=PATIENT) as catalog:
        assert plan(catalog, clock, PlannerSettings(max_plan_extents=1_000)).jobs
        assert gc.isenabled()
        gc.disable()
        try:
            plan(catalog, clock, PlannerSettings(max_plan_extents=1_000))
            assert not gc.isenabled()
        finally:
            gc.enable()


def test_every_small_file_is_seen_over_time(reader: QueryReader) -> None:
    """A plan sees only three of the small files, but starts at sizes that change."""
    added = reader.add_small_files(100)
    settings = PlannerSettings(target_file_bytes=2**30)
    seen: set[object] = set()
    for minute in range(0, 2_000, 2):
        from_bytes = small_files_from(minute * 60_000, settings)
        found = reader.first_column("files_to_merge", {**MERGE, "from_bytes": from_bytes, "limit": 3})
        assert len(found) == 3
        seen.update(found)
    assert added <= seen


def test_mostly_dead_files_are_found_among_small_ones(reader: QueryReader) -> None:
    (mostly_dead,) = reader.add_mostly_dead_file()
    assert mostly_dead in reader.first_column("files_to_merge", {**MERGE, "from_bytes": 0, "limit": 2})


def test_mostly_dead_files_with_many_extents_are_found(reader: QueryReader) -> None:
    """Small files with many extents are left out, but a mostly dead one may have little live data."""
    (mostly_dead,) = reader.add_mostly_dead_file()
    wide = {**MERGE, "below_bytes": 2**40, "extents_each": 1, "from_bytes": 0, "limit": 10}
    assert mostly_dead in reader.first_column("files_to_merge", wide)
