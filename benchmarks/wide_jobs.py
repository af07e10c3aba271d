"""What jobs over wide files cost their driver and PostgreSQL, apart from the tasks.

    python -m benchmarks.wide_jobs [--json] [--quick] [--rounds N] [--files N] [--partitions N]

Files with a section for each of 1,000 partitions are committed to a private PostgreSQL with durable settings.
Then a driver plans their compaction, submits the jobs, claims them and publishes results that are made up:
one file with one extent for each partition. In each round this is done twice, each time with a new database:
once the jobs claim whole files, as planned, and once they claim each extent (`one by one`).

- `driver_us`: processor time of the driver for each input extent, `pg_us`: that of PostgreSQL.
- `wal_bytes`: WAL for each input extent, without images of full pages.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import click
import orjson
import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.backlog import Load, build_file
from benchmarks.parts.measuring import machine
from benchmarks.parts.postgres_server import PostgresServer
from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.jobs.validation import inputs_by_partition
from catalog.model import JobResult, OutputExtent, OutputFile
from catalog.open import EmbeddedPostgres, migrate_catalog, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from planner.planner import plan, submit
from planner.settings import PlannerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.model import Job
    from catalog.open import Catalog
    from planner.plan import Plan

STEPS: Final = ("plan", "submit", "claim", "publish")
_MAX_CLAIMED: Final = 100
_SETTINGS: Final = {"max_wal_size": "8GB", "wal_keep_size": "8GB"}  # pg_waldump reads the WAL of each step


@dataclass
class Costs:
    """Totals of one step."""

    driver_seconds: float = 0.0
    postgres_seconds: float = 0.0
    wal_bytes: int = 0


@dataclass
class Taken:
    """Costs of each step of one pass over all files."""

    extents: int = 0
    jobs: int = 0
    steps: dict[str, Costs] = field(default_factory=lambda: {name: Costs() for name in STEPS})

    def figures(self, name: str) -> dict[str, float]:
        """Return the costs of a step, or of all of them, for each extent."""
        found = [self.steps[name]] if name in self.steps else list(self.steps.values())
        return {
            "driver_us": 1e6 * sum(each.driver_seconds for each in found) / self.extents,
            "pg_us": 1e6 * sum(each.postgres_seconds for each in found) / self.extents,
            "wal_bytes": sum(each.wal_bytes for each in found) / self.extents,
        }


class Bench:
    """A PostgreSQL server; each pass has a new database."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory
        self._clock = SystemClock()
        self._ids = SystemIds(self._clock)

    def compact(self, load: Load, *, claims_files: bool) -> Taken:
        """Commit files, and run the driver's part of their compaction."""
        name = f"pass_{self._ids.new_uuid().hex}"
        with psycopg.connect(connection_string(self._url, DatabaseLimits()), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
            url = make_conninfo(self._url, dbname=name)
            migrate_catalog(url, self._clock, self._ids)
            server = PostgresServer(connection, self._directory)
            with closing(open_catalog(url, self._clock, self._ids)) as catalog:
                self._commit(catalog, load)
                return self._drive(catalog, server, claims_files=claims_files)

    def _commit(self, catalog: Catalog, load: Load) -> None:
        topic = catalog.topics.create("wide", load.partitions, {"cleanup.policy": "compact"})
        session_id = self._ids.new_uuid()
        catalog.sessions.register(session_id, "a benchmark")
        for _ in range(load.files):
            commit, _ = build_file(load, topic.topic_id, session_id, self._ids.new_uuid())
            catalog.commits.commit(commit)

    def _drive(self, catalog: Catalog, server: PostgresServer, *, claims_files: bool) -> Taken:
        taken, settings, after = Taken(), PlannerSettings(), None
        while catalog.planning.backlog().ingestion_files:
            with _measured(taken.steps["plan"], server):
                planned = plan(catalog, self._clock, settings, after=after)
            after = planned.ingestion_end
            if not claims_files:
                planned = _one_by_one(planned)
            with _measured(taken.steps["submit"], server):
                submit(catalog, self._clock, self._ids, settings, planned)
            with _measured(taken.steps["claim"], server):
                jobs = catalog.jobs.claim("a benchmark", _MAX_CLAIMED)
            for job in jobs:
                result = self._result(job)
                taken.jobs += 1
                taken.extents += sum(len(file.extents) for file in job.spec.inputs)
                with _measured(taken.steps["publish"], server):
                    catalog.jobs.complete(result, job.spec)
        return taken

    def _result(self, job: Job) -> JobResult:
        """Return a result with one file that has one extent for each partition."""
        assert job.attempt_id is not None
        outputs = []
        for number, (key, extents) in enumerate(sorted(inputs_by_partition(job.spec).items())):
            outputs.append(
                OutputExtent(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    base_offset=extents[0].base_offset,
                    last_offset=extents[-1].last_offset,
                    record_count=sum(each.record_count for each in extents),
                    min_timestamp=extents[0].min_timestamp,
                    max_timestamp=extents[-1].max_timestamp,
                    position=1000 * number,
                    length=1000,
                    index_position=0,
                    index_length=0,
                    unique_keys=True,
                )
            )
        file_id = self._ids.new_uuid()
        file = OutputFile(
            file_id=file_id,
            object_name=f"v2/00/compact/{job.spec.job_id}/{job.attempt_id}/{file_id}.seg",
            size=1000 * len(outputs),
            directory_length=100,
            extents=tuple(outputs),
        )
        return JobResult(job_id=job.spec.job_id, attempt_id=job.attempt_id, files=(file,))


@contextmanager
def _measured(costs: Costs, server: PostgresServer) -> Iterator[None]:
    position, postgres, driver = server.position(), server.processor_seconds(), time.process_time()
    yield
    costs.driver_seconds += time.process_time() - driver
    costs.postgres_seconds += server.processor_seconds() - postgres
    record_bytes, _ = server.wal_bytes(position, server.position())
    costs.wal_bytes += record_bytes


def _one_by_one(planned: Plan) -> Plan:
    """Return the plan with jobs that claim each extent."""
    return replace(
        planned,
        jobs=tuple(
            replace(job, inputs=tuple(replace(file, is_whole=False) for file in job.inputs))
            for job in planned.jobs
        ),
    )


def measure(url: str, directory: Path, load: Load, rounds: int) -> dict[str, Any]:
    """Measure both kinds of claims alternately."""
    bench = Bench(url, directory)
    whole: list[Taken] = []
    single: list[Taken] = []
    for _ in range(rounds):
        whole.append(bench.compact(load, claims_files=True))
        single.append(bench.compact(load, claims_files=False))
    return {
        "benchmark": "wide_jobs",
        "machine": machine(),
        "files": load.files,
        "partitions": load.partitions,
        "jobs": whole[0].jobs,
        "rounds": rounds,
        "steps": [
            {"step": name, "whole_files": _medians(whole, name), "one_by_one": _medians(single, name)}
            for name in (*STEPS, "all")
        ],
    }


def _medians(passes: list[Taken], name: str) -> dict[str, float]:
    figures = [each.figures(name) for each in passes]
    return {key: round(median(each[key] for each in figures), 1) for key in figures[0]}


def _print(report: dict[str, Any]) -> None:
    print(f"{report['files']} files of {report['partitions']} partitions, {report['jobs']} jobs; by extent")
    print(f"{'':<9} {'whole files':^32}   {'one by one':^32}")
    names = ("driver_us", "pg_us", "wal_bytes")
    print(f"{'':<9}" + 2 * ("".join(f"{name:>11}" for name in names) + "  "))
    for step in report["steps"]:
        figures = (
            "".join(f"{step[kind][name]:>11}" for name in names) for kind in ("whole_files", "one_by_one")
        )
        print(f"{step['step']:<9}" + "  ".join(figures))


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="A third of the files, one round.")
@click.option("--rounds", type=int, default=3, help="Rounds.")
@click.option("--files", type=int, default=60, help="Files.")
@click.option("--partitions", type=int, default=1000, help="Partitions of each file.")
def main(*, as_json: bool, quick: bool, rounds: int, files: int, partitions: int) -> None:
    """Run the benchmark and print the report."""
    load = Load(files=files // 3 if quick else files, partitions=partitions)
    with (
        tempfile.TemporaryDirectory(prefix="siltstone-wide-jobs-") as name,
        EmbeddedPostgres(Path(name) / "catalog", settings=_SETTINGS) as server,
    ):
        done = measure(server.url, Path(name) / "catalog", load, 1 if quick else rounds)
    if as_json:
        print(orjson.dumps(done).decode())
    else:
        _print(done)


if __name__ == "__main__":
    main()
