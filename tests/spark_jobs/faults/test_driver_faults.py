"""A driver that dies, loses Spark, or gets no executor, keeps no job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from catalog.model import JobState, PartitionId
from core.clock import SystemClock
from object_store.binding import verify_binding
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.open import StoreConfig
    from tests.spark_jobs.catalog_log import CatalogLog
    from tests.spark_jobs.conftest import RunClaimed

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROOT = Path(__file__).parents[3]
DRIVER = [sys.executable, "-m", "tests.spark_jobs.faults.driver"]
FINISHING = 5
TIMEOUT_SECONDS = 240


@pytest.fixture
def clock() -> Clock:
    """Processes share nothing but real time."""
    return SystemClock()


def submit(catalog_log: CatalogLog, name: str) -> None:
    """Create a topic with one file of two records of one key, and a job for it."""
    topic = catalog_log.create_topic(name, "compact")
    partition_id = PartitionId(topic.topic_id, 0)
    catalog_log.ingest({partition_id: [batch((b"key", b"old"), (b"key", b"new"))]})
    catalog_log.submit(topic)


@contextmanager
def driver_with_an_endless_job(
    catalog_log: CatalogLog, catalog: Catalog, catalog_url: str, store: StoreConfig, directory: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver whose first job does not end; yield it as soon as the `FINISHING` others are published."""
    for name in ("endless", *(f"topic-{n}" for n in range(FINISHING))):
        submit(catalog_log, name)
    log = directory / "driver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [*DRIVER, "run", catalog_url, store.url, "endless"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(directory)},
            stdout=output,
            stderr=output,
        )
    family = [psutil.Process(driver.pid)]
    try:
        end = time.monotonic() + TIMEOUT_SECONDS
        while catalog.jobs.counts()[JobState.COMPLETED] < FINISHING:
            assert driver.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        family += family[0].children(recursive=True)
        yield driver
    finally:
        driver.kill()
        driver.wait()
        for process in family[1:]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family[1:], timeout=TIMEOUT_SECONDS)


def test_the_death_of_a_driver_loses_only_unfinished_jobs(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
    catalog: Catalog,
    catalog_url: str,
    store_config: StoreConfig,
    tmp_path: Path,
) -> None:
    """It is killed while one job still runs. The others were published as they ended."""
    with driver_with_an_endless_job(catalog_log, catalog, catalog_url, store_config, tmp_path):
        pass

    partitions = [PartitionId(each.topic_id, 0) for each in catalog.topics.list()]
    counts = catalog.jobs.counts()
    assert (counts[JobState.COMPLETED], counts[JobState.RUNNING]) == (FINISHING, 1)
    assert [each.value for each in catalog_log.read(partitions[1])] == [b"new"]
    while not catalog.jobs.release_expired(0, 0):
        time.sleep(0.05)
    assert run_claimed().jobs_completed == 1
    assert [[each.value for each in catalog_log.read(each)] for each in partitions] == [[b"new"]] * 6
    assert catalog.quarantine.list() == []


def test_a_job_that_runs_when_java_dies_waits_before_it_runs_again(
    catalog_log: CatalogLog,
    catalog: Catalog,
    catalog_url: str,
    store_config: StoreConfig,
    tmp_path: Path,
) -> None:
    """Its query may have ended Java."""
    with driver_with_an_endless_job(catalog_log, catalog, catalog_url, store_config, tmp_path) as driver:
        (java,) = (each for each in psutil.Process(driver.pid).children() if each.name() == "java")
        java.kill()
        driver.wait(TIMEOUT_SECONDS)

    (job,) = catalog.jobs.list([JobState.SUBMITTED])
    assert job.failure is not None
    assert catalog.jobs.claimable() == 0
    assert catalog.quarantine.list() == []
    assert catalog.circuit_breaker.pause() is None


def test_a_cluster_without_executors_gets_its_jobs_taken_back(
    catalog_log: CatalogLog,
    catalog: Catalog,
    catalog_url: str,
    store_config: StoreConfig,
    ids: Ids,
    tmp_path: Path,
) -> None:
    """The preflight fails before jobs are claimed; a run returns them to the queue."""
    verify_binding(catalog_log.store, catalog.store_binding, ids)
    submit(catalog_log, "flights")

    ran = subprocess.run(
        [*DRIVER, "starve", catalog_url, store_config.url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    errors = ran.stdout.splitlines()
    assert len(errors) == 2
    assert all("NoExecutorError: Spark ran no task for 2 s" in each for each in errors)
    (job,) = catalog.jobs.list()
    assert (job.state, job.attempts, job.failure) == (JobState.SUBMITTED, 1, None)
    assert catalog.jobs.claimable() == 1
