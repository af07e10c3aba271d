"""Drivers that tests kill, or that get no executor.

    python -m tests.spark_jobs.faults.driver run <catalog> <object store> <topic whose job never ends>
    python -m tests.spark_jobs.faults.driver starve <catalog> <object store>

`run` claims all jobs and runs them on a local Spark. `starve` claims a job and runs it on a cluster without
workers; it prints the errors of the preflight and of the run. Standard output has nothing else.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from catalog.open import open_catalog
from core.clock import SystemClock
from core.errors import RetryableError
from core.ids import SystemIds
from object_store.open import StoreConfig
from spark_jobs import compact
from spark_jobs.compact import run_jobs
from spark_jobs.preflight import check_workers
from spark_jobs.session.java import find_java, write_java_home
from spark_jobs.session.spark_session import SparkSettings, spark_session
from spark_jobs.shuffle.plan import PlanChoice
from spark_jobs.transport import pack_spec
from tests.spark_jobs.faults.call_on_unpickling import CallOnUnpickling
from tests.spark_jobs.faults.small_cluster import APPLICATION, HOSTS, cluster
from tests.spark_jobs.quick_java import quick_java

if TYPE_CHECKING:
    from catalog.model import JobSpec
    from catalog.open import Catalog

WAIT_SECONDS = 2.0


def run(catalog: Catalog, store: StoreConfig, endless: str) -> None:
    """Run all jobs; that of the topic `endless` sleeps in its worker."""

    def pack(spec: JobSpec) -> bytes:
        is_endless = spec.partitions[0].topic_name == endless
        return CallOnUnpickling.of(time.sleep, 10_000) if is_endless else pack_spec(spec)

    clock = SystemClock()
    with (
        pytest.MonkeyPatch.context() as patch,
        spark_session(SparkSettings(master="local[2]")) as spark,
    ):
        patch.setattr(compact, "pack_spec", pack)
        run_jobs(
            spark,
            catalog.jobs.claim("a driver", 100),
            store=store,
            book=catalog.jobs,
            clock=clock,
            ids=SystemIds(clock),
            plan=PlanChoice.TASK,
        )


def starve(catalog: Catalog, store: StoreConfig) -> None:
    """Run a job on a cluster without workers."""
    clock = SystemClock()
    ids = SystemIds(clock)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {
            "JAVA_HOME": str(write_java_home(find_java(os.environ), Path(scratch) / "java")),
            "SPARK_LOCAL_IP": HOSTS[0],
            "SPARK_SUBMIT_OPTS": quick_java(),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (
            cluster(Path(scratch), hosts=()) as master,
            spark_session(SparkSettings(master=master, conf=APPLICATION)) as spark,
        ):
            try:
                check_workers(spark, store, None, clock=clock, ids=ids, executor_wait_seconds=WAIT_SECONDS)
            except RetryableError as error:
                sys.stdout.write(f"{type(error).__name__}: {error}\n")
            try:
                run_jobs(
                    spark,
                    catalog.jobs.claim("a driver", 100),
                    store=store,
                    book=catalog.jobs,
                    clock=clock,
                    ids=ids,
                    executor_wait_seconds=WAIT_SECONDS,
                )
            except RetryableError as error:
                sys.stdout.write(f"{type(error).__name__}: {error}\n")


def main(what: str, catalog_url: str, store_url: str, *more: str) -> None:
    """Open the catalog, and run what the test wants."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    clock = SystemClock()
    with closing(open_catalog(catalog_url, clock, SystemIds(clock))) as catalog:
        if what == "run":
            run(catalog, StoreConfig(store_url), *more)
        else:
            starve(catalog, StoreConfig(store_url))


if __name__ == "__main__":
    main(*sys.argv[1:])
