"""The size of a key table under Spark's memory limit for Python workers.

`spark.executor.pyspark.memory` limits the address space of an executor's workers together. On a cluster each
core's worker gets its share; in local mode each worker gets all of it. A worker needs its idle size, the
memory of a task besides its key table, and the table. Smaller tables mean more buckets for a job that is
spread, and more keys outside the table for one that is not.
"""

from __future__ import annotations

import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catalog.model import JobSpec

TASK_BYTES: Final = 256 << 20
"""Upper bound of a task's memory over an idle worker, without the key table. Tests enforce it."""

MIN_TABLE_BYTES: Final = 4 << 20
_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"(\d+)\s*(?:([kmgt])b?)?", re.IGNORECASE)
_STATM: Final = Path("/proc/self/statm")


def worker_limit_bytes(spark: SparkSession) -> int | None:
    """Return the limit on a worker's address space in this session; None without a limit."""
    configured = spark.conf.get("spark.executor.pyspark.memory", "")
    found = _SIZE.fullmatch((configured or "").strip())
    if found is None:
        return None
    limit = int(found[1]) * _UNITS[(found[2] or "m").lower()]  # a plain number is in MiB
    if (spark.conf.get("spark.master", "") or "").startswith("local"):
        return limit
    return limit // int(spark.conf.get("spark.executor.cores", "1") or 1)


def fit_table(spec: JobSpec, limit_bytes: int | None, idle_bytes: int | None = None) -> JobSpec:
    """Return the job with a key table that fits the worker's limit.

    The idle size of a worker is taken to be that of this process, which has loaded at least as much.
    """
    if limit_bytes is None:
        return spec
    idle = _address_space() if idle_bytes is None else idle_bytes
    available = max(limit_bytes - idle - TASK_BYTES, MIN_TABLE_BYTES)
    return spec if spec.table_bytes <= available else replace(spec, table_bytes=available)


def _address_space() -> int:
    try:
        return int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30
