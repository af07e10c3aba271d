"""What workers have loaded is not gone through after every task, and what they make is shuffled as it is."""

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
"""Objects that a worker with both has at the least."""


def test_what_is_there_after_the_first_task_of_a_kind_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_gc, "_frozen", set())
    gc.unfreeze()
    kept = [[] for _ in range(1000)]  # type: list[list[int]]
    try:
        freeze_loaded_objects("a kind")
        first = gc.get_freeze_count()
        later = [[] for _ in range(1000)]  # type: list[list[int]]
        freeze_loaded_objects("a kind")
        again = gc.get_freeze_count()
        freeze_loaded_objects("another kind")
        # Some of what was settled before may have been freed meanwhile.
        assert gc.get_freeze_count() > again + len(later) // 2
    finally:
        gc.unfreeze()
    assert first >= len(kept)
    assert again <= first


def _look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many objects a worker has settled."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"settled": [gc.get_freeze_count()]})


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.parametrize("plan", [PlanChoice.TASK, PlanChoice.SHUFFLE])
def test_workers_on_spark_are_settled_by_their_first_job(
    run_claimed: RunClaimed,
    spark: SparkForTests,
    catalog_log: CatalogLog,
    plan: PlanChoice,
) -> None:
    topic = catalog_log.create_topic(f"settled-{plan}", "compact")
    catalog_log.ingest({PartitionId(topic.topic_id, 0): [batch((b"key", b"1"), (b"key", b"2"))]})
    catalog_log.submit(topic, table_bytes=1024)

    report = run_claimed(plan=plan)

    assert report.failures == []
    seen = spark.session.range(0, 2, 1, 2).mapInArrow(_look, "settled long").collect()
    assert max(row["settled"] for row in seen) > NUMBA_AND_ARROW


@pytest.mark.spark
@pytest.mark.integration
def test_a_session_shuffles_fingerprints_as_they_are(spark: SparkForTests) -> None:
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
def test_a_session_of_somebody_else_does_not_check_reruns_unless_he_says_so(spark: SparkForTests) -> None:
    checked, retried, handed = session._QUERY_CONF
    other = spark.session.newSession()
    other.conf.unset(retried)
    other.conf.unset(handed)
    other.conf.set(checked, "true")
    before = other.conf.get(retried)

    session._with_query_conf(other)

    assert (before, other.conf.get(checked), other.conf.get(retried)) == ("true", "true", "false")
    assert other.conf.get(handed) == "8388608"
