"""How long the commit of an ingestion file takes, for 10, 100 and 1,000 partitions.

    python -m benchmarks.catalog_commit [--json] [--quick] [--extents N] [--catalog postgresql://…]

Each case commits files with one section per partition, once without and once with an idempotent producer in
every section. It is compared with two measurements of the same run on the same server: `select 1`, and a
single INSERT of the same number of extent rows. The server is a private one with durable settings unless
`--catalog` is given. With `--extents`, the table contains that many extents of other partitions before: they
must not affect the cost of a commit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click
import orjson
import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.parts.catalog_load import FileSource
from catalog.database import arrays
from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.open import EmbeddedPostgres, migrate_catalog, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.open import Catalog
    from core.ids import Ids

PARTITIONS = (10, 100, 1000)
WARM_UP = 10


def _milliseconds(call: Callable[[], object], rounds: int) -> dict[str, float]:
    taken = []
    for _ in range(rounds):
        begin = perf_counter()
        call()
        taken.append((perf_counter() - begin) * 1000)
    return _figures(taken)


def _figures(taken: list[float]) -> dict[str, float]:
    return {
        "p50_ms": round(median(taken), 3),
        "p99_ms": round(quantiles(taken, n=100)[98], 3),
        "min_ms": round(min(taken), 3),
    }


def _measure_commits(
    catalog: Catalog, ids: Ids, partitions: int, rounds: int, *, idempotent: bool
) -> dict[str, float]:
    topic = catalog.topics.create(f"bench-{ids.new_uuid()}", partitions)
    session_id = ids.new_uuid()
    catalog.sessions.register(session_id, "benchmark")
    source = FileSource(topic.topic_id, session_id, ids, producer_id=1 if idempotent else None)
    taken = []
    for _ in range(rounds + WARM_UP):
        commit = source.next_file(partitions)
        begin = perf_counter()
        catalog.commits.commit(commit)
        taken.append((perf_counter() - begin) * 1000)
    return _figures(taken[WARM_UP:])


_INSERT = b"""
INSERT INTO copied_extents
SELECT a, b, c, c, c, c, c, c, a, c, c, 0, 0, 0, 0, false, 0, NULL
FROM unnest(%s, %s, %s) AS v (a, b, c)
"""


def _measure_single_insert(
    connection: psycopg.Connection[Any], ids: Ids, partitions: int, rounds: int
) -> dict[str, float]:
    topic_ids = arrays.uuids([ids.new_uuid()] * partitions)
    partition_numbers = arrays.integers(range(partitions))
    offsets = iter(range(rounds + WARM_UP))

    def insert() -> None:
        connection.execute(
            _INSERT, (topic_ids, partition_numbers, arrays.bigints([next(offsets)] * partitions))
        )

    for _ in range(WARM_UP):
        insert()
    return _milliseconds(insert, rounds)


_FILL = b"""
INSERT INTO extents (
    topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,
    max_timestamp_so_far, file_id, position, length, index_position, index_length, offset_shift, leader_epoch,
    unique_keys, committed_ms
)
SELECT md5('topic' || n / 1000000)::uuid, n / 1000 %% 1000, n %% 1000 * 16, n %% 1000 * 16 + 15, 16, 1, 1, 1,
       md5('file' || n / 500)::uuid, n, 8192, 0, 0, 0, 0, false, 1
FROM generate_series(%s::bigint, %s::bigint - 1) AS n
"""
_FILLED_AT_ONCE = 1_000_000


def fill(connection: psycopg.Connection[Any], extents: int) -> None:
    """Insert extents of other partitions, a thousand each."""
    connection.execute("SET statement_timeout = 0")
    for begin in range(0, extents, _FILLED_AT_ONCE):
        connection.execute(_FILL, (begin, min(begin + _FILLED_AT_ONCE, extents)))
    connection.execute("ANALYZE extents")


def measure(url: str, rounds: int, extents: int = 0) -> dict[str, Any]:
    """Measure all cases on a server with this number of existing extents."""
    clock = SystemClock()
    ids = SystemIds(clock)
    migrate_catalog(url, clock, ids)
    with (
        open_catalog(url, clock, ids) as catalog,
        psycopg.connect(connection_string(url, DatabaseLimits()), autocommit=True) as connection,
    ):
        arrays.register(connection)
        fill(connection, extents)
        connection.execute("CREATE TEMPORARY TABLE marker (n int)")
        connection.execute("DROP TABLE IF EXISTS copied_extents")
        connection.execute("CREATE TABLE copied_extents (LIKE extents INCLUDING INDEXES)")
        bare = _milliseconds(lambda: connection.execute("SELECT 1"), rounds * 4)
        cases = []
        for partitions in PARTITIONS:
            commit = _measure_commits(catalog, ids, partitions, rounds, idempotent=False)
            idempotent = _measure_commits(catalog, ids, partitions, rounds, idempotent=True)
            insert = _measure_single_insert(connection, ids, partitions, rounds)
            cases.append(
                {
                    "partitions": partitions,
                    "commit": commit,
                    "commit_idempotent": idempotent,
                    "single_insert": insert,
                    "ratio_to_single_insert": round(commit["p50_ms"] / insert["p50_ms"], 2),
                    "ratio_to_select_1": round(commit["p50_ms"] / bare["p50_ms"], 1),
                }
            )
        connection.execute("DROP TABLE copied_extents")
    return {
        "benchmark": "catalog_commit",
        "rounds": rounds,
        "extents_before": extents,
        "select_1": bare,
        "cases": cases,
    }


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="Fewer rounds.")
@click.option("--extents", type=click.IntRange(min=0), default=0, help="Number of existing extents.")
@click.option("--catalog", "url", help="URL of a PostgreSQL database to use instead of a private one.")
def main(*, as_json: bool, quick: bool, extents: int, url: str | None) -> None:
    """Run the benchmark and print the report."""
    rounds = 40 if quick else 300
    if url is None:
        with (
            tempfile.TemporaryDirectory() as directory,
            EmbeddedPostgres(Path(directory) / "catalog") as server,
        ):
            report = measure(make_conninfo(server.url), rounds, extents)
    else:
        report = measure(url, rounds, extents)
    if as_json:
        print(orjson.dumps(report).decode())
        return
    print(f"select 1: {report['select_1']['p50_ms']} ms")
    for case in report["cases"]:
        print(
            f"{case['partitions']:>5} partitions: p50 {case['commit']['p50_ms']:>7} ms, "
            f"p99 {case['commit']['p99_ms']:>7} ms, idempotent p50 {case['commit_idempotent']['p50_ms']} ms, "
            f"{case['ratio_to_single_insert']} times a plain INSERT, "
            f"{case['ratio_to_select_1']} times select 1"
        )


if __name__ == "__main__":
    main()
