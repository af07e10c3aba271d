"""Publication and failure of the jobs of one run, without Spark."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Self, cast
from uuid import UUID

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j carries no types

from catalog.errors import JobSupersededError
from catalog.jobs.circuit_breaker import BackOff, CompactionPause
from catalog.model import Job, JobPartition, JobResult, JobSpec, JobState
from core.clock import ManualClock
from core.errors import (
    CorruptDataError,
    CorruptFileError,
    InvalidInputError,
    RetryableError,
    StaleStateError,
)
from core.ids import SeededIds
from object_store.open import StoreConfig
from spark_jobs import compact
from spark_jobs.compact import JobOutcome, run_jobs
from spark_jobs.errors import (
    JobCancelledError,
    NoExecutorError,
    SparkUnavailableError,
    WorkerDiedError,
)
from spark_jobs.report import CompactionReport, JobFailure
from spark_jobs.transport import unpack_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import SparkSession

    from spark_jobs.queries import QueryJob

Result = JobResult | JobFailure


def job(number: int, attempts: int = 1, *, attempt: int | None = None) -> Job:
    spec = JobSpec(
        job_id=UUID(int=number),
        created_ms=0,
        now_ms=0,
        hash_seed=bytes(16),
        table_bytes=1,
        reason="",
        inputs=(),
        partitions=(),
    )
    return Job(
        spec=spec,
        state=JobState.RUNNING,
        attempt_id=UUID(int=attempt or 100 + number),
        application_id="a test",
        heartbeat_ms=0,
        attempts=attempts,
        failure=None,
        counts={},
    )


def succeeded(number: int, **counts: int) -> JobResult:
    return JobResult(job_id=UUID(int=number), attempt_id=UUID(int=100 + number), files=(), counts=counts)


def failed(number: int, error: Exception) -> JobFailure:
    return JobFailure.of(UUID(int=number), error)


@dataclass
class RecordingCatalog:
    """Records the calls that a run makes; `errors` are raised by the calls that they name."""

    calls: list[tuple[str, int]] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    """The attempts that the calls named."""
    errors: dict[str, Exception] = field(default_factory=dict)
    pause: CompactionPause | None = None

    def _record(self, call: str, job_id: UUID) -> None:
        self.calls.append((call, job_id.int))
        if call in self.errors:
            raise self.errors[call]

    def heartbeat(self, job_id: UUID, attempt_id: UUID) -> None:
        self.attempts.append(attempt_id.int)
        self._record("heartbeat", job_id)

    def complete(self, result: JobResult, spec: JobSpec) -> None:
        assert spec.job_id == result.job_id
        self.attempts.append(result.attempt_id.int)
        self._record("complete", result.job_id)

    def fail(self, job_id: UUID, attempt_id: UUID, reason: str, *, suspects: Collection[UUID] = ()) -> None:
        assert reason
        self.attempts.append(attempt_id.int)
        self._record("suspect" if suspects else "fail", job_id)

    def back_off(
        self,
        job_id: UUID,
        attempt_id: UUID,
        *,
        error: str,
        reason: str,
        died: bool = False,
        session_lost: bool = False,
    ) -> BackOff:
        assert error
        assert reason
        self.attempts.append(attempt_id.int)
        call = "lose" if session_lost else "back off"
        self._record("count death" if died else call, job_id)
        return BackOff(released=True, pause=self.pause)

    def release(self, job_id: UUID, attempt_id: UUID) -> None:
        self.attempts.append(attempt_id.int)
        self._record("release", job_id)


def session_without_tasks() -> SimpleNamespace:
    """Return the part of a Connect session that a run uses besides its queries."""
    return SimpleNamespace(
        conf={}, registerProgressHandler=lambda _handler: None, removeProgressHandler=lambda _handler: None
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@dataclass
class Driver:
    """Runs jobs with given results, in this order; None means that a wait ends without a result.

    `further` are jobs for the calls of `more`, in their order. `running` are the arguments of these calls.
    `waits` are the seconds that the driver was ready to wait for each result.
    """

    clock: ManualClock
    catalog: RecordingCatalog = field(default_factory=RecordingCatalog)
    outcomes: list[JobOutcome] = field(default_factory=list)
    specs: list[JobSpec] = field(default_factory=list)
    """The jobs that the tasks received."""
    further: list[list[Job]] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def more(self, running: int) -> list[Job]:
        self.running.append(running)
        return self.further.pop(0) if self.further else []

    def run(
        self, monkeypatch: pytest.MonkeyPatch, jobs: Sequence[Job], *results: Result | BaseException | None
    ) -> CompactionReport:
        remaining = iter(results)
        specs = self.specs

        class Queries:
            def __init__(self, _spark: SparkSession, _store: StoreConfig, *, tag: str) -> None:
                assert tag

            def start(self, queued: Sequence[QueryJob]) -> None:
                specs.extend(unpack_spec(each.packed.spec) for each in queued)

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def next_outcome(_self, seconds: float) -> tuple[UUID, Result] | None:  # noqa: N805
                self.clock.advance(seconds)
                self.waits.append(seconds)
                result = next(remaining)
                if isinstance(result, BaseException):
                    raise result
                if isinstance(result, JobFailure):
                    return UUID(int=100 + UUID(result.job_id).int), result
                return None if result is None else (result.attempt_id, result)

        monkeypatch.setattr(compact, "JobQueries", Queries)
        return run_jobs(
            cast("SparkSession", session_without_tasks()),  # the test replaces the queries
            jobs,
            store=StoreConfig("/nowhere"),
            book=self.catalog,
            clock=self.clock,
            ids=SeededIds(1, self.clock),
            more=self.more,
            progress=self.outcomes.append,
            cancelled=self.cancelled,
        )


@pytest.fixture
def driver(clock: ManualClock) -> Driver:
    return Driver(clock)


def test_results_are_published_and_counts_are_summed(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    report = driver.run(
        monkeypatch,
        [job(1), job(2)],
        succeeded(2, records_in=5, input_files=2, get_requests=4, peak_rss_bytes=7, write_ms=1500),
        succeeded(1, records_in=3, input_files=1, get_requests=2, peak_rss_bytes=9, write_ms=500),
    )

    assert driver.catalog.calls == [("complete", 2), ("complete", 1)]
    assert [each.job_id.int for each in driver.specs] == [1, 2]
    assert (report.jobs, report.jobs_completed, report.records_in) == (2, 2, 8)
    assert (report.get_requests_per_input_file, report.peak_rss_bytes) == (2.0, 9)
    assert report.seconds["write"] == 2.0
    assert report.as_dict()["get_requests_per_input_file"] == 2.0
    assert [outcome.job.spec.job_id.int for outcome in driver.outcomes] == [2, 1]


def test_further_jobs_are_planned_as_soon_as_jobs_have_started(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan takes about as long as a job, so a driver that waited before would leave its slots idle."""
    driver.further = [[], [], [job(2)]]

    driver.run(monkeypatch, [job(1)], None, None, succeeded(1), None, succeeded(2))

    assert driver.running[:4] == [1, 1, 0, 1]
    assert [wait > 0 for wait in driver.waits] == [False, True, True, False, True]


def test_time_in_the_queue_does_not_shorten_the_grace_of_tombstones(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = JobPartition(
        topic_id=UUID(int=7),
        partition=0,
        topic_name="a topic",
        cleanup_policy="compact",
        compression_type="producer",
        deduplicate=True,
        reaches_log_start=True,
        base_offset=0,
        upper_offset=1,
        delete_retention_ms=500,
    )
    unlimited = replace(partition, partition=1, delete_retention_ms=(1 << 63) - 1)
    planned_ms = driver.clock.now_ms()
    driver.clock.advance(3)
    waiting = job(1)
    spec = replace(waiting.spec, now_ms=planned_ms, partitions=(partition, unlimited))
    later_spec = replace(
        spec, job_id=UUID(int=2), now_ms=driver.clock.now_ms() + 9
    )  # the catalog's clock is ahead

    driver.run(
        monkeypatch,
        [replace(waiting, spec=spec), replace(job(2), spec=later_spec)],
        succeeded(1),
        succeeded(2),
    )

    assert [[each.delete_retention_ms for each in given.partitions] for given in driver.specs] == [
        [3_500, (1 << 63) - 1],
        [500, (1 << 63) - 1],
    ]
    assert [given.now_ms for given in driver.specs] == [planned_ms, later_spec.now_ms]


@pytest.mark.parametrize(
    ("files", "read_once", "gets", "ratio", "text"),
    [
        (0, 0, 0, 0.0, "0.0 for each of 0 input files"),
        (29, 0, 58, 2.0, "2.0 for each of 29 input files"),
        (3, 3, 3, 1.0, "1.0 for each of 3 input files"),
        (30, 1, 59, 2.0, "2.0 for each of 29 input files, 1 for each of 1 read once"),
        (1000, 0, 2001, 2.001, "2.001 for each of 1,000 input files"),
    ],
)
def test_gets_per_file_exclude_files_that_one_pass_reads(
    files: int, read_once: int, gets: int, ratio: float, text: str
) -> None:
    report = CompactionReport(input_files=files, input_files_read_once=read_once, get_requests=gets)

    assert (report.get_requests_per_input_file, report.gets_in_words()) == (ratio, text)


@pytest.mark.parametrize(
    ("error", "call", "kind", "released"),
    [
        (RetryableError("busy"), "back off", "retryable", True),
        (InvalidInputError("wrong"), "back off", "invalid", True),
        (ZeroDivisionError("a bug"), "back off", "fatal", True),
        (CorruptDataError("some file"), "back off", "corrupt", True),
        (WorkerDiedError("killed"), "count death", "retryable", True),
        (SparkUnavailableError("gone"), "lose", "retryable", True),
        (CorruptFileError("this file", file_id=UUID(int=9)), "suspect", "corrupt", False),
        (StaleStateError("changed"), "fail", "stale", False),
    ],
)
def test_only_a_corrupt_file_or_a_changed_log_fails_a_job(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    call: str,
    kind: str,
    *,
    released: bool,
) -> None:
    """After any other failure the job returns to the queue, and no file is suspected."""
    report = driver.run(monkeypatch, [job(1, attempts=99)], failed(1, error))

    assert driver.catalog.calls == [(call, 1)]
    (failure,) = report.failures
    assert (failure.kind, failure.error, failure.released) == (kind, type(error).__name__, released)
    assert driver.outcomes[0].failure == failure


def test_a_result_that_the_catalog_rejects_is_a_failure(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.catalog.errors["complete"] = StaleStateError("an input is gone")

    report = driver.run(monkeypatch, [job(1)], succeeded(1, records_in=5))

    assert driver.catalog.calls == [("complete", 1), ("fail", 1)]
    assert (report.jobs_completed, report.records_in) == (0, 0)
    assert report.failures[0].kind == "stale"
    assert driver.outcomes[0].result is None


def test_a_job_that_another_attempt_owns_is_only_reported(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.catalog.errors = dict.fromkeys(("complete", "fail"), StaleStateError("another attempt owns it"))

    report = driver.run(monkeypatch, [job(1)], succeeded(1))

    assert report.failures[0].message == "another attempt owns it"


def test_an_attempt_that_lost_its_job_does_not_end_the_next_one_of_the_same_driver(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver was frozen, lost its job, and has claimed it again while the old task still runs."""
    driver.further = [[job(1, 2, attempt=201)]]
    lost = JobSupersededError("another attempt owns it")
    driver.catalog.errors = dict.fromkeys(("complete", "fail"), lost)

    def more(_running: int) -> list[Job]:
        if driver.catalog.attempts:
            driver.catalog.errors.clear()
        return driver.further.pop(0) if driver.further else []

    monkeypatch.setattr(driver, "more", more)
    new = replace(succeeded(1), attempt_id=UUID(int=201))
    report = driver.run(monkeypatch, [job(1)], None, succeeded(1), None, new)

    assert driver.catalog.calls == [("complete", 1), ("fail", 1), ("complete", 1)]
    assert driver.catalog.attempts == [101, 101, 201]
    assert (report.jobs_completed, len(report.failures)) == (1, 1)


def test_a_failure_mentions_an_unavailable_catalog(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.catalog.errors["back off"] = RetryableError("no response")

    report = driver.run(monkeypatch, [job(1)], failed(1, InvalidInputError("wrong")))

    assert "wrong" in report.failures[0].message
    assert "no response" in report.failures[0].message


def test_a_job_whose_end_could_not_be_reported_returns_to_the_queue_when_the_catalog_responds(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the catalog would take the driver for dead, because it sends no heartbeats for the job."""
    driver.catalog.errors = dict.fromkeys(("complete", "back off", "release"), RetryableError("no response"))
    looks = iter(range(2))

    def more(_running: int) -> list[Job]:
        if next(looks, None) == 1:
            driver.catalog.errors.clear()
        return []

    monkeypatch.setattr(driver, "more", more)
    driver.run(monkeypatch, [job(1), job(2)], succeeded(1), None, None, None, succeeded(2))

    assert driver.catalog.calls == [
        ("complete", 1),
        ("back off", 1),
        *[("release", 1)] * 3,
        ("complete", 2),
    ]


def test_a_job_whose_report_the_catalog_refuses_is_not_released(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run again at once, and without end. The catalog notices its silence."""
    driver.catalog.errors["back off"] = InvalidInputError("no text")

    driver.run(monkeypatch, [job(1)], failed(1, InvalidInputError("wrong")))

    assert driver.catalog.calls == [("back off", 1)]
    assert not driver.outcomes[0].unreported


def test_a_job_whose_end_could_not_be_reported_is_released_at_the_end_of_the_run(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the catalog does not respond then, the watcher tries it again."""
    driver.catalog.errors = dict.fromkeys(("complete", "back off"), RetryableError("no response"))

    report = driver.run(monkeypatch, [job(1)], succeeded(1))

    assert driver.catalog.calls == [("complete", 1), ("back off", 1), ("release", 1)]
    assert not report.failures[0].released
    assert driver.outcomes[0].unreported


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), JobCancelledError("enough")])
def test_an_interrupt_releases_unfinished_jobs(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, interrupt: BaseException
) -> None:
    with pytest.raises(type(interrupt)):
        driver.run(monkeypatch, [job(1), job(2), job(3)], succeeded(2), interrupt)

    assert driver.catalog.calls == [("complete", 2), ("release", 1), ("release", 3)]


def test_further_jobs_run_while_others_go_on(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job 1 takes longest. The last call finds nothing while no job runs, which ends the run."""
    driver.further = [[job(3)], [], [job(4), job(5)]]

    waits = None
    results: list[Result | None] = [succeeded(2), waits, succeeded(3), waits, waits]
    results += [succeeded(4), waits, succeeded(5), waits, succeeded(1)]
    report = driver.run(monkeypatch, [job(1), job(2)], *results)

    assert [each.job_id.int for each in driver.specs] == [1, 2, 3, 4, 5]
    assert driver.running == [1, 1, 1, 2, 1, 0]
    assert [number for _, number in driver.catalog.calls] == [2, 3, 4, 5, 1]
    assert (report.jobs, report.jobs_completed) == (5, 5)


def test_an_error_of_the_supply_releases_the_jobs_that_run(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_running: int) -> list[Job]:
        raise RetryableError("no response")

    monkeypatch.setattr(driver, "more", fail)
    with pytest.raises(RetryableError, match="no response"):
        driver.run(monkeypatch, [job(1), job(2)], succeeded(2), None)
    assert driver.catalog.calls == [("complete", 2), ("release", 1)]


def test_all_finished_jobs_are_published_before_further_ones_are_looked_for(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supply may plan for as long as a job runs."""
    driver.run(monkeypatch, [job(1), job(2), job(3)], succeeded(2), succeeded(3), None, succeeded(1))

    assert driver.running == [1, 0]


def test_no_further_jobs_run_after_spark_was_lost(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.further = [[], [job(3)]]

    report = driver.run(
        monkeypatch, [job(1), job(2)], None, failed(1, SparkUnavailableError("gone")), succeeded(2)
    )

    assert driver.catalog.calls == [("lose", 1), ("complete", 2)]
    assert (report.jobs, driver.running) == (2, [2])


def test_jobs_that_run_when_spark_is_lost_wait_before_they_run_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may have ended it, and would end the next session at once."""
    with pytest.raises(SparkUnavailableError, match="gone"):
        driver.run(monkeypatch, [job(1), job(2), job(3)], succeeded(2), Py4JError("Java is gone"))

    assert driver.catalog.calls == [("complete", 2), ("lose", 1), ("lose", 3)]


def test_a_signal_that_ends_java_too_releases_the_jobs(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager sends it to all processes of a watcher."""
    driver.cancelled.set()
    with pytest.raises(SparkUnavailableError):
        driver.run(
            monkeypatch, [job(1), job(2)], failed(1, SparkUnavailableError("gone")), Py4JError("Java is gone")
        )

    assert driver.catalog.calls == [("release", 1), ("release", 2)]


def test_a_pause_of_compaction_releases_the_jobs_that_still_run(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.catalog.pause = CompactionPause(
        error="StoreAccessError",
        message="the token has expired",
        jobs=3,
        paused_ms=0,
        not_before_ms=1,
        is_probing=False,
    )

    report = driver.run(
        monkeypatch, [job(1), job(2), job(3)], succeeded(2), failed(3, RetryableError("the token"))
    )

    assert driver.catalog.calls == [("complete", 2), ("back off", 3), ("release", 1)]
    assert (report.jobs_completed, len(report.failures)) == (1, 1)


def test_a_cluster_without_executors_gets_no_jobs_to_keep(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how long Spark ran no task."""
    with pytest.raises(NoExecutorError, match="no task for 300 s"):
        driver.run(monkeypatch, [job(1), job(2)], *[None] * 1300)

    assert driver.catalog.calls == [("release", 1), ("release", 2)]
    assert driver.clock.monotonic() == pytest.approx(300, abs=2)


def test_an_unclaimed_job_is_rejected(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    unclaimed = Job(
        spec=job(1).spec,
        state=JobState.SUBMITTED,
        attempt_id=None,
        application_id=None,
        heartbeat_ms=None,
        attempts=0,
        failure=None,
        counts={},
    )

    with pytest.raises(InvalidInputError, match="claim it before"):
        driver.run(monkeypatch, [unclaimed])
