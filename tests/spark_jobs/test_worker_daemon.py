"""A daemon that has loaded the modules of tasks, but not pandas, forks the workers of a local session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pytest

from spark_jobs.arrow_rows import record_batch
from spark_jobs.worker_daemon import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.spark_jobs.conftest import SparkForTests

PRELOADED = """
import os, sys
from spark_jobs import worker_daemon

worker_daemon.preload()
threads = {open(f"/proc/self/task/{each}/comm").read().strip() for each in os.listdir("/proc/self/task")}
missing = set(worker_daemon.MODULES) - sys.modules.keys()
print(len(os.listdir("/proc/self/task")) - ("jemalloc_bg_thd" in threads), missing, "pandas" in sys.modules)
"""

BROKEN = """
import sys
from spark_jobs import worker_daemon

sys.modules["spark_jobs.task.compaction_task"] = None
worker_daemon.preload()
print("spark_jobs.task.worker_check" in sys.modules, "spark_jobs.task.entry" in sys.modules)
"""


def run_python(program: str) -> list[str]:
    """Run a program that leaves compiled kernels where this process has them."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.split()


def test_the_daemon_forks_with_one_thread_and_without_pandas() -> None:
    assert run_python(PRELOADED) == ["1", "set()", "False"]


def test_a_module_that_cannot_be_loaded_is_left_to_the_check_of_the_workers() -> None:
    assert run_python(BROKEN) == ["True", "False"]


def loaded_modules(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the daemon's command line and what a task finds loaded, before it loads anything."""
    for _ in batches:
        daemon = Path(f"/proc/{os.getppid()}/cmdline").read_text()
        found = [each for each in (*MODULES, "pandas") if each in sys.modules]
        yield record_batch([(orjson.dumps([daemon, found]),)], schema=pa.schema([("found", pa.binary())]))


@pytest.mark.spark
def test_no_worker_loads_modules_of_tasks(spark: SparkForTests) -> None:
    # Workers with another environment get a daemon of their own, so that none has run a task before.
    setting = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
    hidden = spark.session.conf.get(setting) or "false"
    spark.session.conf.set(setting, "false" if hidden == "true" else "true")
    try:
        rows = spark.session.range(0, 2, 1, 2).mapInArrow(loaded_modules, "found binary").collect()
    finally:
        spark.session.conf.set(setting, hidden)

    assert len(rows) == 2
    for daemon, found in (orjson.loads(bytes(row.found)) for row in rows):
        assert "spark_jobs.worker_daemon" in daemon
        assert found == list(MODULES)


def test_rows_survive_their_way_through_arrow() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.int64()), ("c", pa.bool_()), ("d", pa.binary())])
    rows = [(-1, 1 << 60, index % 3 == 0, b"x" * index) for index in range(20)]
    rows.append((7, 0, True, memoryview(b"view")))  # type: ignore[arg-type]  # the types of a first row

    batch = record_batch(rows, schema)

    batch.validate(full=True)
    assert batch.schema == schema
    assert [tuple(row.values()) for row in batch.to_pylist()] == [(*row[:3], bytes(row[3])) for row in rows]
