"""Workers exclude loaded objects from garbage collection, and sessions do not compress shuffled rows."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from catalog.model import PartitionId
from spark_jobs.session import spark_session as session
from spark_jobs.shuffle.plan import PlanChoice
from spark_jobs.task import worker_gc
from spark_jobs.task.worker_gc import freeze_loaded_objects
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.spark_jobs.catalog_log import CatalogLog
    from tests.spark_jobs.conftest import RunClaimed, SparkForTests

NUMBA_AND_ARROW = 50_000
"""Lower bound for the number of objects in a worker that has loaded both."""


def test_objects_are_frozen_after_the_first_task_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_gc, "_frozen", set())
    gc.unfreeze()
    loaded = [[] for _ in range(1000)]  # type: list[list[int]]
    try:
        freeze_loaded_objects("a kind")
        first_count = gc.get_freeze_count()
        later = [[] for _ in range(1000)]  # type: list[list[int]]
        freeze_loaded_objects("a kind")
        second_count = gc.get_freeze_count()
        freeze_loaded_objects("another kind")
        # Some objects that were frozen before may have been freed meanwhile.
        assert gc.get_freeze_count() > second_count + len(later) // 2
    finally:
        gc.unfreeze()
    assert first_count >= len(loaded)
    assert second_count <= first_count


def _freeze_counts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the number of frozen objects in a worker."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.parametrize("plan", [PlanChoice.TASK, PlanChoice.SHUFFLE])
def test_spark_workers_freeze_objects_after_their_first_job(
    run_claimed: RunClaimed,
    spark: SparkForTests,
    catalog_log: CatalogLog,
    plan: PlanChoice,
) -> None:
    topic = catalog_log.create_topic(f"frozen-{plan}", "compact")
    catalog_log.ingest({PartitionId(topic.topic_id, 0): [batch((b"key", b"1"), (b"key", b"2"))]})
    catalog_log.submit(topic, table_bytes=1024)

    report = run_claimed(plan=plan)

    assert report.failures == []
    seen = spark.session.range(0, 2, 1, 2).mapInArrow(_freeze_counts, "frozen long").collect()
    assert max(row["frozen"] for row in seen) > NUMBA_AND_ARROW


@pytest.mark.spark
@pytest.mark.integration
def test_a_session_neither_compresses_nor_checksums_shuffled_rows(spark: SparkForTests) -> None:
    conf = spark.session.sparkContext.getConf()
    for name in (
        "spark.shuffle.compress",
        "spark.shuffle.spill.compress",
        "spark.sql.shuffle.orderIndependentChecksum.enabled",
        "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
    ):
        assert conf.get(name) == "false"
    assert "-XX:TieredStopAtLevel=1" in str(conf.get("spark.driver.extraJavaOptions"))


@pytest.mark.spark
@pytest.mark.integration
def test_query_settings_apply_unless_the_session_sets_them(spark: SparkForTests) -> None:
    checksum, retry, batch_bytes = session._QUERY_CONF
    new_session = spark.session.newSession()
    new_session.conf.unset(retry)
    new_session.conf.unset(batch_bytes)
    new_session.conf.set(checksum, "true")
    retry_before = new_session.conf.get(retry)

    session._with_query_conf(new_session)

    assert (
        retry_before,
        new_session.conf.get(checksum),
        new_session.conf.get(retry),
    ) == ("true", "true", "false")
    assert new_session.conf.get(batch_bytes) == "8388608"
