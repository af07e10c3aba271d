"""PySpark's daemon, which forks the Python workers of a local session, with all modules of tasks loaded.

PySpark's own daemon loads no such modules, so each worker loads them before its first task, and again
after a minute without tasks, when Spark ends idle workers. Forked workers share what this daemon has loaded.

A lock that another thread holds at a fork stays locked in the worker. Therefore OpenBLAS, which numpy loads
and no kernel calls, may start no threads here. The one thread left is jemalloc's in pyarrow, and jemalloc
releases its locks in the worker. pandas is not loaded, because no task uses it.
"""

from __future__ import annotations

import gc
import importlib
import os
from contextlib import suppress
from typing import Final

MODULES: Final = (
    "pyspark.worker",
    "spark_jobs.task.entry",
    "spark_jobs.task.worker_check",
    "spark_jobs.shuffle.query",
    "spark_jobs.shuffle.stages",
)


def preload() -> None:
    """Load the modules of tasks; the check of the workers reports what cannot be loaded."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for module in MODULES:
        with suppress(Exception):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Load the modules, then run PySpark's daemon."""
    daemon = importlib.import_module("pyspark.daemon")
    preload()
    daemon.manager()


if __name__ == "__main__":
    main()
