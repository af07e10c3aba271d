"""The shuffle plan on a real Spark, classic and Connect, with a real catalog and a real store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catalog.model import FileKind, JobState, PartitionId
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from spark_jobs.shuffle.plan import PlanChoice
from tests.end_to_end.processes import as_url
from tests.spark_jobs.reference_log import batch
from tests.spark_jobs.test_compact_on_spark import run_command

if TYPE_CHECKING:
    from catalog.open import Catalog
    from object_store.open import StoreConfig
    from tests.spark_jobs.catalog_log import CatalogLog
    from tests.spark_jobs.conftest import RunClaimed, SparkForTests

pytestmark = [pytest.mark.spark, pytest.mark.integration]

FILES = 10
KEYS = 300


def fill(catalog_log: CatalogLog, name: str, *, table_bytes: int) -> PartitionId:
    """Create a topic of one partition, with a job over more keys than a small table holds."""
    topic = catalog_log.create_topic(name, "compact")
    partition_id = PartitionId(topic.topic_id, 0)
    for index in range(FILES):
        pairs = [(b"key-%d" % ((60 * index + each) % KEYS), b"%d" % index) for each in range(120)]
        catalog_log.ingest({partition_id: [batch(*pairs)]})
    catalog_log.submit(topic, table_bytes=table_bytes)
    return partition_id


def newest() -> dict[bytes, bytes]:
    return {
        b"key-%d" % ((60 * index + each) % KEYS): b"%d" % index
        for index in range(FILES)
        for each in range(120)
    }


def test_a_job_whose_keys_exceed_the_table_is_exact(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
) -> None:
    """Another job of the run has keys that fit; it is one task."""
    large = fill(catalog_log, "large", table_bytes=1024)
    small = fill(catalog_log, "small", table_bytes=1 << 20)

    report = run_claimed()

    assert report.failures == []
    assert (report.jobs_completed, report.shuffled_jobs) == (2, 1)
    assert (report.keys, report.keys_outside_table) == (2 * KEYS, 0)
    assert (report.input_files, report.get_requests_per_input_file) == (2 * FILES, 2.0)
    assert report.partitions == 2
    for partition_id in (large, small):
        found = catalog_log.read(partition_id)
        assert {each.key: each.value for each in found} == newest()
        assert len(found) == KEYS
    extents = catalog_log.extents(large, FileKind.COMPACTED)
    assert len(extents) == report.shares == 8
    assert all(extent.unique_keys for extent in extents)
    assert len(catalog_log.extents(small, FileKind.COMPACTED)) == 1


def test_a_file_larger_than_a_share_is_divided_among_tasks(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
) -> None:
    """The report names it, with the shares that read it, each by two ranged GETs and the section's index."""
    topic = catalog_log.create_topic("one-file", "compact")
    partition_id = PartitionId(topic.topic_id, 0)
    large = [
        batch(*((b"%d" % (10 * number + each), b"v" * 60_000) for each in range(10))) for number in range(45)
    ]
    catalog_log.ingest({partition_id: large})
    catalog_log.submit(topic)
    assert run_claimed(plan=PlanChoice.TASK).failures == []
    (compacted,) = catalog_log.extents(partition_id, FileKind.COMPACTED)
    name = compacted.object_name
    _, catalog_log.sizes[compacted.file_id] = catalog_log.store.read_tail(name, 1, purpose=Purpose.FSCK)
    small = catalog_log.ingest({partition_id: [batch((b"1", b"newest"))]})
    spec = catalog_log.submit(topic)

    report = run_claimed(plan=PlanChoice.SHUFFLE)

    assert report.failures == []
    (cut,) = report.cut_files
    assert (cut.job_id, cut.object_name) == (str(spec.job_id), name)
    assert cut.object_name != small
    assert len(cut.shares) == len(cut.ends) == report.byte_ranges == 4
    assert (report.input_files, report.input_files_cut, report.shares) == (2, 1, 5)
    assert (report.get_requests, report.index_reads) == (2 * 4 + 2, 2 * 3)
    found = catalog_log.read(partition_id)
    assert len(found) == report.keys == 450
    assert {each.key: each.value for each in found}[b"1"] == b"newest"


def test_a_failed_share_fails_its_job_without_output(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
    store_config: StoreConfig,
    catalog: Catalog,
) -> None:
    """The failure is a result, not a failed task, which Spark would retry."""
    partition_id = fill(catalog_log, "damaged", table_bytes=1024)
    directory = Path(store_config.url.removeprefix("file://"))
    path = directory / catalog_log.extents(partition_id)[4].object_name
    path.write_bytes(path.read_bytes()[:200])
    before = sorted(directory.rglob("*.seg"))

    report = run_claimed(plan=PlanChoice.SHUFFLE)

    (failure,) = report.failures
    assert failure.kind == "corrupt"
    assert path.name in failure.message
    assert catalog.jobs.counts()[JobState.FAILED] == 1
    assert sorted(directory.rglob("*.seg")) == before


def test_the_command_runs_a_shuffled_job_on_a_connect_server(
    spark: SparkForTests,
    catalog_log: CatalogLog,
    store_config: StoreConfig,
    catalog: Catalog,
    catalog_url: str,
    tmp_path: Path,
) -> None:
    verify_binding(catalog_log.store, catalog.store_binding, catalog_log.ids)
    partition_id = fill(catalog_log, "flights", table_bytes=1 << 20)
    command = [sys.executable, "-m", "siltstone", "compact", "--once", "--plan", "shuffle"]
    where = ["--object-store", store_config.url, "--spark-master", spark.connect_url]

    report = run_command([*command, *where, "--json"], as_url(catalog_url), tmp_path)

    assert (report["shuffled_jobs"], report["keys"]) == (1, KEYS)
    assert {each.key: each.value for each in catalog_log.read(partition_id)} == newest()
