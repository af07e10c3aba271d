"""How long planning, retention and a check of bounds take on a large catalog.

    python -m benchmarks.planning [--json] [--quick] [--catalog postgresql://…]

Fills a catalog with rows only (no objects): 100,000 partitions in 200 topics, half of them compacted, and
1,000,000 extents in 500 ingestion and 2,000 compacted files. The times are compared with a scan of the
partitions' rows, and with the transfer of as many extents as the plan examined, in the same run. `idle_look`
is what a watcher does between two polls while nothing has changed: all ingestion files wait for more. The
server is a private one with durable settings unless `--catalog` names another one, which must be empty.
"""

from __future__ import annotations

import resource
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import click
import orjson
import psycopg

from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.open import EmbeddedPostgres, migrate_catalog, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from maintenance.retention import expire
from maintenance.settings import MaintenanceSettings
from object_store.local.store import LocalStore
from object_store.open import StoreConfig
from planner.planner import plan
from planner.settings import PlannerSettings
from planner.snapshot_loader import load_snapshot
from siltstone.compaction.compactor import plan_jobs
from siltstone.compaction.pause import waiting_pause
from siltstone.compaction.shared_look import settings_key
from siltstone.context import AppContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.open import Catalog
    from planner.snapshot import Snapshot

INGESTION_FILES = 500
_FAR = 10**15
# Nothing waits long enough, so that no look is due.
_PATIENT = PlannerSettings(
    paced=True,
    min_ingestion_files=_FAR,
    max_job_files=_FAR,
    min_ingestion_bytes=_FAR,
    max_job_input_bytes=_FAR,
    max_job_extents=_FAR,
    max_plan_extents=_FAR,
    max_ingestion_age_ms=_FAR,
)


@dataclass(frozen=True)
class Size:
    """Size of the catalog. Partitions have equal numbers of extents, the last in an ingestion file."""

    topics: int = 200
    partitions: int = 500
    extents_each: int = 10

    @property
    def extents(self) -> int:
        """Total number of extents."""
        return self.topics * self.partitions * self.extents_each


_TOPICS = b"""
INSERT INTO topics (topic_id, name, partition_count, config, created_ms)
SELECT md5('topic' || t)::uuid, 'topic-' || t, %(partitions)s,
       CASE WHEN t %% 2 = 0 THEN '{"cleanup.policy": "compact"}' ELSE '{}' END::jsonb, 1
FROM generate_series(1, %(topics)s) AS t
"""
# Every tenth partition of compacted topics is due and completely dirty; a tenth of the others is dirty.
_PARTITIONS = b"""
INSERT INTO partitions (
    topic_id, partition, last_stable_offset, high_watermark, log_end_offset, first_dirty_offset,
    max_timestamp, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents, compacted_extents
)
SELECT md5('topic' || t)::uuid, p, 100 * n, 100 * n, 100 * n,
       CASE WHEN p %% 10 = 0 THEN 0 ELSE 100 * (n - 1) END, %(now_ms)s, 1000 * n,
       CASE WHEN p %% 10 = 0 THEN 1000 * n ELSE 1000 END, %(now_ms)s, 1, n - 1
FROM generate_series(1, %(topics)s) AS t, generate_series(0, %(partitions)s - 1) AS p,
     (SELECT %(extents_each)s AS n) AS v
"""
_FILES = b"""
INSERT INTO files (
    file_id, object_name, kind, size, directory_length, owner_id, committed_ms, live_extents,
    initial_bytes, live_bytes
)
SELECT file_id, 'v1/' || kind || '/' || number, kind, 8388608, 1, file_id, %(now_ms)s, count(*), sum(length),
       sum(length)
FROM (SELECT DISTINCT ON (e.topic_id, e.partition, e.base_offset) e.file_id, f.kind, f.number, e.length
      FROM extents AS e JOIN file_names AS f USING (file_id)) AS v
GROUP BY file_id, kind, number
"""
_FILE_NAMES = b"""
CREATE TEMPORARY TABLE file_names AS
SELECT md5(kind || number)::uuid AS file_id, kind, number
FROM (VALUES ('ingestion', %(ingestion)s), ('compacted', %(compacted)s)) AS k (kind, files),
     generate_series(0, files - 1) AS number
"""
_EXTENTS = b"""
INSERT INTO extents (
    topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,
    max_timestamp_so_far, file_id, position, length, index_position, index_length, offset_shift, leader_epoch,
    unique_keys, committed_ms
)
SELECT md5('topic' || t)::uuid, p, 100 * e, 100 * e + 99, 100, %(now_ms)s, %(now_ms)s, %(now_ms)s,
       CASE WHEN e = %(extents_each)s - 1
            THEN md5('ingestion' || (p + t) %% %(ingestion)s)
            ELSE md5('compacted' || (t * 10 + p %% 10) %% %(compacted)s) END::uuid,
       1000 * p + e, 1000, 0, 0, 0, 0, true, %(now_ms)s
FROM generate_series(1, %(topics)s) AS t, generate_series(0, %(partitions)s - 1) AS p,
     generate_series(0, %(extents_each)s - 1) AS e
"""


def fill(url: str, size: Size) -> None:
    """Create the rows with SQL only."""
    params = {
        "topics": size.topics,
        "partitions": size.partitions,
        "extents_each": size.extents_each,
        "ingestion": INGESTION_FILES,
        "compacted": size.topics * 10,
        "now_ms": SystemClock().now_ms(),
    }
    with psycopg.connect(connection_string(url, DatabaseLimits(statement_seconds=3600))) as connection:
        for statement in (_TOPICS, _PARTITIONS, _FILE_NAMES, _EXTENTS, _FILES):
            connection.execute(statement, params)
        connection.commit()
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")


def _timed(call: Callable[[], object], rounds: int) -> dict[str, float]:
    seconds, processor = [], []
    for _ in range(rounds):
        begin, used = perf_counter(), process_time()
        call()
        seconds.append(perf_counter() - begin)
        processor.append(process_time() - used)
    return {"p50_s": round(median(seconds), 3), "processor_s": round(median(processor), 3)}


def _rest(context: AppContext) -> None:
    """Record a look that found nothing to do."""
    looks = context.catalog.looks
    settings = settings_key(_PATIENT)
    look_id = looks.begin(settings, looks.last(settings))
    assert look_id is not None
    looks.finish(look_id, context.clock.now_ms() + _PATIENT.max_look_age_ms)


def _poll(context: AppContext) -> None:
    """Do what a watcher does in a poll without a job."""
    context.catalog.sessions.check_schema()
    assert waiting_pause(context) is None
    planned = plan_jobs(context, _PATIENT, MaintenanceSettings(), slots=4, shares_looks=True)
    assert not planned.waiting
    assert not planned.is_elsewhere
    assert context.catalog.planning.backlog().ingestion_files == INGESTION_FILES


def measure(url: str, size: Size, rounds: int) -> dict[str, Any]:
    """Plan, expire, and read the same data with plain queries."""
    clock = SystemClock()
    fill(url, size)
    settings = PlannerSettings()
    seen: dict[str, Any] = {}

    def load(catalog: Catalog) -> Snapshot:
        snapshot = load_snapshot(catalog, catalog.clock.now_ms(), settings)
        seen["extents"] = sum(len(view.extents) for view in snapshot.partitions) + sum(
            len(file.extents) for file in snapshot.mergeable
        )
        seen["partitions"] = len(snapshot.partitions)
        return snapshot

    with (
        tempfile.TemporaryDirectory() as directory,
        open_catalog(url, clock, SystemIds(clock)) as catalog,
        closing(LocalStore(Path(directory), SystemIds(clock))) as store,
        psycopg.connect(connection_string(url, DatabaseLimits()), autocommit=True) as connection,
    ):
        loading = _timed(lambda: load(catalog), rounds)
        planning = _timed(lambda: seen.update(jobs=len(plan(catalog, clock, settings).jobs)), rounds)
        context = AppContext(
            catalog=catalog,
            store=store,
            store_config=StoreConfig(directory),
            clock=catalog.clock,
            ids=SystemIds(clock),
        )
        _rest(context)
        idle = _timed(lambda: _poll(context), rounds)
        retention = _timed(lambda: expire(catalog), rounds)
        scan = _timed(
            lambda: connection.execute("SELECT sum(dirty_bytes) FROM partitions").fetchall(), rounds
        )
        read = b"SELECT * FROM extents ORDER BY topic_id, partition, base_offset LIMIT %s"
        transfer = _timed(
            lambda: connection.execute(read, (seen["extents"],), binary=True).fetchall(), rounds
        )
    return {
        "benchmark": "planning",
        "partitions": size.topics * size.partitions,
        "extents": size.extents,
        "looked_at": seen,
        "snapshot": loading,
        "plan": planning,
        "idle_look": idle,
        "retention_round": retention,
        "scan_partitions": scan,
        "transfer_same_extents": transfer,
        "ratio_to_transfer": round(planning["p50_s"] / transfer["p50_s"], 2),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="A tenth of the partitions, fewer rounds.")
@click.option("--catalog", "url", help="URL of an empty PostgreSQL database to use instead of a private one.")
def main(*, as_json: bool, quick: bool, url: str | None) -> None:
    """Run the benchmark and print the report."""
    size, rounds = (Size(topics=20), 2) if quick else (Size(), 5)
    if url is None:
        with (
            tempfile.TemporaryDirectory() as directory,
            EmbeddedPostgres(Path(directory) / "catalog") as server,
        ):
            report = _opened(server.url, size, rounds)
    else:
        report = _opened(url, size, rounds)
    if as_json:
        print(orjson.dumps(report).decode())
        return
    print(
        f"{report['partitions']:,} partitions, {report['extents']:,} extents; looked at {report['looked_at']}"
    )
    for name in (
        "snapshot",
        "plan",
        "idle_look",
        "retention_round",
        "scan_partitions",
        "transfer_same_extents",
    ):
        print(f"{name:>22}: p50 {report[name]['p50_s']} s, processor {report[name]['processor_s']} s")
    print(
        f"planning takes {report['ratio_to_transfer']} times that transfer; peak {report['peak_rss_mib']} MiB"
    )


def _opened(url: str, size: Size, rounds: int) -> dict[str, Any]:
    clock = SystemClock()
    migrate_catalog(url, clock, SystemIds(clock))
    return measure(url, size, rounds)


if __name__ == "__main__":
    main()
