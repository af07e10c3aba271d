"""A broken environment is found before jobs are claimed, and the error names what to correct."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from core.clock import SystemClock
from object_store.binding import verify_binding
from object_store.names import WRITE_CHECK_NAME
from object_store.open import StoreConfig
from spark_jobs import preflight
from spark_jobs.errors import PreflightError
from spark_jobs.preflight import check_workers
from spark_jobs.task.worker_check import WorkerCheck, report_of_this_process
from tests.spark_jobs.faults.call_on_unpickling import CallOnUnpickling
from tests.spark_jobs.faults.failing_store import failing_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.open import Catalog
    from core.ids import Ids
    from spark_jobs.task.worker_check import WorkerReport
    from tests.spark_jobs.catalog_log import CatalogLog
    from tests.spark_jobs.conftest import SparkForTests

    Check = Callable[..., list[WorkerReport]]

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROOT = Path(__file__).parents[2]
CLOCK = SystemClock()


@pytest.fixture
def store_id(catalog: Catalog, catalog_log: CatalogLog, ids: Ids) -> UUID:
    """The id of the catalog's store."""
    verify_binding(catalog_log.store, catalog.store_binding, ids)
    recorded = catalog.store_binding.recorded()
    assert recorded is not None
    return recorded.store_id


@pytest.fixture
def check(spark: SparkForTests, store_config: StoreConfig, store_id: UUID, ids: Ids) -> Check:
    """A function that checks the workers of the shared session."""

    def check(*, store: StoreConfig = store_config, store_id: UUID = store_id) -> list[WorkerReport]:
        return check_workers(spark.session, store, store_id, clock=CLOCK, ids=ids)

    return check


def test_workers_with_the_drivers_versions_and_access_to_the_store_pass(
    check: Check, store_config: StoreConfig
) -> None:
    """Nothing is left in the store."""
    reports = check()

    assert len(reports) == 2
    assert all(each.versions == report_of_this_process().versions for each in reports)
    assert {"siltstone", "kernels", "Python", "numba", "pyarrow"} == reports[0].versions.keys()
    assert not Path(store_config.url.removeprefix("file://"), WRITE_CHECK_NAME).exists()


def test_another_store_is_refused(check: Check) -> None:
    with pytest.raises(PreflightError, match=r"is not the catalog's store.*correct the mount"):
        check(store_id=UUID(int=7))


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [(400, "ExpiredToken", "renew the session's"), (403, "AccessDenied", "allow these")],
)
def test_rejected_credentials_are_named(check: Check, status: int, code: str, remedy: str) -> None:
    with (
        failing_store(status, code) as server,
        pytest.raises(PreflightError, match=rf"{code}.*{remedy} credentials"),
    ):
        check(store=StoreConfig("s3://a-bucket", endpoint=server.endpoint, region="us-east-1"))


def test_a_store_that_cannot_be_written_is_refused(check: Check, store_config: StoreConfig) -> None:
    """A file is where the directory of objects must be."""
    blocked = Path(store_config.url.removeprefix("file://"), "v2")
    blocked.touch()

    with pytest.raises(PreflightError, match=r"v2/write-check"):
        check()


def test_different_versions_are_listed(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = report_of_this_process()
    ours.versions |= {"siltstone": "99", "kernels": "abababababab"}
    monkeypatch.setattr(preflight, "report_of_this_process", lambda: ours)

    with pytest.raises(PreflightError, match=r"instead of 99, kernels \w+ instead of abababababab .install"):
        check()


def test_workers_without_siltstone_are_reported_by_the_last_line_of_their_traceback(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = CallOnUnpickling.of(importlib.import_module, "siltstone_worker")
    monkeypatch.setattr(WorkerCheck, "__init__", lambda self, *_: setattr(self, "_store", missing))

    with pytest.raises(PreflightError) as refusal:
        check()

    assert refusal.value.message == (
        "Spark's workers cannot run Siltstone: ModuleNotFoundError: No module named 'siltstone_worker'"
    )


def test_the_warm_up_of_compaction_loads_every_kernel(tmp_path: Path) -> None:
    """`siltstone warm-kernels` relies on it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark_jobs.kernels_after_warm_up", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
