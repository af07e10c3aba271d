"""How large a key table may be where Spark limits the memory of its Python workers.

`spark.executor.pyspark.memory` is a limit on the address space of an executor's workers together: on a
cluster each core's worker has its part of it, and in local mode each has all of it. A worker needs what it
has when idle, and what a task takes besides its table. What is left is for the table; smaller tables mean
more buckets for a job that is spread, and more keys outside the table for one that is not.
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
"""What a task takes at most over an idle worker, besides the key table; tests hold it to that."""

MIN_TABLE_BYTES: Final = 4 << 20
_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"(\d+)\s*(?:([kmgt])b?)?", re.IGNORECASE)
_STATM: Final = Path("/proc/self/statm")


def worker_limit_bytes(spark: SparkSession) -> int | None:
    """The address space that a worker of the session may have; None without a limit."""
    told = spark.conf.get("spark.executor.pyspark.memory", "")
    found = _SIZE.fullmatch((told or "").strip())
    if found is None:
        return None
    limit = int(found[1]) * _UNITS[(found[2] or "m").lower()]  # a plain number is of MiB
    if (spark.conf.get("spark.master", "") or "").startswith("local"):
        return limit
    return limit // int(spark.conf.get("spark.executor.cores", "1") or 1)


def fitted(spec: JobSpec, limit_bytes: int | None, idle_bytes: int | None = None) -> JobSpec:
    """The job with a table that a worker under the limit has room for.

    An idle worker is taken to be no larger than this process, which has loaded the same and more.
    """
    if limit_bytes is None:
        return spec
    idle = _address_space() if idle_bytes is None else idle_bytes
    room = max(limit_bytes - idle - TASK_BYTES, MIN_TABLE_BYTES)
    return spec if spec.table_bytes <= room else replace(spec, table_bytes=room)


def _address_space() -> int:
    try:
        return int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30
