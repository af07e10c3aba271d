"""The memory of workers limits tables and sets the number of buckets."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from catalog.model import PartitionId
from spark_jobs.session.worker_memory import MIN_TABLE_BYTES, TASK_BYTES, fit_table, worker_limit_bytes
from spark_jobs.shuffle.plan import plan_shuffle
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MIB = 1 << 20


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({}, None),
        ({"memory": "2g"}, 2048 * MIB),
        ({"memory": "2048"}, 2048 * MIB),
        ({"memory": "4096M", "cores": "4"}, 1024 * MIB),
        ({"memory": "1gb", "cores": "4", "master": "local[4]"}, 1024 * MIB),
    ],
)
def test_a_worker_gets_its_share_of_the_memory_limit(settings: dict[str, str], limit: int | None) -> None:
    names = {
        "memory": "spark.executor.pyspark.memory",
        "cores": "spark.executor.cores",
        "master": "spark.master",
    }
    conf = {names[name]: value for name, value in settings.items()}

    found = worker_limit_bytes(cast("SparkSession", SimpleNamespace(conf=conf)))

    assert found == limit


def test_less_memory_gives_smaller_tables_and_more_buckets(tmp_path: Path) -> None:
    """Tables have a minimum size; without a limit, the job's table size is used."""
    harness = CompactionHarness(tmp_path)
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch(*((b"%d" % each, b"v") for each in range(1000)))]})
    spec = harness.log.job(table_bytes=128 * MIB)

    assert fit_table(spec, None) is spec
    assert fit_table(spec, 2000 * MIB, idle_bytes=500 * MIB) is spec
    assert fit_table(spec, 500 * MIB + TASK_BYTES + 9 * MIB, idle_bytes=500 * MIB).table_bytes == 9 * MIB
    assert fit_table(spec, 1, idle_bytes=500 * MIB).table_bytes == MIN_TABLE_BYTES
    assert fit_table(spec, 1).table_bytes == MIN_TABLE_BYTES

    buckets = [plan_shuffle(replace(spec, table_bytes=size)).buckets for size in (8192, 2048, 512)]
    assert buckets == sorted(set(buckets))
