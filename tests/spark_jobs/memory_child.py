"""One job in a process of its own, and how much memory it took over an idle worker.

`python -m tests.spark_jobs.memory_child <warm> <case> <limit>` runs two jobs, each in a directory with its
store's objects and its specification. The first only loads what a worker loads once; the second may take
so many bytes of address space more. One JSON object says what it did.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import orjson

from bedrock.clock import SystemClock
from bedrock.ids import SeededIds
from catalog.job_json import read_spec
from object_store.local import LocalStore
from spark_jobs.compaction_task import run_compaction
from spark_jobs.peak_memory import peak_rss_bytes, reset_peak

SPEC = "job.json"


def run(directory: Path) -> dict[str, int]:
    """The job's counts."""
    clock = SystemClock()
    ids = SeededIds(2, clock)
    store = LocalStore(directory, ids)
    spec = read_spec((directory / SPEC).read_bytes())
    try:
        return run_compaction(spec, store, attempt_id=ids.new_uuid(), clock=clock, ids=ids).counts
    finally:
        store.close()


def limit_growth(limit_bytes: int) -> None:
    """Let this process have no more address space than it has and so many bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + limit_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(warm: str, case: str, limit: str) -> None:
    """Prints what was taken."""
    run(Path(warm))
    reset_peak()
    idle = peak_rss_bytes()
    limit_growth(int(limit))
    counts = run(Path(case))
    os.write(1, orjson.dumps({"idle_bytes": idle, "taken_bytes": peak_rss_bytes() - idle, **counts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
