"""`siltstone compact --watch` on real Spark with fail points.

    python -m tests.crash.spark_watcher <directory> compact --watch …

runs the command with an instrumented catalog and store. A file in the directory sets the crash of the
watcher (`fail_points.ArmedFailPoints`), another one that of Spark's Python workers. Spark starts this module
again, as `-m tests.crash.spark_watcher pyspark.…`, to fork its workers from it.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import object_store.open as opening
from tests.crash.fail_points import ArmedFailPoints, instrument_catalog, instrument_store

if TYPE_CHECKING:
    from catalog.database.limits import DatabaseLimits
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore
    from object_store.open import StoreConfig

WATCHER_CRASH: Final = "watcher"
WORKER_CRASH: Final = "worker"
LEASE_MS: Final = 8_000
"""Longer than the heartbeat interval, and short enough for a test."""

_DIRECTORY: Final = "CRASH_DIRECTORY"


def fork_workers() -> None:
    """Run `pyspark.daemon` with instrumented stores and all modules imported."""
    instrument_stores(ArmedFailPoints(Path(os.environ[_DIRECTORY]) / WORKER_CRASH))
    from pyspark.daemon import manager  # noqa: PLC0415  it reads the command line

    import spark_jobs.shuffle.query  # noqa: F401, PLC0415

    manager()


def instrument_stores(points: ArmedFailPoints) -> None:
    """Add fail points to every store that is opened from now on."""
    real = opening.open_store

    def open_store(
        config: StoreConfig,
        clock: Clock,
        ids: Ids,
        *,
        probe_timeout_seconds: float | None = None,
        hedges: bool = False,
    ) -> ObjectStore:
        store = real(config, clock, ids, probe_timeout_seconds=probe_timeout_seconds, hedges=hedges)
        return instrument_store(store, points)

    opening.open_store = open_store


def watch(directory: str) -> None:
    """Run the command with short leases and grace periods."""
    os.environ[_DIRECTORY] = directory
    points = ArmedFailPoints(Path(directory) / WATCHER_CRASH)
    instrument_stores(points)  # before other modules import the function

    import siltstone.cli  # noqa: PLC0415
    from catalog.open import open_catalog  # noqa: PLC0415
    from maintenance.settings import MaintenanceSettings  # noqa: PLC0415
    from siltstone import context  # noqa: PLC0415
    from siltstone.compaction import compactor, watcher  # noqa: PLC0415
    from siltstone.settings import configuration  # noqa: PLC0415
    from spark_jobs.session.spark_session import SparkSettings  # noqa: PLC0415

    def open_instrumented_catalog(
        url: str,
        clock: Clock,
        ids: Ids,
        *,
        limits: DatabaseLimits | None = None,
        listen_url: str | None = None,
    ) -> Catalog:
        catalog = open_catalog(url, clock, ids, limits=limits, listen_url=listen_url)
        return instrument_catalog(catalog, points)

    maintenance_settings = partial(
        MaintenanceSettings,
        session_silence_ms=2_000,
        job_silence_ms=LEASE_MS,
        fence_confirm_ms=1_000,
        topic_delete_delay_ms=0,
    )
    measure = watcher.Watcher._measure_backlog

    def measure_and_collect(self: watcher.Watcher) -> None:
        """Collect garbage too, as agents do, so that a crash may hit it."""
        measure(self)
        compactor.collect(self._context, self._settings)

    spark_settings = partial(SparkSettings, conf={"spark.python.daemon.module": "tests.crash.spark_watcher"})
    patch.object(context, "open_catalog", open_instrumented_catalog).start()
    patch.object(configuration.Settings, "maintenance_settings", lambda _self: maintenance_settings()).start()
    patch.object(watcher.Watcher, "_measure_backlog", measure_and_collect).start()
    patch.object(compactor, "SparkSettings", spark_settings).start()
    siltstone.cli.main()


if __name__ == "__main__":
    if sys.argv[1].startswith("pyspark."):
        fork_workers()
    else:
        watch(sys.argv.pop(1))
