"""Jobs on a real Spark, with a real catalog and a real store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catalog.model import FileKind, JobState, PartitionId
from core.clock import ManualClock
from object_store.binding import verify_binding
from object_store.local.store import LocalStore
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from spark_jobs.errors import JobCancelledError
from spark_jobs.queries import JobQueries, QueryJob
from spark_jobs.report import JobFailure
from spark_jobs.session.java import find_java, write_java_home
from spark_jobs.shuffle.plan import PlanChoice
from spark_jobs.task.entry import PackedJob
from spark_jobs.transport import pack_spec
from tests.catalog.checks import InvariantChecker
from tests.end_to_end.processes import as_url
from tests.planner.system import System
from tests.planner.transactional_log import TransactionalLog
from tests.spark_jobs.faults.call_on_unpickling import CallOnUnpickling
from tests.spark_jobs.quick_java import quick_java
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.model import JobResult, JobSpec
    from catalog.open import Catalog
    from core.ids import Ids
    from object_store.open import StoreConfig
    from tests.spark_jobs.catalog_log import CatalogLog
    from tests.spark_jobs.conftest import RunClaimed, SparkForTests

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROOT = Path(__file__).parents[2]


def fill(catalog_log: CatalogLog, name: str, *, submitted: bool = True) -> PartitionId:
    """Create a partition with three files of two records each, all of one key."""
    topic = catalog_log.create_topic(name, "compact")
    partition_id = PartitionId(topic.topic_id, 0)
    for index in range(3):
        catalog_log.ingest({partition_id: [batch((b"key", b"old"), (b"key", b"%d" % index))]})
    if submitted:
        catalog_log.submit(topic)
    return partition_id


def test_a_failed_job_does_not_affect_other_jobs_of_the_run(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
    store_config: StoreConfig,
    catalog: Catalog,
) -> None:
    first, damaged, last = (fill(catalog_log, name) for name in ("first", "damaged", "last"))
    path = Path(store_config.url.removeprefix("file://")) / catalog_log.extents(damaged)[1].object_name
    path.write_bytes(path.read_bytes()[:100])
    finished: list[str] = []

    report = run_claimed(progress=lambda outcome: finished.append(outcome.job.spec.partitions[0].topic_name))

    assert sorted(finished) == ["damaged", "first", "last"]
    assert [each.value for each in catalog_log.read(first)] == [b"2"]
    assert [each.value for each in catalog_log.read(last)] == [b"2"]
    assert len(catalog_log.extents(first, FileKind.COMPACTED)) == 1
    assert len(catalog_log.extents(damaged, FileKind.INGESTION)) == 3
    assert (report.jobs, report.jobs_completed) == (3, 2)
    assert (report.records_in, report.records_out, report.records_dropped) == (12, 2, 10)
    assert (report.input_files, report.get_requests, report.get_requests_per_input_file) == (6, 12, 2.0)
    (failure,) = report.failures
    assert (failure.error, failure.released) == ("CorruptFileError", False)
    assert failure.file_id is not None
    assert path.name == f"{failure.file_id}.seg"
    assert path.name in failure.message
    (failed,) = catalog.jobs.list({JobState.FAILED})
    assert failed.failure == failure.message
    (done, _) = catalog.jobs.list({JobState.COMPLETED})
    assert done.counts["get_requests"] == 6


def run_command(command: Sequence[str], catalog_url: str, directory: Path) -> dict[str, Any]:
    """Run a command that must succeed, and return its JSON report."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(write_java_home(find_java(os.environ), directory / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SILTSTONE_CATALOG": catalog_url,
    }
    child = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=600, check=False
    )
    assert child.returncode == 0, child.stderr
    lines = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
    # spark-submit sends the log of standard error to standard output.
    (report,) = (line for line in lines if "logger" not in line)
    assert isinstance(report, dict)
    return report


def test_the_command_runs_queued_jobs_on_a_connect_server(
    spark: SparkForTests,
    catalog_log: CatalogLog,
    store_config: StoreConfig,
    catalog: Catalog,
    catalog_url: str,
    tmp_path: Path,
) -> None:
    verify_binding(catalog_log.store, catalog.store_binding, catalog_log.ids)
    partition_id = fill(catalog_log, "flights")
    command = [sys.executable, "-m", "siltstone", "compact", "--once", "--object-store", store_config.url]

    report = run_command(
        [*command, "--json", "--spark-master", spark.connect_url], as_url(catalog_url), tmp_path
    )

    assert report["get_requests_per_input_file"] == 2.0
    assert [each.value for each in catalog_log.read(partition_id)] == [b"2"]
    assert catalog.jobs.counts()[JobState.COMPLETED] == 1


def test_the_command_uses_the_session_of_spark_submit(
    catalog_log: CatalogLog, store_config: StoreConfig, catalog: Catalog, catalog_url: str, tmp_path: Path
) -> None:
    """The command runs a queued job and a job that it plans itself."""
    verify_binding(catalog_log.store, catalog.store_binding, catalog_log.ids)
    queued = fill(catalog_log, "flights")
    planned = fill(catalog_log, "weather", submitted=False)
    submit = str(Path(sys.executable).with_name("spark-submit"))
    quick = ("--driver-java-options", quick_java())
    conf = ("--conf", "spark.ui.enabled=false", "--driver-memory", "512m", *quick)

    report = run_command(
        [
            *(submit, "--master", "local[1]", *conf, str(ROOT / "deploy" / "spark_submit.py")),
            *("compact", "--once", "--object-store", store_config.url, "--json"),
            *("--data-dir", str(tmp_path / "data")),
        ],
        as_url(catalog_url),
        tmp_path,
    )

    assert (report["rounds"], report["jobs_completed"]) == (1, 2)
    assert report["get_requests_per_input_file"] == 2.0
    assert [each.value for partition_id in (queued, planned) for each in catalog_log.read(partition_id)] == [
        b"2",
        b"2",
    ]
    assert catalog.jobs.counts()[JobState.COMPLETED] == 2


def query_job(spec: JobSpec, attempt_id: UUID, data: bytes | None = None) -> QueryJob:
    return QueryJob(PackedJob(spec.job_id, attempt_id, pack_spec(spec) if data is None else data))


def test_a_dying_worker_fails_only_its_own_job(
    spark: SparkForTests, catalog_log: CatalogLog, store_config: StoreConfig, catalog: Catalog, ids: Ids
) -> None:
    """Its worker dies in all of Spark's attempts."""
    fill(catalog_log, "good")
    fill(catalog_log, "deadly")
    healthy, deadly = catalog.jobs.claim("a test", 10)
    jobs = [
        query_job(healthy.spec, ids.new_uuid()),
        query_job(deadly.spec, ids.new_uuid(), CallOnUnpickling.of(os._exit, 3)),
    ]
    results: dict[UUID, JobResult | JobFailure] = {}

    with JobQueries(spark.session, store_config, tag="deadly") as running:
        running.start(jobs)
        while len(results) < 2:
            result = running.next_outcome(180)
            assert result is not None
            results[result[0]] = result[1]

    failure = results[jobs[1].packed.attempt_id]
    assert isinstance(failure, JobFailure)
    assert (failure.error, failure.file_id) == ("WorkerDiedError", None)
    assert "Python worker exited unexpectedly" in failure.message
    assert not isinstance(results[jobs[0].packed.attempt_id], JobFailure)


def test_a_stopped_run_releases_its_jobs(
    run_claimed: RunClaimed,
    catalog_log: CatalogLog,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sleeping worker is killed long before its sleep ends."""
    fill(catalog_log, "endless")
    monkeypatch.setattr("spark_jobs.compact.pack_spec", lambda _spec: CallOnUnpickling.of(time.sleep, 10_000))
    cancelled = threading.Event()
    timer = threading.Timer(2, cancelled.set)
    timer.start()

    with pytest.raises(JobCancelledError):
        run_claimed(cancelled=cancelled)

    timer.join()
    (job,) = catalog.jobs.list()
    assert job.state is JobState.SUBMITTED


def test_a_stopped_run_on_a_connect_server_ends(spark: SparkForTests) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.spark_jobs.faults.call_on_unpickling", spark.connect_url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert (child.returncode, child.stdout.splitlines()) == (0, ["None", "stopped"]), child.stderr


@pytest.mark.parametrize("choice", [PlanChoice.TASK, PlanChoice.SHUFFLE])
def test_spark_drops_aborted_records(
    run_claimed: RunClaimed, catalog: Catalog, tmp_path: Path, ids: Ids, choice: PlanChoice
) -> None:
    store, clock = LocalStore(tmp_path / "objects", ids), ManualClock()
    log = TransactionalLog(System.start(catalog, store, clock, ids))
    key = PartitionId(log.system.topic("t", cleanup_policy="compact").topic_id, 0)
    aborts, commits = log.producer("aborts"), log.producer("commits")
    log.write({key: [(None, [(b"a", b"kept"), (b"b", b"superseded")])]})
    log.write({key: [(aborts, [(b"a", b"aborted")]), (commits, [(b"b", b"newest")])]})
    log.write({key: [(aborts, [(b"b", None)])]})
    log.end(commits, commits=True)
    log.end(aborts, commits=False)
    plan_and_submit(catalog, clock, ids, PlannerSettings(force=True))

    report = run_claimed(plan=choice)

    assert report.failures == []
    assert (report.records_in, report.records_out, report.records_aborted) == (5, 2, 2)
    assert log.committed(key, 0, batches_each=1) == {0: (b"a", b"kept"), 3: (b"b", b"newest")}
    extents = log.batches(key, 0, 7)[1]
    assert all(each.file_kind is FileKind.COMPACTED for each in extents)
    assert (extents[0].base_offset, extents[-1].last_offset) == (0, 6)
    assert InvariantChecker(catalog).violations() == []
    store.close()
