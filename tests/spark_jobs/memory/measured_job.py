"""Run jobs in separate processes, and measure the memory of each task beyond that of an idle worker.

    python -m tests.spark_jobs.memory.measured_job

reads lines from standard input, each a JSON list: plan, warm-up case, case, limit, file. For each, a fork of
the process, as Spark forks its workers, runs two jobs by the plan, `task` or `shuffle`. A case is a directory
with the objects and the specification of a job. A case of digits is the size in MiB of a generated file
instead. The first job only loads what a worker loads once. In the second job, each task may add at most
`limit` bytes of address space. The file gets one JSON object with the counts and the memory of each kind of
task, and standard output the exit code of the fork.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from catalog.jobs.json_format import read_spec
from core.clock import SystemClock
from core.ids import SeededIds
from object_store.local.store import LocalStore
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.shuffle.rows import (
    BlobRow,
    SurvivorRow,
    read_blob_rows,
    read_survivor_rows,
    write_blob_rows,
    write_survivor_rows,
)
from spark_jobs.shuffle.stages import ShareInput, StageContext, cut_share, judge_buckets, write_share
from spark_jobs.task.compaction_task import run_compaction
from spark_jobs.task.counts import peak_rss_bytes, reset_peak
from spark_jobs.task.small_sections.runner import DEFAULT_LIMITS
from tests.spark_jobs.memory.generated_store import GeneratedFile, GeneratedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.model import JobSpec
    from object_store.interface import ObjectStore
    from spark_jobs.task.small_sections.plan import GroupLimits

SPEC = "job.json"
TABLE_BYTES = 1 << 20
NO_LIMIT = resource.RLIM_INFINITY


class Worker:
    """Runs the tasks of one job, each within the limit; `used` has the most memory of each kind of task."""

    def __init__(self, case: str, limit: int | None) -> None:
        self.clock = SystemClock()
        self.ids = SeededIds(2, self.clock)
        self.limit = limit
        self.used: dict[str, int] = {}
        self.spec, self.open_store = self._read(case)

    def _read(self, case: str) -> tuple[JobSpec, Callable[[], ObjectStore]]:
        if case.isdecimal():
            file = GeneratedFile(int(case), (1 << 20) - 100)
            return file.spec(TABLE_BYTES), lambda: cast("ObjectStore", GeneratedStore(file))
        directory = Path(case)
        return read_spec((directory / SPEC).read_bytes()), lambda: LocalStore(directory, self.ids)

    @contextmanager
    def task(self, kind: str) -> Iterator[ObjectStore]:
        """Limit the memory of the block, and record how much it takes."""
        store = self.open_store()
        reset_peak()
        idle = peak_rss_bytes()
        if self.limit is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            allowed = pages * resource.getpagesize() + self.limit
            resource.setrlimit(resource.RLIMIT_AS, (allowed, NO_LIMIT))
        try:
            yield store
        finally:
            self.used[kind] = max(self.used.get(kind, 0), peak_rss_bytes() - idle)
            resource.setrlimit(resource.RLIMIT_AS, (NO_LIMIT, NO_LIMIT))
            store.close()

    def run_task(self, limits: GroupLimits = DEFAULT_LIMITS) -> dict[str, int]:
        """Run the job as one task and return its counts."""
        with self.task("task") as store:
            result = run_compaction(
                self.spec,
                store,
                attempt_id=self.ids.new_uuid(),
                clock=self.clock,
                ids=self.ids,
                limits=limits,
            )
        return result.counts

    def run_shuffle(self) -> dict[str, int]:
        """Run the job by the shuffle plan; a file holds the rows that Spark would shuffle."""
        plan = plan_shuffle(self.spec)
        context = StageContext(spec=self.spec, plan=plan, clock=self.clock, check=lambda: None)
        counts: dict[str, int] = {}
        with tempfile.TemporaryFile() as file:
            rows: list[tuple[BlobRow, int]] = []
            for share in range(len(plan.shares)):
                with self.task("cut") as store:
                    for row in read_blob_rows(write_blob_rows(cut_share(context, share, store))):
                        rows.append((row._replace(data=b""), len(row.data)))
                        file.write(row.data)
            file.flush()
            locations, end = [], 0
            for row, length in rows:
                locations.append((row, end, length))
                end += length
            locations.sort(
                key=lambda each: (each[0].judge, each[0].kind, each[0].number, -each[0].first_offset)
            )
            found: list[tuple[SurvivorRow, int, int, int]] = []
            for judge in range(plan.judges):
                for_judge = [each for each in locations if each[0].judge == judge]
                with self.task("judge"):
                    verdicts = judge_buckets(context, _rows(file.fileno(), for_judge))
                    for each in read_survivor_rows(write_survivor_rows(verdicts)):
                        lengths = len(each.data), len(each.tombstones)
                        found.append((each._replace(data=b"", tombstones=b""), end, *lengths))
                        end += os.pwrite(file.fileno(), bytes(each.data) + bytes(each.tombstones), end)
            for share in range(len(plan.shares)):
                with self.task("write") as store:
                    share_input = ShareInput()  # inside the block: its bitmaps count as memory of the task
                    for each in _survivor_rows(file.fileno(), found, share):
                        share_input.add(each)
                    result = write_share(context, share, share_input, store, self.ids.new_uuid(), self.ids)
                for name, count in result.counts.items():
                    is_peak = name.endswith("_bytes") and not name.startswith(("shuffle", "merged"))
                    counts[name] = max(counts.get(name, 0), count) if is_peak else counts.get(name, 0) + count
        return counts | {"shares": len(plan.shares)}


def _rows(descriptor: int, locations: list[tuple[BlobRow, int, int]]) -> Iterator[BlobRow]:
    for row, position, length in locations:
        yield row._replace(data=os.pread(descriptor, length, position))


def _survivor_rows(
    descriptor: int, locations: list[tuple[SurvivorRow, int, int, int]], share: int
) -> Iterator[SurvivorRow]:
    for row, position, length, more in locations:
        if row.share == share:
            data = os.pread(descriptor, length + more, position)
            yield row._replace(data=data[:length], tombstones=data[length:])


def measure(plan: str, warm_up: str, case: str, limit: int) -> dict[str, Any]:
    """Return the counts and the memory of the second job."""
    if plan == "task":
        Worker(warm_up, None).run_task(DEFAULT_LIMITS._replace(bytes=0))  # the code without groups
    _run(Worker(warm_up, None), plan)
    worker = Worker(case, limit)
    return {"counts": _run(worker, plan), "used": worker.used}


def _run(worker: Worker, plan: str) -> dict[str, int]:
    return worker.run_task() if plan == "task" else worker.run_shuffle()


def serve() -> None:
    """Measure what the lines of standard input say."""
    for line in sys.stdin:
        *job, file = orjson.loads(line)
        fork = os.fork()
        if fork == 0:
            code = 1
            try:
                Path(file).write_bytes(orjson.dumps(measure(*job)))
                code = 0
            except BaseException:  # noqa: BLE001  the caller reports it
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(fork, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
