"""What planning reads of a large catalog follows what it is answered: counted, not timed."""

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
_SMALL_FILES: Final = b"""
INSERT INTO files (
    file_id, object_name, kind, size, directory_length, owner_id, committed_ms, live_extents, claimed_extents,
    initial_bytes, live_bytes
)
SELECT gen_random_uuid(), 'small/' || n, 'compacted', 1, 1, gen_random_uuid(), 1, 2, 0, size, size
FROM generate_series(1, %s) AS n, LATERAL (SELECT power(1.2, n %% 100)::bigint + n AS size) AS v
RETURNING file_id
"""
_DYING_FILE: Final = b"""
INSERT INTO files (
    file_id, object_name, kind, size, directory_length, owner_id, committed_ms, live_extents, initial_bytes,
    live_bytes
)
VALUES (gen_random_uuid(), 'dying', 'compacted', 1, 1, gen_random_uuid(), 1, 2, 10 * 2^30, 2^30)
RETURNING file_id
"""


@pytest.fixture(scope="module")
def large_url(postgres: PostgresForTests) -> Iterator[str]:
    """A catalog of 3,000 partitions with 30,000 extents in 500 ingestion and 100 compacted files."""
    url = postgres.create()
    fill(url, LARGE)
    yield url
    postgres.drop(url)


class Reading:
    """Runs queries of the planner, and counts the rows that they answer and that their plans read."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, row_factory=scalar_row)
        arrays.register(self._connection)

    def close(self) -> None:
        self._connection.close()

    def column(self, statement: str) -> list[Any]:
        """The first column of what a statement of the test's own answers."""
        return self._connection.execute(statement.encode()).fetchall()

    def answers(self, name: str, params: Mapping[str, object]) -> list[Any]:
        """The first column of what a query of the planner answers."""
        return self._connection.execute(QUERIES[name].sql, params).fetchall()

    def pairs(self, params: Mapping[str, object]) -> list[tuple[str, int]]:
        """The partitions that are fragmented, as the planner is told."""
        rows = self._connection.cursor(row_factory=tuple_row).execute(
            QUERIES["fragmented_partitions"].sql, params
        )
        return [(str(row[0]), row[1]) for row in rows]

    def add_small_files(self, count: int) -> set[Any]:
        """Compacted files of many sizes below 1 GB, by their ids; gone once this is closed."""
        added = self._connection.execute(_SMALL_FILES, (count,)).fetchall()
        self._connection.execute("ANALYZE files")
        return set(added)

    def add_dying_file(self) -> list[Any]:
        """A large file of which most is dead; its id."""
        return self._connection.execute(_DYING_FILE).fetchall()

    def rows(self, name: str, params: Mapping[str, object]) -> tuple[int, int]:
        """How many rows a query answers, and how many its scans look at."""
        statement = b"EXPLAIN (ANALYZE, FORMAT JSON) " + QUERIES[name].sql
        (report,) = self._connection.execute(statement, params).fetchall()
        root = report[0]["Plan"]
        return int(root["Actual Rows"]), round(_looked_at(root))


def _looked_at(node: dict[str, Any]) -> float:
    """The rows that the scans of tables below a node gave or threw away."""
    seen = 0.0
    if "Relation Name" in node:
        thrown = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        seen = (node["Actual Rows"] + thrown) * node["Actual Loops"]
    return seen + sum(_looked_at(child) for child in node.get("Plans", ()))


@pytest.fixture
def reading(large_url: str) -> Iterator[Reading]:
    opened = Reading(large_url)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", ["unclaimed_extents_of_files", "extents_of_files"])
def test_the_extents_of_a_few_files_are_read_alone(reading: Reading, name: str) -> None:
    """Per extent one row of its own and one of its partition, per file one: nothing of all others."""
    for kind, files in (("ingestion", 20), ("compacted", 2)):
        some = reading.column(f"SELECT file_id FROM files WHERE kind = '{kind}' LIMIT {files}")
        answered, read = reading.rows(name, {"file_ids": arrays.uuids(some)})
        assert 100 < answered < 2_000
        assert read <= 2 * answered + files


def test_files_to_merge_are_found_by_index(reading: Reading) -> None:
    """Of both sorts about a page, however many other files there are."""
    reading.add_small_files(20_000)
    for from_bytes in (0, 2_000_000, 500_000_000):
        params = {**MERGE, "from_bytes": from_bytes, "limit": 10}
        answered, read = reading.rows("files_to_merge", params)
        assert answered == 10
        assert read <= 10 * answered


def test_ingestion_files_are_found_by_index(reading: Reading) -> None:
    answered, read = reading.rows("files_to_compact", {"limit": 10, "max_extents": 10_000})
    assert answered == 10
    assert read <= 2 * answered


def test_the_extents_of_some_partitions_are_read_alone(reading: Reading) -> None:
    """Per extent itself and its file at most, per partition its row and the probe for its beginning."""
    topics = reading.column("SELECT topic_id FROM topics ORDER BY topic_id LIMIT 2")
    keys = [(topic, partition) for topic in topics for partition in range(50)]
    params = {
        "topic_ids": arrays.uuids(topic for topic, _ in keys),
        "partitions": arrays.integers([partition for _, partition in keys]),
        "offsets": arrays.bigints([0] * len(keys)),
        "limit": 1_000,
    }
    answered, read = reading.rows("extents_of", params)
    assert answered == 1_000
    assert read <= 2 * answered + 2 * len(keys) + 600  # a scan of all files may be the better plan


def test_the_newest_extents_of_some_partitions_are_read_alone(reading: Reading) -> None:
    """Per extent itself and its file, also of those in ingestion files, which come first; nothing older."""
    topics = reading.column("SELECT topic_id FROM topics ORDER BY topic_id LIMIT 2")
    keys = [(topic, partition) for topic in topics for partition in range(50)]
    params = {
        "topic_ids": arrays.uuids(topic for topic, _ in keys),
        "partitions": arrays.integers([partition for _, partition in keys]),
        "limit": 4,
    }
    answered, read = reading.rows("newest_compacted_extents", params)
    assert answered == 4 * len(keys)
    assert read <= 2 * (answered + len(keys)) + len(keys)


def test_fragmented_partitions_are_neighbours_and_each_comes_up(reading: Reading) -> None:
    """A plan sees as many as it may, from some part of them on and round the end."""
    everything = reading.pairs({"section_bytes": 2**20, "resting_extents": 1, "start": 0.0, "limit": 10_000})
    assert len(everything) == LARGE.topics * LARGE.partitions
    assert everything == sorted(everything)
    seen: set[object] = set()
    for second in range(400):
        params = {"section_bytes": 2**20, "resting_extents": 1, "start": hashed(second), "limit": 100}
        found = reading.pairs(params)
        first = everything.index(found[0])
        assert found == [*everything[first:], *everything[:first]][:100]
        seen.update(found)
    assert len(seen) == len(everything)


def test_a_snapshot_holds_no_more_extents_than_its_bound(large_url: str, clock: Clock, ids: Ids) -> None:
    """Ingestion files, partitions to be cleaned or sorted, files to be merged share it; each gets some."""
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


def test_the_collector_of_cycles_is_left_as_it_was(large_url: str, clock: Clock, ids: Ids) -> None:
    with open_catalog(large_url, clock, ids, limits=PATIENT) as catalog:
        assert plan(catalog, clock, PlannerSettings(max_plan_extents=1_000)).jobs
        assert gc.isenabled()
        gc.disable()
        try:
            plan(catalog, clock, PlannerSettings(max_plan_extents=1_000))
            assert not gc.isenabled()
        finally:
            gc.enable()


def test_no_small_file_is_out_of_sight_for_ever(reading: Reading) -> None:
    """A plan sees three of two hundred small files here; over even minutes, say, each of many sizes comes."""
    added = reading.add_small_files(100)
    settings = PlannerSettings(target_file_bytes=2**30)
    seen: set[object] = set()
    for minute in range(0, 2_000, 2):
        from_bytes = small_files_from(minute * 60_000, settings)
        found = reading.answers("files_to_merge", {**MERGE, "from_bytes": from_bytes, "limit": 3})
        assert len(found) == 3
        seen.update(found)
    assert added <= seen


def test_mostly_dead_files_have_their_turn_beside_small_ones(reading: Reading) -> None:
    (dying,) = reading.add_dying_file()
    assert dying in reading.answers("files_to_merge", {**MERGE, "from_bytes": 0, "limit": 2})


def test_mostly_dead_files_are_seen_that_are_too_wide_to_be_merged(reading: Reading) -> None:
    """Little may be left of them: among the small ones they are left out for their many extents."""
    (dying,) = reading.add_dying_file()
    wide = {**MERGE, "below_bytes": 2**40, "extents_each": 1, "from_bytes": 0, "limit": 10}
    assert dying in reading.answers("files_to_merge", wide)
