"""Whatever a real Spark runs again, as workers die or outputs are lost: jobs end exact, or not at all."""

from __future__ import annotations

import json
import os
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
from spark_jobs.shuffle.plan import PlanChoice
from tests.end_to_end.processes import leftovers
from tests.spark_jobs.task.struck_kernels import ASKED, BEGIN, END, GIVE, TAKE, UPLOADED, Deed, Strikes
from tests.spark_jobs.task.struck_log import FILES, SHARES, TASKS, StruckLog

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.clock import ManualClock
    from object_store.open import StoreConfig
    from tests.spark_jobs.conftest import SparkForTests
    from tests.spark_jobs.published_log import PublishedLog

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROOT = Path(__file__).parents[2]


class Rerun(StruckLog):
    """Its job runs in the session of all tests."""

    def __init__(
        self, strikes: Strikes, published: PublishedLog, spark: SparkForTests, store: StoreConfig
    ) -> None:
        super().__init__(strikes, published, store)
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
            ids=self._published.ids,
            plan=plan,
            cancelled=cancelled,
        )


@pytest.fixture
def rerun(
    spark: SparkForTests,
    published: PublishedLog,
    store_config: StoreConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Rerun:
    shuffled = spark.session.sparkContext.getConf().get("spark.local.dir")
    assert shuffled is not None
    strikes = Strikes(tmp_path / "strikes", Path(shuffled))
    strikes.install(monkeypatch)
    return Rerun(strikes, published, spark, store_config)


def test_workers_that_die_at_every_stage_of_the_exact_plan(rerun: Rerun, clock: ManualClock) -> None:
    """Spark runs the tasks again that they had, and no others; a file that is not answered for is garbage."""
    rerun.strikes.arm("cut-1.1", GIVE, Deed.KILL)
    rerun.strikes.arm("judge-2.1", TAKE, Deed.KILL, passage=5)
    rerun.strikes.arm("write-3.1", TAKE, Deed.KILL, passage=5)
    rerun.strikes.arm("write-4.1", UPLOADED, Deed.KILL)

    report = rerun.run(clock, PlanChoice.SHUFFLE)

    rerun.check(report)
    started = rerun.strikes.executions()
    assert started.keys() == TASKS
    assert {task for task, times in started.items() if times > 1} == {
        "cut-1",
        "judge-2",
        "write-3",
        "write-4",
    }
    assert set(started.values()) == {1, 2}
    assert rerun.strikes.passages(ASKED).total() == report.get_requests + 2
    assert rerun.collect(clock) == 1


@pytest.mark.parametrize("where", ["judge-3.1", "write-3.1"])
def test_outputs_that_are_lost_between_stages_are_made_again(
    rerun: Rerun, clock: ManualClock, where: str
) -> None:
    """Tasks that come later do not find what they are to fetch; those before have had it."""
    rerun.strikes.arm(where, BEGIN, Deed.LOSE)

    report = rerun.run(clock, PlanChoice.SHUFFLE)

    rerun.check(report)
    started = rerun.strikes.executions()
    assert started.keys() == TASKS
    assert min(started[f"cut-{share}"] for share in range(SHARES)) > 1
    stage = where.partition("-")[0]
    again = [started[f"{stage}-{number}"] > 1 for number in range(3)]
    assert again.count(stage == "judge") >= 2  # one of the three may not have been over by then
    assert rerun.strikes.passages(ASKED).total() >= report.get_requests + FILES
    uploads = rerun.strikes.passages(UPLOADED).total()
    assert rerun.collect(clock) == uploads - report.compacted_files


def test_outputs_that_cannot_be_made_again_fail_the_job(
    rerun: Rerun, clock: ManualClock, catalog: Catalog
) -> None:
    """Some shares have written when the store fails; nothing of it is published before the job runs again."""
    rerun.strikes.arm("write-3.1", BEGIN, Deed.LOSE)
    rerun.strikes.arm("cut-5.2", "before store.open_stream", Deed.FAIL)

    (failure,) = rerun.run(clock, PlanChoice.SHUFFLE).failures

    assert (failure.kind, failure.released) == ("retryable", True)
    assert "503" in failure.message
    assert rerun.strikes.are_spent()
    assert catalog.jobs.counts()[JobState.SUBMITTED] == 1
    again = rerun.run(clock, PlanChoice.SHUFFLE)
    rerun.check(again)
    uploads = rerun.strikes.passages(UPLOADED).total()
    assert rerun.collect(clock) == uploads - again.compacted_files >= 2


def test_workers_that_die_in_a_job_that_is_one_task(rerun: Rerun, clock: ManualClock) -> None:
    """In the second pass, with an upload started, and when the file is there but no answer is."""
    rerun.strikes.arm("job-0.1", "after upload.write", Deed.KILL)
    rerun.strikes.arm("job-0.2", UPLOADED, Deed.KILL)

    report = rerun.run(clock, PlanChoice.TASK)

    rerun.check(report)
    assert rerun.strikes.executions() == {"job-0": 3}
    # An upload's first bytes go before the last file is asked for.
    assert rerun.strikes.passages(ASKED).total() == 3 * report.get_requests - 1
    assert rerun.collect(clock) == 1


def test_a_spread_job_that_is_stopped_goes_back_to_the_queue(
    rerun: Rerun, clock: ManualClock, catalog: Catalog
) -> None:
    """While its tasks are at work, of which one would never end by itself."""
    rerun.strikes.arm("judge-2.1", TAKE, Deed.HOLD)
    cancelled, over = threading.Event(), threading.Event()

    def stop() -> None:
        while not (rerun.strikes.are_spent() or over.wait(0.02)):
            pass
        cancelled.set()

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(JobCancelledError):
        rerun.run(clock, PlanChoice.SHUFFLE, cancelled)
    over.set()
    stopping.join()

    assert catalog.jobs.counts()[JobState.SUBMITTED] == 1
    assert not any(task.startswith("write") for task in rerun.strikes.executions())
    rerun.check(rerun.run(clock, PlanChoice.SHUFFLE))
    assert rerun.collect(clock) == 0


@pytest.mark.timeout(900)
def test_copies_of_tasks_and_the_death_of_an_executor(
    published: PublishedLog,
    store_config: StoreConfig,
    catalog_url: str,
    clock: ManualClock,
    tmp_path: Path,
) -> None:
    """On two executors. Where one is held, Spark runs its task once more on the other.

    In the last stage one dies, and with it half of what was shuffled, while the other still has its half.
    """
    strikes = Strikes(tmp_path / "strikes", tmp_path)
    log = StruckLog(strikes, published, store_config)
    strikes.arm("cut-1.1", END, Deed.HOLD)
    strikes.arm("judge-2.1", GIVE, Deed.HOLD)
    strikes.arm("write-0.1", "before upload.complete", Deed.HOLD)
    strikes.arm("write-7.1", BEGIN, Deed.KILL_EXECUTOR)
    command = [sys.executable, "-m", "tests.spark_jobs.small_cluster"]

    ran = subprocess.run(
        [*command, catalog_url, store_config.url, str(strikes.directory)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    log.check(CompactionReport(**json.loads(ran.stdout.splitlines()[-1])))
    started = strikes.executions()
    assert started.keys() == TASKS
    assert min(started[task] for task in ("cut-1", "judge-2", "write-0", "write-7")) > 1
    log.collect(clock)
    assert leftovers(tmp_path) == []
