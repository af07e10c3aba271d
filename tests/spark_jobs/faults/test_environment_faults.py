"""Faults of the environment suspect no file; a corrupt file among many is found alone."""

from __future__ import annotations

import importlib
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from catalog.jobs.json_format import SPEC_VERSION, write_spec
from catalog.model import FileKind, JobState, PartitionId
from object_format.codecs.codec import Codec, compress
from object_store.binding import verify_binding
from object_store.open import StoreConfig
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from spark_jobs import compact
from spark_jobs.session.spark_session import TASK_ATTEMPTS
from spark_jobs.shuffle.plan import PlanChoice
from spark_jobs.transport import pack_spec
from tests.spark_jobs.faults.call_on_unpickling import CallOnUnpickling
from tests.spark_jobs.faults.failing_store import failing_store
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.model import JobSpec
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids
    from spark_jobs.report import CompactionReport
    from tests.spark_jobs.catalog_log import CatalogLog
    from tests.spark_jobs.conftest import RunClaimed

pytestmark = [pytest.mark.spark, pytest.mark.integration]

FILES = 64


def submit(catalog_log: CatalogLog, name: str, value: bytes = b"new") -> PartitionId:
    """Create a topic with one file, and a job for it."""
    topic = catalog_log.create_topic(name, "compact")
    partition_id = PartitionId(topic.topic_id, 0)
    catalog_log.ingest({partition_id: [batch((b"key", b"old"), (b"key", value))]})
    catalog_log.submit(topic)
    return partition_id


def require_no_suspicion(catalog: Catalog, report: CompactionReport, error: str) -> None:
    assert report.failures
    assert {each.error for each in report.failures} == {error}
    assert all(each.released for each in report.failures)
    assert catalog.quarantine.list() == []
    assert catalog.jobs.counts()[JobState.FAILED] == 0
    assert catalog.jobs.claimable() == 0


@pytest.mark.parametrize("plan", [PlanChoice.TASK, PlanChoice.SHUFFLE])
def test_one_corrupt_file_among_64_is_quarantined_alone(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
    catalog: Catalog,
    clock: ManualClock,
    ids: Ids,
    store_config: StoreConfig,
    plan: PlanChoice,
) -> None:
    """Two jobs fail: one over all files, which names the file, and one over this file."""
    topic = catalog_log.create_topic("flights", "delete" if plan is PlanChoice.TASK else "compact")
    partition_id = PartitionId(topic.topic_id, 0)
    names = [catalog_log.ingest({partition_id: [batch((b"%d" % each, b"value"))]}) for each in range(FILES)]
    path = Path(store_config.url.removeprefix("file://")) / names[40]
    (damaged,) = (each for each in catalog_log.extents(partition_id) if each.object_name == names[40])
    content = bytearray(path.read_bytes())
    content[damaged.position + damaged.length - 1] ^= 0xFF
    path.write_bytes(content)
    failed = []

    for _ in range(3):
        plan_and_submit(catalog, clock, ids, PlannerSettings(force=True, table_bytes=1 << 20))
        failed += run_claimed(plan=plan).failures

    assert [each.file_id for each in failed] == [Path(names[40]).stem] * 2
    assert [each.object_name for each in catalog.quarantine.list(quarantined=True)] == [names[40]]
    assert [each.object_name for each in catalog_log.extents(partition_id, FileKind.INGESTION)] == [names[40]]


def test_rejected_credentials_pause_compaction_until_they_are_renewed(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
    catalog: Catalog,
    clock: ManualClock,
) -> None:
    """Each task is tried on other executors first. A job then tests whether the pause can end."""
    partitions = [submit(catalog_log, f"topic-{number}") for number in range(4)]
    with failing_store(400, "ExpiredToken") as server:
        store = StoreConfig("s3://a-bucket", endpoint=server.endpoint, region="us-east-1")
        report = run_claimed(store=store)
        assert server.requests >= 3 * TASK_ATTEMPTS

    assert 3 <= len(report.failures) <= 4
    assert {(each.error, each.released, each.file_id) for each in report.failures} == {
        ("StoreAccessError", True, None)
    }
    assert all("ExpiredToken" in each.message and "\n" not in each.message for each in report.failures)
    assert catalog.quarantine.list() == []
    pause = catalog.circuit_breaker.pause()
    assert pause is not None
    assert "ExpiredToken" in pause.message
    assert catalog.jobs.claim("another driver", 10) == []

    clock.advance(60)
    assert run_claimed().jobs == 1
    assert catalog.circuit_breaker.pause() is None
    assert run_claimed().jobs_completed == 3
    assert [[each.value for each in catalog_log.read(each)] for each in partitions] == [[b"new"]] * 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, on which the store is."""
    directory = tmp_path / "objects"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_suspects_no_file(
    small_disk: Path,
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
    catalog: Catalog,
    clock: ManualClock,
) -> None:
    """The job succeeds once there is space."""
    partition = submit(catalog_log, "flights", os.urandom(300_000))
    (small_disk / "filler").write_bytes(bytes(500_000))

    report = run_claimed()

    require_no_suspicion(catalog, report, "StoreUnavailableError")
    assert "No space left on device" in report.failures[0].message
    (small_disk / "filler").unlink()
    clock.advance(60)
    assert run_claimed().jobs_completed == 1
    assert len(catalog_log.read(partition)) == 1


def beyond_memory(spec: JobSpec) -> bytes:
    """Return a job whose key table is larger than any machine's memory."""
    partition_inputs = tuple(
        replace(file, extents=tuple(each._replace(record_count=1 << 56) for each in file.extents))
        for file in spec.inputs
    )
    return pack_spec(replace(spec, inputs=partition_inputs, table_bytes=1 << 60))


def of_another_version(spec: JobSpec) -> bytes:
    return compress(Codec.ZSTD, orjson.dumps({**orjson.loads(write_spec(spec)), "version": SPEC_VERSION + 1}))


def of_other_kernels(spec: JobSpec) -> bytes:
    return compress(Codec.ZSTD, write_spec(replace(spec, kernel_digest="ab" * 32)))


def of_a_package_that_is_not_installed(_spec: JobSpec) -> bytes:
    return CallOnUnpickling.of(importlib.import_module, "siltstone_extension")


@pytest.mark.parametrize(
    ("pack", "error", "text"),
    [
        (beyond_memory, "MemoryError", "MemoryError"),
        (of_another_version, "JobVersionError", "deploy the same version of Siltstone"),
        (of_other_kernels, "KernelMismatchError", "the driver has the kernels abababababab, but this worker"),
        (
            of_a_package_that_is_not_installed,
            "ModuleNotFoundError",
            "ModuleNotFoundError: No module named 'siltstone_extension'",
        ),
    ],
)
def test_a_fault_of_the_worker_suspects_no_file(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    pack: Callable[[JobSpec], bytes],
    error: str,
    text: str,
) -> None:
    """The report has the last line of the worker's traceback, without Spark's text around it."""
    submit(catalog_log, "flights")
    monkeypatch.setattr(compact, "pack_spec", pack)

    report = run_claimed(plan=PlanChoice.TASK)

    require_no_suspicion(catalog, report, error)
    assert text in report.failures[0].message
    assert "Traceback" not in report.failures[0].message
    (waiting,) = catalog.jobs.list({JobState.SUBMITTED})
    assert waiting.failure == report.failures[0].message


def test_a_missing_mount_suspects_no_file(
    run_claimed: RunClaimed, catalog_log: CatalogLog, catalog: Catalog, tmp_path: Path
) -> None:
    """Every object is missing, but so is the store's marker."""
    submit(catalog_log, "flights")

    report = run_claimed(store=StoreConfig(str(tmp_path / "not mounted")))

    require_no_suspicion(catalog, report, "StoreUnavailableError")
    assert "has no marker" in report.failures[0].message


def test_an_object_that_is_missing_from_its_store_is_quarantined(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
    catalog: Catalog,
    clock: ManualClock,
    ids: Ids,
    store_config: StoreConfig,
) -> None:
    """A second job looks for it again."""
    verify_binding(catalog_log.store, catalog.store_binding, ids)
    partition_id = submit(catalog_log, "flights")
    (extent,) = catalog_log.extents(partition_id)
    Path(store_config.url.removeprefix("file://"), extent.object_name).unlink()

    (failure,) = run_claimed().failures

    assert failure.file_id == str(extent.file_id)
    assert [each.quarantined_ms for each in catalog.quarantine.list()] == [None]
    plan_and_submit(catalog, clock, ids, PlannerSettings(force=True))
    assert run_claimed().failures[0].file_id == failure.file_id
    assert [each.file_id for each in catalog.quarantine.list(quarantined=True)] == [extent.file_id]
