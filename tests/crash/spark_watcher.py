"""`siltstone compact --watch` on real Spark, which dies where it is told to: its planner, or Spark's workers.

    python -m tests.crash.spark_watcher <directory> compact --watch …

is the command itself, with points around what it asks of catalog and store. Strikes for it are armed by a
file in the directory (`fail_points.ArmedPoints`), those for Spark's Python workers by another one. Spark
starts this module once more, as `-m tests.crash.spark_watcher pyspark.…`, to fork its workers from.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import object_store.open as opening
from tests.crash.fail_points import ArmedPoints, guard_catalog, guard_store

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore
    from object_store.open import StoreConfig

WATCHER_STRIKES: Final = "watcher"
WORKER_STRIKES: Final = "worker"
LEASE_MS: Final = 8_000
"""More than the time between two heartbeats, and less than anybody would wait for in a test."""

_DIRECTORY: Final = "CRASH_STRIKES"


def fork_workers() -> None:
    """What `pyspark.daemon` does, with stores that have points; all workers find everything imported."""
    guard_stores(ArmedPoints(Path(os.environ[_DIRECTORY]) / WORKER_STRIKES))
    from pyspark.daemon import manager  # noqa: PLC0415  it reads the command line

    import spark_jobs.shuffle.query  # noqa: F401, PLC0415

    manager()


def guard_stores(points: ArmedPoints) -> None:
    """Every store that is opened from now on has points."""
    real = opening.open_store

    def open_store(config: StoreConfig, clock: Clock, ids: Ids) -> ObjectStore:
        return guard_store(real(config, clock, ids), points)

    opening.open_store = open_store


def watch(directory: str) -> None:
    """The command, with leases and graces that are short."""
    os.environ[_DIRECTORY] = directory
    points = ArmedPoints(Path(directory) / WATCHER_STRIKES)
    guard_stores(points)  # before anybody imports the function

    import siltstone.cli  # noqa: PLC0415
    from catalog.open import open_catalog  # noqa: PLC0415
    from maintenance.garbage_collection import GarbageSettings  # noqa: PLC0415
    from siltstone import context  # noqa: PLC0415
    from siltstone.compaction import compactor, watcher  # noqa: PLC0415
    from spark_jobs.session.spark_session import SparkSettings  # noqa: PLC0415

    def guarded_catalog(url: str, clock: Clock, ids: Ids) -> Catalog:
        return guard_catalog(open_catalog(url, clock, ids), points)

    collecting = partial(GarbageSettings, session_silence_ms=3_000)
    on_spark = partial(SparkSettings, conf={"spark.python.daemon.module": "tests.crash.spark_watcher"})
    patch.object(context, "open_catalog", guarded_catalog).start()
    patch.object(compactor, "RUN_TIMEOUT_MS", LEASE_MS).start()
    patch.object(compactor, "GarbageSettings", collecting).start()
    patch.object(watcher, "SparkSettings", on_spark).start()
    siltstone.cli.main()


if __name__ == "__main__":
    if sys.argv[1].startswith("pyspark."):
        fork_workers()
    else:
        watch(sys.argv.pop(1))
