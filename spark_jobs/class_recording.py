"""Writes the archive of the classes that Spark loads, from a session that checks its workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from core.clock import SystemClock
from core.ids import SystemIds
from object_store.open import StoreConfig
from spark_jobs.preflight import check_workers
from spark_jobs.session.class_archive import find_archive, store_archive, unfinished_archive
from spark_jobs.session.java import find_java
from spark_jobs.session.spark_session import SparkSettings, spark_session

if TYPE_CHECKING:
    from pathlib import Path


def record_classes(directory: Path) -> Path | None:
    """Write the archive, unless there is one, and return it; None if this Java writes none.

    `directory` is empty, and serves as an object store. Takes up to a minute. Raise JavaNotFoundError without
    a Java, and SparkUnavailableError if the session does not start.
    """
    java = find_java(os.environ)
    if (archive := find_archive(java)) is not None:
        return archive
    clock = SystemClock()
    written = unfinished_archive(java)
    try:
        with spark_session(SparkSettings(master="local[2]", written_archive=written)) as spark:
            check_workers(spark, StoreConfig(str(directory)), None, clock=clock, ids=SystemIds(clock))
        return store_archive(written) if written.exists() else None
    finally:
        written.unlink(missing_ok=True)
