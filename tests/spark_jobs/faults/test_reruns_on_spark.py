"""A job ends with an exact result, or with none, although Spark repeats tasks after faults."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catalog.model import JobState
from spark_jobs.compact import run_jobs
from spark_jobs.errors import JobCancelledError
from spark_jobs.report import CompactionReport
from spark_jobs.session.spark_session import TASK_ATTEMPTS
from spark_jobs.shuffle.plan import PlanChoice
from tests.end_to_end.processes import leftovers
from tests.spark_jobs.faults.job_under_faults import FILES, SHARES, TASKS, JobUnderFaults
from tests.spark_jobs.faults.planned_faults import (
    BEGIN,
    END,
    RECEIVE,
    SEND,
    STREAM_OPENED,
    UPLOAD_COMPLETED,
    Action,
    PlannedFaults,
)
from tests.spark_jobs.wrapped_python import write_python

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.clock import ManualClock
    from object_store.open import StoreConfig
    from tests.spark_jobs.catalog_log import CatalogLog
    from tests.spark_jobs.conftest import SparkForTests

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROOT = Path(__file__).parents[3]


class JobInSharedSession(JobUnderFaults):
    """A job that runs in the Spark session of all tests."""

    def __init__(
        self, faults: PlannedFaults, catalog_log: CatalogLog, spark: SparkForTests, store: StoreConfig
    ) -> None:
        super().__init__(faults, catalog_log, store)
        self._spark = spark

    def run(
        self, clock: ManualClock, plan: PlanChoice, cancelled: threading.Event | None = None
    ) -> CompactionReport:
        (job,) = self._catalog.jobs.claim("a test", 1)
        return run_jobs(
            self._spark.session,
            [job],
            store=self._store,
            book=self._catalog.jobs,
            clock=clock,
            ids=self._catalog_log.ids,
            plan=plan,
            cancelled=cancelled,
        )


@pytest.fixture
def faulty_job(
    spark: SparkForTests,
    catalog_log: CatalogLog,
    store_config: StoreConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> JobInSharedSession:
    shuffled = spark.session.sparkContext.getConf().get("spark.local.dir")
    assert shuffled is not None
    faults = PlannedFaults(tmp_path / "faults", Path(shuffled))
    faults.install(monkeypatch)
    return JobInSharedSession(faults, catalog_log, spark, store_config)


def test_spark_repeats_the_tasks_of_workers_that_die_in_any_stage(
    faulty_job: JobInSharedSession, clock: ManualClock
) -> None:
    """Spark repeats only the tasks of the dead workers; a file without a result is garbage."""
    faulty_job.faults.plan("cut-1.1", SEND, Action.KILL)
    faulty_job.faults.plan("judge-2.1", RECEIVE, Action.KILL, nth=5)
    faulty_job.faults.plan("write-3.1", RECEIVE, Action.KILL, nth=5)
    faulty_job.faults.plan("write-4.1", UPLOAD_COMPLETED, Action.KILL)

    report = faulty_job.run(clock, PlanChoice.SHUFFLE)

    faulty_job.check(report)
    started = faulty_job.faults.executions()
    assert started.keys() == TASKS
    assert {task for task, times in started.items() if times > 1} == {
        "cut-1",
        "judge-2",
        "write-3",
        "write-4",
    }
    assert set(started.values()) == {1, 2}
    assert faulty_job.faults.count_points(STREAM_OPENED).total() == report.get_requests + 2
    assert faulty_job.collect(clock) == 1


@pytest.mark.parametrize("where", ["judge-3.1", "write-3.1"])
def test_lost_outputs_of_a_stage_are_computed_again(
    faulty_job: JobInSharedSession, clock: ManualClock, where: str
) -> None:
    """Tasks that start later do not find the outputs that they need; earlier tasks have read them."""
    faulty_job.faults.plan(where, BEGIN, Action.DELETE_SHUFFLE_FILES)

    report = faulty_job.run(clock, PlanChoice.SHUFFLE)

    faulty_job.check(report)
    started = faulty_job.faults.executions()
    assert started.keys() == TASKS
    assert min(started[f"cut-{share}"] for share in range(SHARES)) > 1
    stage = where.partition("-")[0]
    again = [started[f"{stage}-{number}"] > 1 for number in range(3)]
    assert again.count(stage == "judge") >= 2  # one of the three may still have been running
    assert faulty_job.faults.count_points(STREAM_OPENED).total() >= report.get_requests + FILES
    uploads = faulty_job.faults.count_points(UPLOAD_COMPLETED).total()
    assert faulty_job.collect(clock) == uploads - report.compacted_files


def test_a_job_fails_if_lost_outputs_cannot_be_computed_again(
    faulty_job: JobInSharedSession, clock: ManualClock, catalog: Catalog
) -> None:
    """Some shares are written when the store fails; none is published before the job runs again."""
    faulty_job.faults.plan("write-3.1", BEGIN, Action.DELETE_SHUFFLE_FILES)
    for number in range(2, 2 + TASK_ATTEMPTS):
        faulty_job.faults.plan(f"cut-5.{number}", "before store.open_stream", Action.FAIL)

    (failure,) = faulty_job.run(clock, PlanChoice.SHUFFLE).failures

    assert (failure.error, failure.released) == ("StoreIsBusyError", True)
    assert "503" in failure.message
    assert faulty_job.faults.all_happened()
    assert catalog.jobs.counts()[JobState.SUBMITTED] == 1
    assert catalog.quarantine.list() == []
    clock.advance(60)
    again = faulty_job.run(clock, PlanChoice.SHUFFLE)
    faulty_job.check(again)
    uploads = faulty_job.faults.count_points(UPLOAD_COMPLETED).total()
    assert faulty_job.collect(clock) == uploads - again.compacted_files >= 2


def test_a_one_task_job_succeeds_although_workers_die(
    faulty_job: JobInSharedSession, clock: ManualClock
) -> None:
    """One worker dies in pass 2 during an upload, the next one between its upload and its result."""
    faulty_job.faults.plan("job-0.1", "after upload.write", Action.KILL)
    faulty_job.faults.plan("job-0.2", UPLOAD_COMPLETED, Action.KILL)

    report = faulty_job.run(clock, PlanChoice.TASK)

    faulty_job.check(report)
    assert faulty_job.faults.executions() == {"job-0": 3}
    # The first execution dies in `upload.write`. It may have opened the last stream, to read ahead.
    opened = faulty_job.faults.count_points(STREAM_OPENED).total()
    assert 3 * report.get_requests - 1 <= opened <= 3 * report.get_requests
    assert faulty_job.collect(clock) == 1


def test_a_stopped_shuffled_job_returns_to_the_queue(
    faulty_job: JobInSharedSession, clock: ManualClock, catalog: Catalog
) -> None:
    """One of the running tasks would never end."""
    faulty_job.faults.plan("judge-2.1", RECEIVE, Action.WAIT)
    cancelled, over = threading.Event(), threading.Event()

    def stop() -> None:
        while not (faulty_job.faults.all_happened() or over.wait(0.02)):
            pass
        cancelled.set()

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(JobCancelledError):
        faulty_job.run(clock, PlanChoice.SHUFFLE, cancelled)
    over.set()
    stopping.join()

    assert catalog.jobs.counts()[JobState.SUBMITTED] == 1
    assert not any(task.startswith("write") for task in faulty_job.faults.executions())
    faulty_job.check(faulty_job.run(clock, PlanChoice.SHUFFLE))
    assert faulty_job.collect(clock) == 0


@pytest.mark.timeout(900)
def test_a_job_survives_copied_tasks_and_a_dead_executor(
    catalog_log: CatalogLog,
    store_config: StoreConfig,
    catalog_url: str,
    clock: ManualClock,
    tmp_path: Path,
) -> None:
    """If a task waits on one of the two executors, Spark runs a copy of it on the other.

    One executor dies in the last stage, with half of the shuffle files; the other one still has its half.
    The executors run the Python of Spark's settings, which PySpark itself leaves to `spark-submit`.
    """
    python, started_pythons = tmp_path / "python", tmp_path / "pythons"
    write_python(python, f"echo $$ >> {shlex.quote(str(started_pythons))}")
    faults = PlannedFaults(tmp_path / "faults", tmp_path)
    log = JobUnderFaults(faults, catalog_log, store_config)
    faults.plan("cut-1.1", END, Action.WAIT)
    faults.plan("judge-2.1", SEND, Action.WAIT)
    faults.plan("write-0.1", "before upload.complete", Action.WAIT)
    faults.plan("write-7.1", BEGIN, Action.KILL_EXECUTOR)
    command = [sys.executable, "-m", "tests.spark_jobs.faults.small_cluster"]

    ran = subprocess.run(
        [*command, catalog_url, store_config.url, str(faults.directory), str(python)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    log.check(CompactionReport(**json.loads(ran.stdout.splitlines()[-1])))
    started = faults.executions()
    assert started.keys() == TASKS
    assert min(started[task] for task in ("cut-1", "judge-2", "write-0", "write-7")) > 1
    log.collect(clock)
    assert len(started_pythons.read_text().split()) >= 2
    assert leftovers(tmp_path) == []
