"""Whether wide ingestion files of ten agents are compacted faster than they arrive.

    python -m benchmarks.backlog [--json] [--quick] [--workers N …] [--rounds N] [--files N]
        [--plan-extents N]

Ten agents write files with a section for each of 1,000 shared partitions to a local store, and commit them to
a private PostgreSQL with durable settings, as fast as they can. The files are built before. So `arrival` is
more than agents can sustain that also serve producers. Then a watcher compacts them until no ingestion file
is left, in a warm Spark session with 1, 2 and 4 task slots (`local[N]`), as `siltstone compact --watch` does.
Each round has a new database and store. All processes share one machine.

- `files_s`, `extents_s`, `records_s`: medians over the rounds, of arrival and of each number of workers.
  `spread` is the difference between the slowest and the fastest round, divided by the median.
- `of_arrival`: files compacted in a second, divided by the files that arrived in a second in the same round.
- `jobs`: ingestion jobs.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import orjson
import psycopg
import structlog
from psycopg.conninfo import make_conninfo

from benchmarks.parts.catalog_load import worker
from benchmarks.parts.measuring import machine
from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.model import BatchRun, FileCommit, SectionCommit
from catalog.open import EmbeddedPostgres, migrate_catalog, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_format.record_batch.records import encode_batch
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.names import ingestion_name
from object_store.open import StoreConfig, open_store
from siltstone.compaction.compactor import CompactionOptions
from siltstone.compaction.watcher import Watcher
from siltstone.context import AppContext
from siltstone.interrupts import Interrupts
from siltstone.settings.sources import load_settings
from spark_jobs.session.spark_session import SparkSettings
from spark_jobs.session_manager import SparkSessionManager

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from uuid import UUID

    from catalog.open import Catalog
    from object_store.interface import ObjectStore

AGENTS: Final = 10
_PROCESSES: Final = 2
_VALUE: Final = bytes(100)
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Load:
    """Files of each agent, sections of a file, and records of a section."""

    files: int = 6
    partitions: int = 1000
    records: int = 10

    @property
    def total_files(self) -> int:
        """Number of files of all agents."""
        return AGENTS * self.files


class Place(NamedTuple):
    """Catalog, store and topic of one round, and what to write there."""

    catalog: str
    store: str
    topic_id: UUID
    load: Load


class Rates(NamedTuple):
    """Outcome of one round: files in a second, and the number of jobs of a drain."""

    files_s: float
    jobs: int = 0


def serve_agents(pipe: Connection, agents: int) -> None:
    """Write and commit the files of some agents whenever a place arrives; send the number of seconds."""
    clock = SystemClock()
    ids = SystemIds(clock)
    pipe.send("ready")
    while (place := pipe.recv()) is not None:
        with (
            open_catalog(place.catalog, clock, ids) as catalog,
            closing(open_store(StoreConfig(place.store), clock, ids)) as store,
        ):
            ready = []
            for _ in range(agents):
                session_id = ids.new_uuid()
                catalog.sessions.register(session_id, "a benchmark")
                files = [
                    build_file(place.load, place.topic_id, session_id, ids.new_uuid())
                    for _ in range(place.load.files)
                ]
                ready.append(files)
            pipe.send("built")
            pipe.recv()

            begin = perf_counter()
            threads = [threading.Thread(target=_write, args=(catalog, store, files)) for files in ready]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            pipe.send(perf_counter() - begin)


def _write(catalog: Catalog, store: ObjectStore, files: list[tuple[FileCommit, list[bytes]]]) -> None:
    for commit, parts in files:
        store.put(commit.object_name, parts, purpose=Purpose.INGEST)
        catalog.commits.commit(commit)


def build_file(load: Load, topic_id: UUID, session_id: UUID, file_id: UUID) -> tuple[FileCommit, list[bytes]]:
    """Return an ingestion file and its commit: one batch of new keys for each partition."""
    now_ms = SystemClock().now_ms()
    parts: list[bytes] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.INGESTION,
        file_id=file_id,
        writer_id=session_id,
        created_ms=now_ms,
        sink=lambda part: parts.append(bytes(part)),
    )
    keys = [file_id.bytes + bytes([number]) for number in range(load.records)]
    batch = encode_batch([now_ms] * load.records, keys, [_VALUE] * load.records)
    run = BatchRun(
        first_offset=0,
        offset_count=load.records,
        record_count=load.records,
        min_timestamp=now_ms,
        max_timestamp=now_ms,
    )
    sections = []
    for partition in range(load.partitions):
        writer.begin_section(topic_id, partition)
        writer.append(batch)
        entry = writer.end_section(
            base_offset=0,
            last_offset=load.records - 1,
            record_count=load.records,
            min_timestamp=now_ms,
            max_timestamp=now_ms,
        )
        sections.append(
            SectionCommit(
                topic_id=topic_id,
                partition=partition,
                position=entry.data_position,
                length=entry.data_length,
                runs=(run,),
            )
        )
    summary = writer.finish()
    commit = FileCommit(
        file_id=file_id,
        object_name=ingestion_name(session_id, file_id),
        size=summary.size,
        directory_length=summary.directory_length,
        session_id=session_id,
        sections=tuple(sections),
    )
    return commit, parts


def arrive(agents: list[Connection], place: Place) -> Rates:
    """Let all agents write their files at once."""
    for pipe in agents:
        pipe.send(place)
    for pipe in agents:
        pipe.recv()
    for pipe in agents:
        pipe.send("go")
    seconds = max(pipe.recv() for pipe in agents)
    return Rates(place.load.total_files / seconds)


def drain(context: AppContext, session: SparkSessionManager, load: Load, plan_extents: int | None) -> Rates:
    """Compact until no ingestion file is left."""
    bound = {} if plan_extents is None else {"max_plan_extents": plan_extents}
    settings = load_settings({"max_ingestion_age_ms": 0, **bound})
    watcher = Watcher(context, settings, CompactionOptions(), session=session)
    interrupts = Interrupts()
    begin = perf_counter()
    while context.catalog.planning.backlog().ingestion_files or context.catalog.jobs.claimable():
        interrupts.wait(min(watcher.poll(interrupts), _POLL_SECONDS))
        done = watcher.status.run.compaction
        if done.failures:
            raise RuntimeError(f"a job failed: {done.failures[0].message}")
    return Rates(load.total_files / (perf_counter() - begin), watcher.status.run.compaction.jobs_completed)


class Bench:
    """A PostgreSQL server and a directory; each round has a new database and a new store."""

    def __init__(self, url: str, directory: Path, plan_extents: int | None = None) -> None:
        self._url = url
        self._directory = directory
        self._plan_extents = plan_extents
        self._clock = SystemClock()
        self._ids = SystemIds(self._clock)

    def round(
        self, agents: list[Connection], session: SparkSessionManager, load: Load
    ) -> tuple[Rates, Rates]:
        """Let files arrive, and compact them; return the rates of both."""
        name = f"round_{self._ids.new_uuid().hex}"
        with psycopg.connect(connection_string(self._url, DatabaseLimits()), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        url = make_conninfo(self._url, dbname=name)
        migrate_catalog(url, self._clock, self._ids)
        config = StoreConfig(str(self._directory / name))
        with (
            open_catalog(url, self._clock, self._ids) as catalog,
            closing(open_store(config, self._clock, self._ids)) as store,
        ):
            verify_binding(store, catalog.store_binding, self._ids)
            topic = catalog.topics.create("wide", load.partitions, {"cleanup.policy": "compact"})
            context = AppContext(
                catalog=catalog, store=store, store_config=config, clock=catalog.clock, ids=self._ids
            )
            arrival = arrive(agents, Place(url, str(self._directory / name), topic.topic_id, load))
            return arrival, drain(context, session, load, self._plan_extents)


def measure(bench: Bench, load: Load, workers: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Measure all numbers of workers; a small first round of each starts Spark's processes."""
    cases = []
    with ExitStack() as opened:
        agents = [opened.enter_context(worker(serve_agents, AGENTS // _PROCESSES)) for _ in range(_PROCESSES)]
        for slots in workers:
            with SparkSessionManager(SparkSettings(master=f"local[{slots}]")) as session:
                session.start()
                bench.round(agents, session, replace(load, files=1))
                cases.append(
                    case_of(slots, load, [bench.round(agents, session, load) for _ in range(rounds)])
                )
    return {
        "benchmark": "backlog",
        "machine": machine(),
        "agents": AGENTS,
        "files": load.total_files,
        "partitions": load.partitions,
        "records": load.records,
        "rounds": rounds,
        "cases": cases,
    }


def case_of(workers: int, load: Load, rounds: list[tuple[Rates, Rates]]) -> dict[str, Any]:
    """Return the figures of one number of workers."""
    drains = [drained for _, drained in rounds]
    return {
        "workers": workers,
        "arrival": _rates([arrival for arrival, _ in rounds], load),
        "drain": _rates(drains, load),
        "of_arrival": round(median(drained.files_s / arrival.files_s for arrival, drained in rounds), 2),
        "jobs": max(each.jobs for each in drains),
    }


def _rates(found: list[Rates], load: Load) -> dict[str, float]:
    files = [each.files_s for each in found]
    middle = median(files)
    return {
        "files_s": round(middle, 1),
        "extents_s": round(middle * load.partitions),
        "records_s": round(middle * load.partitions * load.records),
        "spread": round((max(files) - min(files)) / middle, 2),
    }


def _print(report: dict[str, Any]) -> None:
    print(f"{report['files']} files of {report['partitions']} partitions by {report['agents']} agents")
    print(f"{'':<12} {'files/s':>8} {'extents/s':>10} {'records/s':>10} {'spread':>7} {'of arrival':>11}")
    for case in report["cases"]:
        for name, what in (("arrival", "arrival"), ("drain", f"{case['workers']} workers")):
            rates = case[name]
            end = f"{case['of_arrival']:>11}" if name == "drain" else ""
            print(
                f"{what:<12} {rates['files_s']:>8} {rates['extents_s']:>10,} {rates['records_s']:>10,}"
                f" {rates['spread']:>7} {end}"
            )


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="A third of the files, one round, one number of workers.")
@click.option("--workers", type=int, multiple=True, default=(1, 2, 4), help="Numbers of task slots.")
@click.option("--rounds", type=int, default=3, help="Rounds of each number of workers.")
@click.option("--files", type=int, default=Load.files, help="Files of each agent.")
@click.option("--plan-extents", type=int, help="`max_plan_extents` of the watcher.")
def main(
    *, as_json: bool, quick: bool, workers: tuple[int, ...], rounds: int, files: int, plan_extents: int | None
) -> None:
    """Run the benchmark and print the report."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    load = Load(files=2 if quick else files)
    with (
        tempfile.TemporaryDirectory(prefix="siltstone-backlog-") as name,
        EmbeddedPostgres(Path(name) / "catalog") as server,
    ):
        done = measure(
            Bench(server.url, Path(name), plan_extents),
            load,
            workers[1:2] or workers if quick else workers,
            1 if quick else rounds,
        )
    if as_json:
        print(orjson.dumps(done).decode())
    else:
        _print(done)


if __name__ == "__main__":
    main()
