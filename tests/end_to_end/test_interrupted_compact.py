"""An interrupted run of `siltstone compact`: a process with a real Spark and a real catalog.

Tests block a job by replacing its input file with a pipe that provides no data.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from catalog.model import JobState, PartitionId
from core.clock import SystemClock
from object_store.binding import verify_binding
from object_store.local.store import LocalStore
from tests.end_to_end.processes import TIMEOUT_SECONDS, as_url, environment, leftovers
from tests.spark_jobs.catalog_log import CatalogLog
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.open import Catalog
    from core.ids import Ids

# A busy machine may need many times the usual half minute.
pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def wait_until(condition: object, what: str) -> None:
    """Wait until `condition()`."""
    assert callable(condition)
    clock = SystemClock()
    end = clock.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert clock.monotonic() < end, what
        time.sleep(0.05)


class Log(CatalogLog):
    """Log whose files can block their readers."""

    def __init__(self, catalog: Catalog, directory: Path, ids: Ids) -> None:
        super().__init__(catalog, LocalStore(directory, ids), ids)
        self.directory = directory
        self.partitions: list[PartitionId] = []
        verify_binding(self.store, catalog.store_binding, ids)

    def add(self, name: str) -> Path:
        """Create a topic with a file of two records of one key, and return the file."""
        topic = self.create_topic(name, "compact")
        partition = PartitionId(topic.topic_id, 0)
        self.partitions.append(partition)
        return self.directory / self.ingest({partition: [batch((b"k", b"old"), (b"k", b"new"))]})

    @contextlib.contextmanager
    def blocking(self, file: Path) -> Iterator[None]:
        """Make a process that opens the file within the block wait until the end of the block."""
        real, pipe = file.with_suffix(".real"), file.with_suffix(".pipe")
        file.rename(real)
        os.mkfifo(pipe)
        pipe.rename(file)
        try:
            yield
        finally:
            file.rename(pipe)
            real.rename(file)
            os.close(os.open(pipe, os.O_RDWR))  # releases a reader that still waits
            pipe.unlink()

    def running(self) -> int:
        return self.catalog.jobs.counts()[JobState.RUNNING]


@pytest.fixture
def log(catalog: Catalog, tmp_path: Path, ids: Ids) -> Iterator[Log]:
    made = Log(catalog, tmp_path / "objects", ids)
    yield made
    made.store.close()


class Compactor:
    """A `siltstone compact` process."""

    def __init__(self, tmp_path: Path, catalog_url: str) -> None:
        self.log_file = tmp_path / f"{time.monotonic_ns()}.log"
        where = ("--data-dir", str(tmp_path / "data"), "--object-store", str(tmp_path / "objects"))
        with self.log_file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "siltstone", "compact", *where],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment()
                | {
                    "SILTSTONE_CATALOG": as_url(catalog_url),
                    "SILTSTONE_SPARK_MASTER": "local[1]",
                    "SILTSTONE_MAX_JOB_FILES": "1",
                    "SILTSTONE_LOG_LEVEL": "info",
                },
            )

    def output(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_an_interrupted_run_releases_its_jobs(log: Log, tmp_path: Path, catalog_url: str) -> None:
    """Nothing is lost, and the next run can do the rest."""
    with log.blocking(log.add("blocked")), Compactor(tmp_path, catalog_url) as interrupted:
        wait_until(lambda: log.running() == 1, interrupted.output())
        assert interrupted.stop(signal.SIGINT) == 130, interrupted.output()
    assert "Traceback" not in interrupted.output()
    counts = log.catalog.jobs.counts()
    assert (counts[JobState.SUBMITTED], counts[JobState.RUNNING], counts[JobState.FAILED]) == (1, 0, 0)
    assert [each.value for each in log.read(log.partitions[0])] == [b"old", b"new"]
    assert leftovers(tmp_path) == []
