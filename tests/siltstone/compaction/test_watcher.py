"""Watchers with a real catalog and real jobs, which run in the test's process, without Spark."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, cast
from urllib.request import urlopen

import psycopg
import pytest
from typing_extensions import override

from catalog.errors import CatalogUnavailableError, SchemaVersionError
from catalog.model import JobState, PartitionId
from core.clock import ManualClock, SystemClock
from core.errors import InvalidInputError
from core.ids import SystemIds
from maintenance.settings import MaintenanceSettings
from object_store.binding import verify_binding
from object_store.local.store import LocalStore
from object_store.open import StoreConfig, open_store
from planner.settings import PlannerSettings
from siltstone.compaction.compactor import CompactionOptions, claim_jobs, plan_jobs
from siltstone.compaction.watcher import Watcher, WatcherStatus
from siltstone.compaction.watcher_metrics import WatcherCollector, serve_metrics
from siltstone.context import AppContext
from siltstone.interrupts import Interrupts
from siltstone.settings.configuration import Settings
from siltstone.settings.sources import load_settings
from spark_jobs.compact import JobOutcome
from spark_jobs.errors import JobCancelledError, SparkUnavailableError
from spark_jobs.report import CompactionReport, JobFailure
from spark_jobs.session.spark_session import SparkSettings
from spark_jobs.session_manager import SparkSessionManager
from spark_jobs.task.compaction_task import run_compaction
from tests.spark_jobs.catalog_log import CatalogLog
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from uuid import UUID

    from catalog.model import Job
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from spark_jobs.compact import JobBook

pytestmark = pytest.mark.integration
TIMEOUT_SECONDS = 240
GARBAGE = MaintenanceSettings()


class InProcessSession(SparkSessionManager):
    """Session that runs jobs in the caller's thread, one at a time.

    `before` is called with each job and may raise. `running` has the number of jobs that ran at each call.
    """

    def __init__(self, slots: int, before: Callable[[Job], None] = lambda _job: None) -> None:
        super().__init__(SparkSettings())
        self.before = before
        self.starts = self.checks = 0
        self.running: list[int] = []
        self._slots = slots
        self._is_there = False

    @property
    @override
    def is_started(self) -> bool:
        return self._is_there

    @override
    def start(self) -> None:
        self.starts += not self._is_there
        self._is_there = True

    @override
    def check(self, *_: object, **__: object) -> None:
        self.checks += 1

    @property
    @override
    def slots(self) -> int:
        return self._slots

    @override
    def drop(self) -> None:
        self._is_there = False

    @override
    def run(self, jobs: Sequence[Job], **options: object) -> CompactionReport:
        report = CompactionReport()
        clock = SystemClock()
        ids = SystemIds(clock)
        config = cast("StoreConfig", options["store"])
        book = cast("JobBook", options["book"])
        more = cast("Callable[[int], Sequence[Job]]", options.get("more", lambda _running: ()))
        running = list(jobs)
        while running:
            self.running.append(len(running))
            job = running.pop(0)
            report.jobs += 1
            self.before(job)
            if cast("threading.Event", options["cancelled"]).is_set():
                raise JobCancelledError("the run was stopped")
            assert job.attempt_id is not None
            with closing(open_store(config, clock, ids)) as store:
                result = run_compaction(job.spec, store, attempt_id=job.attempt_id, clock=clock, ids=ids)
            book.complete(result, job.spec)
            report.add(result)
            cast("Callable[[JobOutcome], None]", options["progress"])(
                JobOutcome(job=job, result=result, failure=None)
            )
            running += more(len(running))
        return report


class Log(CatalogLog):
    """A log and its watchers."""

    def __init__(self, catalog: Catalog, directory: Path, ids: Ids) -> None:
        self.directory = directory
        self.partitions: list[PartitionId] = []
        super().__init__(catalog, LocalStore(directory, ids), ids)
        verify_binding(self.store, catalog.store_binding, ids)

    def add(self, name: str) -> None:
        """Create a topic with a file of two records of one key."""
        partition = PartitionId(self.create_topic(name, "compact").topic_id, 0)
        self.partitions.append(partition)
        self.ingest({partition: [batch((b"k", b"old"), (b"k", b"new"))]})

    def context(self) -> AppContext:
        return AppContext(
            catalog=self.catalog,
            store=self.store,
            store_config=StoreConfig(str(self.directory)),
            clock=self.catalog.clock,
            ids=SystemIds(SystemClock()),
        )

    def watcher(self, session: InProcessSession, **changes: object) -> Watcher:
        """Return a watcher that waits for no further files, unless `changes` say so."""
        given = {"data_dir": self.directory.parent / "data", "max_job_files": 1, **changes}
        settings = load_settings(given)
        return Watcher(self.context(), settings, CompactionOptions(), interval_seconds=0.05, session=session)

    def is_compacted(self) -> bool:
        return all([each.value for each in self.read(partition)] == [b"new"] for partition in self.partitions)


@pytest.fixture
def log(catalog: Catalog, tmp_path: Path, ids: Ids) -> Iterator[Log]:
    made = Log(catalog, tmp_path / "objects", ids)
    yield made
    made.store.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition()`."""
    clock = SystemClock()
    end = clock.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert clock.monotonic() < end
        clock.sleep(0.02)


def test_two_watchers_share_the_work(log: Log) -> None:
    """Neither continues before the other has a job, too; no job is done twice."""
    both = threading.Barrier(2, timeout=TIMEOUT_SECONDS)
    met = [False, False]

    def meeting(number: int) -> Callable[[Job], None]:
        def meet(_job: Job) -> None:
            if not met[number]:
                met[number] = True
                both.wait()

        return meet

    for number in range(7):
        log.add(f"topic-{number}")
    interrupts = [Interrupts(), Interrupts()]
    watchers = [log.watcher(InProcessSession(2, meeting(number))) for number in range(2)]
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(each.run, stop) for each, stop in zip(watchers, interrupts, strict=True)]
        try:
            until(lambda: any(each.done() for each in running) or log.is_compacted())
        finally:
            for stop in interrupts:
                stop.requested.set()
        statuses = [each.result(TIMEOUT_SECONDS) for each in running]

    done = [status.run.compaction.jobs_completed for status in statuses]
    assert min(done) > 0
    assert sum(done) == 7
    assert log.catalog.jobs.counts()[JobState.COMPLETED] == 7


def test_a_watcher_plans_until_every_task_slot_has_a_job(log: Log) -> None:
    """A plan examines one file. The first poll starts the session, and knows its slots only then."""
    for number in range(9):
        log.add(f"topic-{number}")
    session = InProcessSession(4)
    watcher = log.watcher(session, max_plan_files=1)

    watcher.poll(Interrupts())

    assert session.running[0] == 4
    assert log.is_compacted()


def test_a_slot_gets_another_job_while_the_others_go_on(log: Log) -> None:
    """All slots have jobs as long as there are enough; jobs that come meanwhile run in the same round."""
    for number in range(7):
        log.add(f"topic-{number}")
    counted: list[int] = []

    def before(_job: Job) -> None:
        counted.append(watcher.status.run.compaction.jobs)
        if len(session.running) == 3:
            log.add("late")

    session = InProcessSession(3, before)
    watcher = log.watcher(session)

    assert watcher.poll(Interrupts()) == 0

    assert session.running == [3, 3, 3, 3, 3, 3, 2, 1]
    assert counted == [3, 4, 5, 6, 7, 8, 8, 8]  # while the round goes on
    assert (watcher.status.run.rounds, watcher.status.run.compaction.jobs_completed) == (1, 8)
    assert watcher.status.jobs_running == 0
    assert log.is_compacted()


def test_free_slots_get_the_waiting_jobs_before_more_are_planned(log: Log) -> None:
    """A plan examines one file here. Both slots would be idle while it is made."""
    for number in range(3):
        log.add(f"topic-{number}")
    watcher = log.watcher(InProcessSession(2), max_plan_files=1)
    stopped = threading.Event()
    assert watcher._plan(1, stopped) == 1

    def plans() -> int:
        return log.catalog.operation_counts()["planning.ingestion_files"].calls

    before = plans()
    assert len(watcher._further_jobs(stopped, 2).jobs) == 1
    assert plans() == before
    assert len(watcher._further_jobs(stopped, 1).jobs) == 1
    assert plans() > before


def test_an_outage_ends_the_supply_but_not_the_jobs(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll then fails like any other that meets the outage."""
    for number in range(5):
        log.add(f"topic-{number}")
    session = InProcessSession(2)
    watcher = log.watcher(session)
    calls = 0

    def check_schema() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise CatalogUnavailableError("no response")

    monkeypatch.setattr(watcher._context.catalog.sessions, "check_schema", check_schema)

    assert watcher.poll(Interrupts()) > 0

    assert session.running == [2, 2, 1]
    assert (watcher.status.polls_failed, watcher.status.run.compaction.jobs_completed) == (1, 3)
    assert log.catalog.jobs.counts()[JobState.RUNNING] == 0


def test_nothing_is_planned_while_the_queue_fills_all_slots(log: Log) -> None:
    for number in range(3):
        log.add(f"topic-{number}")
    planner = log.watcher(InProcessSession(1))._planner
    assert plan_jobs(log.context(), planner, GARBAGE).waiting == 3
    before = log.catalog.operation_counts()["planning.ingestion_files"].calls
    assert plan_jobs(log.context(), planner, GARBAGE, slots=3).waiting == 3
    assert log.catalog.operation_counts()["planning.ingestion_files"].calls == before


def test_expired_records_are_not_compacted(log: Log) -> None:
    """Retention is applied before planning, and the run reports what expired."""
    partition = PartitionId(log.create_topic("old", "delete").topic_id, 0)
    log.ingest({partition: [batch((b"k", b"v"))]})
    watcher = log.watcher(InProcessSession(1))

    watcher.poll(Interrupts())

    done = watcher.status.run
    assert (done.compaction.jobs, done.expired.extents) == (0, 1)
    assert done.as_dict()["expired_bytes"] == done.expired.size > 0


def test_a_watcher_rests_under_a_trickle(log: Log) -> None:
    """It polls after each of 40 files, and runs one job for every ten of them."""
    never_ms = 10**15  # the clocks of the catalog and of the watcher differ here
    pace = {"min_ingestion_files": 10, "max_ingestion_age_ms": never_ms}
    watcher = log.watcher(InProcessSession(1), max_job_files=100, **pace)
    partition = PartitionId(log.create_topic("flights", "compact").topic_id, 0)
    pauses = []
    for number in range(40):
        log.ingest({partition: [batch((b"k", b"%d" % number))]})
        pauses.append(watcher.poll(Interrupts()))

    done = watcher.status.run
    assert (done.rounds, done.compaction.jobs, done.compaction.input_files) == (4, 4, 40 + 3)
    assert [number + 1 for number, pause in enumerate(pauses) if pause == 0] == [10, 20, 30, 40]


def test_a_watcher_takes_over_the_jobs_of_a_dead_one(
    log: Log, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so only after the timeout for heartbeats."""
    at_once = MaintenanceSettings(fence_confirm_ms=0)
    monkeypatch.setattr(Settings, "maintenance_settings", lambda _self: at_once)
    log.add("flights")
    planned = log.watcher(InProcessSession(1))
    plan_jobs(log.context(), planned._planner, GARBAGE)
    assert len(claim_jobs(log.context(), "a driver", 10)) == 1  # by a run that sends no heartbeats
    watcher = log.watcher(InProcessSession(1))

    assert watcher.poll(Interrupts()) > 0
    assert log.catalog.jobs.counts()[JobState.RUNNING] == 1

    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE jobs SET heartbeat_ms = heartbeat_ms - %s", (GARBAGE.job_silence_ms + 1,))
    assert watcher.poll(Interrupts()) == 0
    assert log.is_compacted()


def test_a_job_whose_end_a_watcher_could_not_report_runs_again_in_the_next_poll(log: Log) -> None:
    """The catalog did not respond until the run had ended. The job need not be silent for long first."""

    class Unreported(InProcessSession):
        @override
        def run(self, jobs: Sequence[Job], **options: object) -> CompactionReport:
            self.run = super().run  # type: ignore[method-assign]  # only once
            report = CompactionReport(jobs=len(jobs))
            for each in jobs:
                failure = JobFailure.of(each.spec.job_id, CatalogUnavailableError("no response"))
                report.failures.append(failure)
                cast("Callable[[JobOutcome], None]", options["progress"])(
                    JobOutcome(job=each, result=None, failure=failure, unreported=True)
                )
            return report

    log.add("ice")
    watcher, stop = log.watcher(Unreported(1)), Interrupts()
    for _ in range(2):
        watcher.poll(stop)
    assert log.is_compacted()
    (job,) = log.catalog.jobs.list()
    assert (job.state, job.attempts) == (JobState.COMPLETED, 2)


def test_a_job_whose_claim_got_no_response_runs_in_the_next_poll(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog has committed the claim, and then did not respond for long."""
    jobs = log.catalog.jobs

    def lose_response(application_id: str, limit: int) -> list[Job]:
        monkeypatch.undo()
        jobs.claim(application_id, limit)
        raise CatalogUnavailableError("no response")

    log.add("ice")
    watcher, stop = log.watcher(InProcessSession(1)), Interrupts()
    monkeypatch.setattr(jobs, "claim", lose_response)
    watcher.poll(stop)
    assert watcher.status.polls_failed == 1
    watcher.poll(stop)
    assert log.is_compacted()


def test_jobs_that_may_have_killed_a_driver_run_one_after_the_other(log: Log, catalog_url: str) -> None:
    """A watcher that looks for further jobs meanwhile gets none."""
    for name in ("flights", "weather", "trains"):
        log.add(name)
    further: list[int] = []
    session = InProcessSession(
        2, lambda _job: further.append(len(watcher._further_jobs(threading.Event(), 1).jobs))
    )
    watcher = log.watcher(session)
    plan_jobs(log.context(), watcher._planner, GARBAGE, slots=3)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE jobs SET deaths = 2")
    while not watcher.poll(Interrupts()):
        pass
    assert log.is_compacted()
    assert (session.running, further) == ([1, 1, 1], [0, 0, 0])


def test_planning_waits_until_the_silence_of_a_run_is_confirmed(log: Log, clock: Clock) -> None:
    """Nothing else is to be done. A run that sends a heartbeat meanwhile keeps its jobs."""
    assert isinstance(clock, ManualClock)
    advance = clock.advance

    class Looks(threading.Event):
        waits = 0

        @override
        def wait(self, timeout: float | None = None) -> bool:
            self.waits += 1
            advance(timeout or 0)
            if self.waits == 10:
                log.catalog.jobs.heartbeat(heard.spec.job_id, cast("UUID", heard.attempt_id))
            return False

    for name in ("flights", "weather"):
        log.add(name)
    planner = log.watcher(InProcessSession(1))._planner
    plan_jobs(log.context(), planner, GARBAGE)
    dead, heard = claim_jobs(log.context(), "a driver", 10)
    clock.advance((GARBAGE.job_silence_ms + 1) / 1000)
    planned = plan_jobs(log.context(), planner, GARBAGE, Looks())
    assert planned.waiting == 1
    assert log.catalog.jobs.get(dead.spec.job_id).state is JobState.SUBMITTED
    assert log.catalog.jobs.get(heard.spec.job_id).state is JobState.RUNNING


def test_a_stopped_watcher_releases_its_jobs(log: Log) -> None:
    for name in ("flights", "weather"):
        log.add(name)
    stop = Interrupts()
    watcher = log.watcher(InProcessSession(2, lambda _job: stop.requested.set()))

    status = watcher.run(stop)

    counts = log.catalog.jobs.counts()
    assert (counts[JobState.SUBMITTED], counts[JobState.RUNNING]) == (2, 0)
    assert (status.run.compaction.jobs_completed, status.jobs_running) == (0, 0)


def test_a_lost_session_is_replaced(log: Log) -> None:
    """The poll fails and its jobs return to the queue; the next poll runs them."""
    log.add("flights")
    failures = [SparkUnavailableError("the session is lost")]

    def fail_once(_job: Job) -> None:
        if failures:
            raise failures.pop()

    session = InProcessSession(1, fail_once)
    watcher = log.watcher(session)

    assert watcher.poll(Interrupts()) > 0
    assert log.catalog.jobs.counts()[JobState.SUBMITTED] == 1
    assert watcher.poll(Interrupts()) == 0

    assert log.is_compacted()
    assert (session.starts, watcher.status.polls, watcher.status.polls_failed) == (2, 2, 1)


def test_a_watcher_that_a_migration_excludes_ends_before_its_next_round(log: Log, catalog_url: str) -> None:
    log.add("flights")
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute("UPDATE siltstone.schema_version SET version = 99, min_version = 98")
    watcher = log.watcher(InProcessSession(1))
    with pytest.raises(SchemaVersionError, match="upgrade Siltstone"):
        watcher.poll(Interrupts())
    assert not log.is_compacted()


def test_a_single_run_plans_no_job_after_such_a_migration(log: Log, catalog_url: str) -> None:
    log.add("flights")
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute("UPDATE siltstone.schema_version SET version = 99, min_version = 98")
    with pytest.raises(SchemaVersionError, match="upgrade Siltstone"):
        plan_jobs(log.context(), PlannerSettings(), MaintenanceSettings())
    assert log.catalog.jobs.list() == []


def test_metrics_report_the_counts_of_the_watcher(log: Log) -> None:
    """They are served over HTTP, under the names of job reports."""
    log.add("flights")
    watcher = log.watcher(InProcessSession(1))
    watcher.poll(Interrupts())

    with serve_metrics(watcher.status, ("127.0.0.1", 0)) as address:
        assert address is not None
        with urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=240) as response:
            lines = response.read().decode().splitlines()
        with pytest.raises(InvalidInputError, match="name another"), serve_metrics(WatcherStatus(), address):
            pass

    found = dict(line.split() for line in lines if not line.startswith("#"))
    assert found["siltstone_compaction_jobs_completed_total"] == "1.0"
    assert found["siltstone_compaction_get_requests_total"] == "2.0"
    assert found["siltstone_compaction_polls_total"] == "1.0"
    assert float(found["siltstone_compaction_peak_rss_bytes_max"]) > 0


def fail_alone(log: Log, watcher: Watcher) -> None:
    """Plan as a watcher does, and let its only job prove that its only file is corrupt."""
    plan_jobs(log.context(), watcher._planner, GARBAGE)
    (job,) = claim_jobs(log.context(), "a driver", 1)
    assert job.attempt_id is not None
    (file,) = job.spec.inputs
    log.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "a checksum differs", suspects=[file.file_id])


def test_a_file_that_could_not_be_read_once_is_read_again_at_once(log: Log) -> None:
    """Also by a watcher that waits for more new files."""
    log.add("flights")
    fail_alone(log, log.watcher(InProcessSession(1)))

    log.watcher(InProcessSession(1), max_job_files=100).poll(Interrupts())

    assert log.is_compacted()
    assert log.catalog.quarantine.list() == []


def test_metrics_report_waiting_and_quarantined_files(log: Log) -> None:
    """A file that fails alone twice is quarantined, and no longer counts as waiting."""
    log.add("flights")
    watcher = log.watcher(InProcessSession(1))
    fail_alone(log, watcher)
    fail_alone(log, watcher)
    watcher.poll(Interrupts())

    found = {
        metric.name.removeprefix("siltstone_compaction_"): metric
        for metric in WatcherCollector(watcher.status).collect()
    }
    gauges = {name: metric.samples[0].value for name, metric in found.items() if metric.type == "gauge"}
    expected = {
        "quarantined_files": 1,
        "quarantine_candidate_files": 1,
        "ingestion_files": 0,
        "ingestion_bytes": 0,
        "jobs_waiting": 0,
        "jobs_deferred": 0,
    }
    assert {name: gauges[name] for name in expected} == expected
