"""Time of `siltstone compact` outside its jobs, and overhead of a small job in a warm watcher.

    python -m benchmarks.compact_command [--json] [--quick] [--rounds N] [--only command|watcher]

`command` runs the real command as a process with `local[2]`, on a topic of two partitions in ingestion files
of 8 MiB: 4 M records in 126 files of a local store. Each round has a new database of one private PostgreSQL,
which runs before the command starts, and new names of the same objects. Steps are seconds from their begin to
their end (`benchmarks.parts.compact_timeline`):

- `interpreter` until Python runs the command's module, `imports` until the command is loaded, `exit` after
  its last step.
- `jobs` from the claimed jobs to their report. `publish` is part of it, and so is `passes`: the time of a
  busy slot in both passes, by the report of the command. It consists of `find_survivors`, `write` and
  `complete`. Within these, `read_objects` is waiting for reads, `kernels` computing, and `write_objects`
  writing, which includes the synchronization of the files.
- `outside_jobs` is the whole command without `jobs`. Its goal is below 3 s.
- `processor` is the processor time of the command and all its processes.

`watcher` runs `siltstone compact --watch` and lets it compact small jobs one after another, each over two new
files of 1,000 records. `overhead` is the time of the whole poll that ran a job, without the task's own
time: `plan`, `claim`, `query` (from the claimed job to the end of the round, without the task and `publish`,
but with the looks for further jobs), `publish`, and what the watcher does around them. Its goal is below
0.3 s.

`limit` is the time of Spark alone: a separate process starts an empty session with the same settings, runs
an empty `mapInArrow` query on each slot, and stops it (`empty_session`). `empty_query` is such a query of one
task in the warm session.

All figures are medians of the rounds; `spread` is the difference between the slowest and the fastest round,
divided by the median.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click
import orjson
import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.parts.dedupe_data import Case, make_sections
from benchmarks.parts.measuring import machine
from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.model import BatchRun, FileCommit, JobState, SectionCommit
from catalog.open import EmbeddedPostgres, migrate_catalog, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.names import ingestion_name
from object_store.open import StoreConfig, open_store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from uuid import UUID

    from benchmarks.parts.dedupe_data import Section
    from catalog.open import Catalog
    from core.ids import Ids
    from object_store.interface import ObjectStore

PARTITIONS: Final = 2
SLOTS: Final = 2
SMALL: Final = Case(keys=500, records=1000)
_PARTS: Final = ("command", "watcher", "limit")
_WARM_UP_JOBS: Final = 3
_POLL_SECONDS: Final = 0.1
_WAIT_SECONDS: Final = 300.0
_STEPS: Final = (
    *("imports", "catalog", "plan", "session", "preflight", "claim", "jobs", "publish"),
    *("stop", "garbage", "report"),
)
_PHASES: Final = ("find_survivors", "write", "complete")
_INSIDE: Final = ("read_objects", "kernels", "write_objects")
_LIMIT: Final = """
import json, sys
from statistics import median
from time import monotonic
from spark_jobs.session.spark_session import SparkSettings, start_session, stop_session

def same_rows(batches):
    yield from batches

def query(tasks):
    begin = monotonic()
    spark.range(0, tasks, 1, tasks).mapInArrow(same_rows, "id long").collect()
    return monotonic() - begin

slots, begin = int(sys.argv[1]), monotonic()
spark = start_session(SparkSettings(master=f"local[{slots}]"))
started = monotonic() - begin
query(slots)
checked = monotonic() - begin
empty_query = median(query(1) for _ in range(10))
begin = monotonic()
stop_session(spark)
print(json.dumps({
    "empty_session": checked + monotonic() - begin, "start": started, "stop": monotonic() - begin,
    "empty_query": empty_query,
}))
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: the records of each partition, rounds of the command, and jobs of a watcher."""

    case: Case
    rounds: int
    jobs: int


FULL: Final = Size(Case(keys=500_000, records=2_000_000, value_bytes=200), rounds=5, jobs=20)
QUICK: Final = Size(Case(keys=50_000, records=200_000, value_bytes=200), rounds=1, jobs=5)


@dataclass(frozen=True, slots=True)
class Place:
    """A catalog and an object store."""

    catalog: str
    store: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """Options of the command that name them."""
        return (
            *("--catalog", self.catalog, "--object-store", str(self.store)),
            *("--data-dir", str(self.store.parent / "data")),
            *("--spark-master", f"local[{SLOTS}]"),
        )


class Log:
    """A catalog and a store that are open, with one session that writes to them."""

    def __init__(self, catalog: Catalog, store: ObjectStore, ids: Ids) -> None:
        self._catalog = catalog
        self._store = store
        self._ids = ids
        self._session_id = ids.new_uuid()
        catalog.sessions.register(self._session_id, "a benchmark")

    def write(self, topic: str, case: Case) -> None:
        """Create a topic, and write the records of `case` to each partition, in files with one section."""
        topic_id = self._catalog.topics.create(topic, PARTITIONS, {"cleanup.policy": "compact"}).topic_id
        sections = make_sections(case)
        ends = [*(section.shift for section in sections[1:]), case.records]
        for section, end in zip(sections, ends, strict=True):
            for partition in range(PARTITIONS):
                self._write_file(section, end - section.shift, topic_id, partition)

    def wait(self) -> None:
        """Wait until no file waits for compaction and no job runs."""
        limit = monotonic() + _WAIT_SECONDS
        while self._catalog.planning.backlog().ingestion_files or self._unfinished_jobs():
            if monotonic() > limit:
                raise RuntimeError(f"the watcher compacted nothing for {_WAIT_SECONDS:g} s")
            sleep(_POLL_SECONDS / 2)

    def _unfinished_jobs(self) -> int:
        counts = self._catalog.jobs.counts()
        return counts[JobState.SUBMITTED] + counts[JobState.RUNNING]

    def _write_file(self, section: Section, records: int, topic_id: UUID, partition: int) -> None:
        file_id, now_ms = self._ids.new_uuid(), SystemClock().now_ms()
        parts: list[bytes | memoryview] = []
        writer = SegmentFileWriter(
            kind=SegmentKind.INGESTION,
            file_id=file_id,
            writer_id=self._session_id,
            created_ms=now_ms,
            sink=parts.append,
        )
        writer.begin_section(topic_id, partition)
        for block in section.blocks:
            writer.append(block, stable=True)
        entry = writer.end_section(
            base_offset=0,
            last_offset=records - 1,
            record_count=records,
            min_timestamp=now_ms,
            max_timestamp=now_ms,
        )
        summary = writer.finish()
        name = ingestion_name(self._session_id, file_id)
        self._store.put(name, parts, purpose=Purpose.INGEST)
        run = BatchRun(
            first_offset=0,
            offset_count=records,
            record_count=records,
            min_timestamp=now_ms,
            max_timestamp=now_ms,
        )
        written = SectionCommit(
            topic_id=topic_id,
            partition=partition,
            position=entry.data_position,
            length=entry.data_length,
            runs=(run,),
        )
        self._catalog.commits.commit(
            FileCommit(
                file_id=file_id,
                object_name=name,
                size=summary.size,
                directory_length=summary.directory_length,
                session_id=self._session_id,
                sections=(written,),
            )
        )


class Server:
    """A PostgreSQL server and a directory with a prepared log; `place` returns a copy of it."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory
        self._copies = 0

    def prepare(self, case: Case) -> None:
        """Write the log that `place` copies."""
        with open_log(self.new_place("prepared")) as log:
            log.write("log", case)

    def new_place(self, name: str) -> Place:
        """Return an empty catalog and a store that does not exist yet."""
        self._execute(f"CREATE DATABASE {name}")
        return self._place(name)

    def place(self) -> Place:
        """Return a copy of the prepared log; objects are links, because they never change."""
        self._copies += 1
        name = f"copy_{self._copies}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE prepared")
        place = self._place(name)
        shutil.copytree(self._place("prepared").store, place.store, copy_function=os.link)
        return place

    def remove(self, place: Place) -> None:
        """Remove a copy."""
        shutil.rmtree(place.store)
        self._execute(f"DROP DATABASE {place.store.name} WITH (FORCE)")

    def _place(self, name: str) -> Place:
        parts = conninfo_to_dict(self._url)
        url = f"postgresql://{parts['user']}@/{name}?host={quote(str(parts['host']), safe='')}"
        return Place(url, self._directory / name)

    def _execute(self, statement: str) -> None:
        url = connection_string(self._url, DatabaseLimits())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def open_log(place: Place) -> Iterator[Log]:
    """Migrate and open a catalog, and open the store."""
    clock = SystemClock()
    ids = SystemIds(clock)
    migrate_catalog(place.catalog, clock, ids)
    with (
        open_catalog(place.catalog, clock, ids) as catalog,
        closing(open_store(StoreConfig(str(place.store)), clock, ids)) as store,
    ):
        verify_binding(store, catalog.store_binding, ids)
        yield Log(catalog, store, ids)


def run_command(place: Place) -> dict[str, float]:
    """Run the command; return the seconds of its steps, of all of it, and of processors."""
    timeline = place.store / "timeline.json"
    processor, begin = _processor_seconds(), monotonic()
    done = subprocess.run(
        [*_with_timeline(timeline), "compact", "--json", *place.arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    end = monotonic()
    report = orjson.loads(done.stdout)
    if report["failures"] or not report["jobs_completed"]:
        raise RuntimeError(f"the command has compacted nothing: {report}")
    found = orjson.loads(timeline.read_bytes())
    steps = dict.fromkeys(_STEPS, 0.0)
    for step, began, ended in found["spans"]:
        if step in steps:
            steps[step] += ended - began
    phases = report["seconds"]
    parallel = min(SLOTS, report["jobs_completed"])
    return {
        "command": end - begin,
        "outside_jobs": end - begin - steps["jobs"],
        "passes": sum(phases[phase] for phase in _PHASES) / parallel,
        **{name: phases[name] / parallel for name in (*_PHASES, *_INSIDE)},
        "processor": _processor_seconds() - processor,
        "interpreter": found["main"] - begin,
        **steps,
        "exit": end - max(ended for step, _, ended in found["spans"] if step != "exit"),
    }


def run_watcher(place: Place, jobs: int) -> list[dict[str, float]]:
    """Run a watcher while small jobs arrive; return the seconds of the polls that ran one, when warm."""
    timeline = place.store / "timeline.json"
    with open_log(place) as log:
        watcher = subprocess.Popen(
            [
                *_with_timeline(timeline),
                *("compact", "--watch", "--interval", str(_POLL_SECONDS), *place.arguments),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "SILTSTONE_MAX_INGESTION_AGE_MS": "0"},
        )
        try:
            for number in range(_WARM_UP_JOBS + jobs):
                log.write(f"log-{number}", SMALL)
                log.wait()
        finally:
            watcher.send_signal(signal.SIGTERM)
            watcher.wait(_WAIT_SECONDS)
    found = orjson.loads(timeline.read_bytes())
    polls = [poll for span in found["spans"] if span[0] == "poll" and (poll := _poll(found, *span[1:]))]
    return polls[_WARM_UP_JOBS:]


def _poll(found: dict[str, Any], begin: float, end: float) -> dict[str, float]:
    """Return the seconds of a poll that ran one job; nothing for any other poll."""
    task = [seconds for at, seconds in found["tasks"] if begin <= at <= end]
    if len(task) != 1:
        return {}
    spans = [each for each in found["spans"] if begin <= each[1] < end]
    running = next(since for step, since, _ in spans if step == "jobs")
    steps = {
        name: sum(till - since for step, since, till in spans if step == name and since <= latest)
        for name, latest in (("plan", running), ("claim", running), ("jobs", end), ("publish", end))
    }
    query = steps.pop("jobs") - steps["publish"] - task[0]
    return {"overhead": end - begin - task[0], "task": task[0], **steps, "query": query}


def run_limit() -> dict[str, float]:
    """Start and stop an empty session in a separate process; return the seconds, also of processors."""
    processor = _processor_seconds()
    done = subprocess.run([sys.executable, "-c", _LIMIT, str(SLOTS)], stdout=subprocess.PIPE, check=True)
    return {**orjson.loads(done.stdout), "processor": _processor_seconds() - processor}


def _with_timeline(timeline: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.parts.compact_timeline", str(timeline)]


def _processor_seconds() -> float:
    """Return the processor time of ended child processes and of theirs."""
    used = os.times()
    return used.children_user + used.children_system


def figures(rounds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the median and the spread of each figure."""
    found = {}
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        middle = median(values)
        spread = (max(values) - min(values)) / middle if middle else 0.0
        found[name] = {"median": round(middle, 4), "spread": round(spread, 2)}
    return found


def measure(server: Server, size: Size, parts: Collection[str]) -> dict[str, Any]:
    """Return the figures of the given parts; the command and the limit alternate."""
    result: dict[str, Any] = {
        "benchmark": "compact_command",
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
        "records": size.case.records * PARTITIONS,
        "rounds": size.rounds,
    }
    commands, limits = [], []
    if "command" in parts:
        server.prepare(size.case)
    for _ in range(size.rounds):
        if "command" in parts:
            place = server.place()
            commands.append(run_command(place))
            server.remove(place)
        if "limit" in parts:
            limits.append(run_limit())
    polls = run_watcher(server.new_place("watched"), size.jobs) if "watcher" in parts else []
    for name, found in (("command", commands), ("limit", limits), ("watcher", polls)):
        if found:
            result[name] = figures(found)
    return result


def _print(result: dict[str, Any]) -> None:
    print(f"{result['records']:,} records, load {result['load']}")
    for part in _PARTS:
        for name, found in result.get(part, {}).items():
            print(f"{part:<8} {name:<14} {found['median']:8.3f} s   spread {found['spread']:.0%}")


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="A tenth of the records, one round, five jobs of a watcher.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of the command.  [default: 5]")
@click.option("--only", type=click.Choice(_PARTS), multiple=True, help="Measure this part only (repeatable).")
def main(*, as_json: bool, quick: bool, rounds: int | None, only: tuple[str, ...]) -> None:
    """Run the benchmark and print the report."""
    size = QUICK if quick else FULL
    with (
        tempfile.TemporaryDirectory(prefix="siltstone-compact-command-") as name,
        EmbeddedPostgres(Path(name) / "catalog") as database,
    ):
        size = Size(size.case, rounds or size.rounds, size.jobs)
        result = measure(Server(database.url, Path(name)), size, only or _PARTS)
    if as_json:
        print(orjson.dumps(result).decode())
    else:
        _print(result)


if __name__ == "__main__":
    main()
