"""Compaction jobs and their states.

A job is submitted, then running, then completed or failed; a lost attempt makes it submitted again. From its
submission to its end, a job claims its extents: no other job can claim them, and their files are not deleted.
If it has all live extents of a file, it claims the file instead, so PostgreSQL writes one row for all.
One attempt at a time owns a running job; reports of other attempts are rejected.

An attempt that does not complete ends in one of these ways:

- It was stopped: the job can be claimed again at once.
- The environment failed (credentials, store, disk, memory, versions): the job waits, longer with each fault.
  The circuit breaker counts it (`catalog.jobs.circuit_breaker`).
- A process died: the same, but after `MAX_DEATHS` deaths the job fails, and all its files are suspected.
  Deaths during a pause of compaction do not count. If another job has failed alike since one was completed,
  compaction pauses instead.
- Spark was lost: the job waits, too. Any job of the driver may have ended Spark, so the job runs alone later.
- An input file is proven to be corrupt: the job fails, and this file is suspected.
- The log has changed: the job fails, and no file is suspected. The planner plans again.

During an upgrade, and after a return to the previous release, there are jobs that a newer version planned.
This version does not run, count or list them, and nothing waits for them.
"""

from __future__ import annotations

import threading
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg.types.json import Jsonb

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import JobNotFoundError, JobSupersededError
from catalog.jobs.circuit_breaker import (
    OWN_FAULTS,
    BackOff,
    is_due,
    lock_pause,
    record_failure,
    record_last_silence,
    record_silence,
    record_success,
    set_probe,
)
from catalog.jobs.claims import claim_inputs, release_inputs
from catalog.jobs.json_format import SPEC_VERSION, read_spec, version_of, write_spec
from catalog.jobs.publish import JobPublication
from catalog.jobs.quarantine import add_candidates
from catalog.jobs.validation import check_result, check_spec
from catalog.lifecycle.reachability import observe, silence_params
from catalog.model import Job, JobState
from core.cycle_collector import collector_paused
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.model import JobResult, JobSpec
    from core.ids import Ids

_SQL = load_queries("jobs")
_MAX_CLAIMED = 1000
_MAX_SUBMITTED_SPECS: Final = 8
"""A job of 16,000 extents takes 6 MB."""
MAX_DEATHS: Final = 5
_MIN_DEATHS_ALONE: Final = 2
_MIN_BACKOFF_MS: Final = 10_000
_MAX_BACKOFF_MS: Final = 60 * 60 * 1000
_OPEN = (JobState.SUBMITTED, JobState.RUNNING)


class RecentWork(NamedTuple):
    """Totals over recently submitted jobs.

    The expected amounts are the planner's estimates for jobs without counts; the others are the counts of
    completed jobs. `get_requests` includes repeated requests.
    """

    expected_bytes: int
    expected_nanodollars: int
    bytes_in: int
    bytes_out: int
    get_requests: int
    output_files: int


class Jobs:
    """Jobs of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, ids: Ids) -> None:
        self._database = database
        self._ids = ids
        self._submitted = _SubmittedSpecs()

    @collector_paused()
    def submit(self, spec: JobSpec, *, moved_bytes: int = 0, nanodollars: int = 0) -> None:
        """Add a job and claim its extents; idempotent.

        `moved_bytes` and `nanodollars` are the planner's estimates, which `recent_work` sums up.
        ExtentsUnavailableError: an extent is no longer live or claimed by another job, or transactions have
        changed; plan again.
        """
        check_spec(spec)
        encoded = write_spec(spec).decode()

        def work(transaction: Transaction) -> None:
            params = {
                "job_id": spec.job_id,
                "spec": encoded,
                "spec_version": version_of(spec),
                "now_ms": transaction.now_ms(),
                "moved_bytes": moved_bytes,
                "nanodollars": nanodollars,
            }
            if transaction.count(_SQL["insert_job"], params):
                claim_inputs(transaction, spec)

        self._database.transact("jobs.submit", work)
        self._submitted.add(spec)

    def recent_work(self, window_ms: int) -> RecentWork:
        """Return totals over the jobs that were submitted in the last `window_ms` milliseconds."""
        params = {"window_ms": window_ms, "now_ms": self._database.injected_now_ms}
        (row,) = self._database.read("jobs.recent_work", _SQL["recent_work"], params)
        return RecentWork(**row._asdict())

    def recent_amplification(self, window_ms: int, *, limit: int = 500) -> dict[str, int]:
        """Return the ingested and the rewritten bytes of jobs that were submitted lately and are completed.

        The names are those of the jobs' counts: over all topics, and by topic for the largest sums.
        """
        params = {"window_ms": window_ms, "now_ms": self._database.injected_now_ms, "limit": limit}
        rows = self._database.read("jobs.recent_amplification", _SQL["recent_amplification"], params)
        return {row.name: row.total for row in rows}

    def claim(self, application_id: str, limit: int) -> list[Job]:
        """Claim up to `limit` submitted jobs, oldest first; each gets a new attempt_id.

        `application_id` names the driver, the same in all its claims. A job whose processes have died twice
        is claimed alone: any of those that ran at once may have killed them. So a driver gets it only while
        it runs no other job, and gets no other job while it runs this one. If it is the only one that has
        failed since a job completed, others are claimed first: they show whether every job fails. During a
        pause of compaction, none is claimed; then one, whose outcome decides about the pause, by a driver
        that runs no other job.
        """
        if not 1 <= limit <= _MAX_CLAIMED:
            raise InvalidInputError(
                f"{limit} jobs cannot be claimed at once", remedy=f"claim 1 to {_MAX_CLAIMED}"
            )
        params = {
            "application_id": application_id,
            "limit": limit,
            "attempt_ids": arrays.uuids([self._ids.new_uuid() for _ in range(limit)]),
            "spec_version": SPEC_VERSION,
        }

        known = self._submitted.all()

        def work(transaction: Transaction) -> list[Row]:
            found = transaction.rows(_SQL["find_claimed"], params)
            return found or self._claim(transaction, {**params, "known": arrays.uuids(known)})

        jobs = [_job_from_row(row, known) for row in self._database.transact("jobs.claim", work)]
        self._submitted.remove(job.spec.job_id for job in jobs)
        return jobs

    @staticmethod
    def _claim(transaction: Transaction, params: dict[str, object]) -> list[Row]:
        now_ms = transaction.now_ms()
        pause = lock_pause(transaction)
        usual = {
            **params,
            "now_ms": now_ms,
            "is_probe": False,
            "is_suspected": False,
            "lets_others_run": False,
            "min_deaths": _MIN_DEATHS_ALONE,
            "max_backoff_ms": _MAX_BACKOFF_MS,
        }
        (own,) = transaction.rows(_SQL["count_own"], usual)
        if own.suspects:
            return []
        if pause is None:
            alone = {**usual, "is_suspected": True, "limit": 1}
            first = {**alone, "lets_others_run": True}
            if not own.jobs and (suspect := transaction.rows(_SQL["claim"], first)):
                return suspect
            others = transaction.rows(_SQL["claim"], usual)
            return others if others or own.jobs else transaction.rows(_SQL["claim"], alone)
        if own.jobs or not is_due(pause, now_ms):
            return []
        probe = transaction.rows(_SQL["claim"], {**usual, "is_probe": True, "limit": 1})
        for job in probe:
            set_probe(transaction, job.attempt_id)
        return probe

    def heartbeat(self, job_id: UUID, attempt_id: UUID) -> None:
        """Record a heartbeat of an attempt; JobSupersededError if it has lost the job."""
        params = {"job_id": job_id, "attempt_id": attempt_id}

        def work(transaction: Transaction) -> int:
            renewed = transaction.count(_SQL["heartbeat"], {**params, "now_ms": transaction.now_ms()})
            observe(transaction, self._database.injected_now_ms)
            return renewed

        if not self._database.transact("jobs.heartbeat", work):
            raise _superseded(job_id, attempt_id)

    def release(self, job_id: UUID, attempt_id: UUID) -> None:
        """Make a running job claimable again; it keeps its extents.

        Nothing happens if the attempt does not own the job, because it may have released it before.
        """
        params = {"job_id": job_id, "attempt_id": attempt_id}
        self._database.transact(
            "jobs.release", lambda transaction: transaction.send(_SQL["resubmit"], params)
        )

    def release_all(self, application_id: str) -> int:
        """Return all running jobs of a driver to the queue; return their number.

        For a driver that runs none. After an outage of the catalog it may have jobs whose claims got no
        response, or whose ends it could not report.
        """
        params = {"application_id": application_id}
        return self._database.transact(
            "jobs.release_all", lambda transaction: transaction.count(_SQL["resubmit_all"], params)
        )

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
        """Return a job to the queue after a fault of its environment.

        The job waits longer with each fault. `error` is the class of the error, which the circuit breaker
        compares. With `died`, a process died that worked on the job: after `MAX_DEATHS` of them the job fails
        and all its files are suspected. With `session_lost`, Spark was lost with all jobs of the driver: from
        the second time on the job is claimed alone, but no file is suspected. This causes no pause of
        compaction, because a driver tests its next session before it claims. Neither counts during a pause,
        or if it causes one, because the environment may be the reason. Nothing happens if the attempt does
        not own the job.
        """
        params = {
            "job_id": job_id,
            "attempt_id": attempt_id,
            "failure": reason,
            "min_backoff_ms": _MIN_BACKOFF_MS,
            "max_backoff_ms": _MAX_BACKOFF_MS,
        }

        def work(transaction: Transaction) -> BackOff:
            rows = transaction.rows(_SQL["count_deaths"], params)
            if not rows:
                return BackOff(released=False, pause=None)
            (job,) = rows
            may_pause = died or not (session_lost or job.faults >= OWN_FAULTS)
            pause = record_failure(
                transaction,
                job_id,
                attempt_id,
                error,
                reason,
                may_pause=may_pause,
                is_exhausted=died and job.deaths + 1 >= MAX_DEATHS,
            )
            is_death = pause is None and (died or (session_lost and job.deaths < _MIN_DEATHS_ALONE))
            deaths = job.deaths + is_death
            if is_death and deaths >= MAX_DEATHS:
                self._suspect_all(transaction, read_spec(job.spec), attempt_id, reason)
                return BackOff(released=False, pause=None)
            transaction.send(_SQL["back_off"], {**params, "deaths": deaths, "now_ms": transaction.now_ms()})
            return BackOff(released=True, pause=pause)

        return self._database.transact("jobs.back_off", work)

    def release_expired(self, silence_ms: int, confirm_ms: int) -> list[UUID]:
        """Mark silent running jobs, release those whose silence is confirmed, and return the ids of these.

        `catalog.lifecycle.reachability` has the rule. Call it every few seconds. A job whose processes
        have died `MAX_DEATHS` times fails instead: it may be what kills them. Its extents become free. The
        circuit breaker counts silent drivers, and no job fails of silence during a pause, or if its silence
        causes one.
        """
        params = {
            **silence_params(self._database, silence_ms, confirm_ms),
            "max_deaths": MAX_DEATHS,
            "spec_version": SPEC_VERSION,
        }

        def work(transaction: Transaction) -> list[UUID]:
            observe(transaction, self._database.injected_now_ms)
            transaction.send(_SQL["mark_silent_jobs"], params)
            ended = transaction.rows(_SQL["resubmit_suspected"], params)
            for _, attempts in groupby(ended, key=attrgetter("application_id")):
                record_silence(transaction, [(each.job_id, each.attempt_id) for each in attempts])
            return [each.job_id for each in ended]

        released = self._database.transact("jobs.release_expired", work)
        for row in self._database.read("jobs.exhausted", _SQL["find_exhausted"], params):
            self._fail_exhausted(row.job_id, params)
        return released

    def suspected(self) -> int:
        """Return the number of running jobs that are marked as silent; they are released if this lasts."""
        return int(self._database.read("jobs.suspected", _SQL["count_suspected"])[0].jobs)

    def _fail_exhausted(self, job_id: UUID, params: dict[str, object]) -> None:
        def work(transaction: Transaction) -> None:
            rows = transaction.rows(_SQL["lock_exhausted"], {**params, "job_id": job_id})
            if not rows:
                return  # it sent a heartbeat meanwhile, or another process was faster
            (job,) = rows
            if record_last_silence(transaction, job_id, job.attempt_id):
                return  # the next look makes the job claimable again
            failure = f"given up after {job.deaths + 1} attempts; the last one stopped sending heartbeats"
            self._suspect_all(transaction, read_spec(job.spec), None, failure)

        self._database.transact("jobs.fail_exhausted", work)

    def _suspect_all(
        self, transaction: Transaction, spec: JobSpec, attempt_id: UUID | None, failure: str
    ) -> None:
        """Fail a job whose processes die, and suspect all its files: the next jobs with them are smaller."""
        file_ids = [each.file_id for each in spec.inputs]
        half = max(1, (len(file_ids) + 1) // 2)
        self._fail(transaction, spec, attempt_id, failure, suspects=file_ids, max_files=half, repeatedly=True)

    @collector_paused()
    def complete(self, result: JobResult, spec: JobSpec | None = None) -> None:
        """Publish an attempt's outputs in place of the job's inputs, in one transaction; idempotent.

        `spec` is the job's specification as `claim` returned it; it is read from the catalog if it is None.
        JobSupersededError: the attempt does not own the job. JobInputsChangedError: an input is missing that
        retention has not removed. JobOutputError: the outputs do not cover the inputs.
        """
        # A specification never changes. Everything that depends on it alone is done before locks are taken.
        if spec is None:
            job = self.get(result.job_id)
            if not self._may_publish(job.state, job.attempt_id, result):
                return
            spec = job.spec
        check_result(spec, result)
        publication = JobPublication(spec, result)

        def work(transaction: Transaction) -> None:
            rows = transaction.rows(_SQL["lock_owner"], {"job_id": result.job_id})
            if not rows:
                raise _unknown(result.job_id)
            (owner,) = rows
            if not self._may_publish(JobState(owner.state), owner.attempt_id, result):
                return
            now_ms = transaction.now_ms()
            removed = publication.run(transaction, now_ms)
            release_inputs(transaction, result.job_id, removed, now_ms)
            self._finish(
                transaction, result.job_id, JobState.COMPLETED, result.attempt_id, counts=result.counts
            )
            record_success(transaction)

        self._database.transact("jobs.complete", work)

    @staticmethod
    def _may_publish(state: JobState, attempt_id: UUID | None, result: JobResult) -> bool:
        """Return False if the attempt has published already; raise JobSupersededError if it lost the job."""
        if attempt_id != result.attempt_id or state not in {JobState.RUNNING, JobState.COMPLETED}:
            raise _superseded(result.job_id, result.attempt_id)
        return state is JobState.RUNNING

    def fail(self, job_id: UUID, attempt_id: UUID, reason: str, *, suspects: Collection[UUID] = ()) -> None:
        """Fail a job and release its extents; JobSupersededError if the attempt has lost it.

        `suspects` are the input files that are proven to be corrupt. They become quarantine candidates
        (`catalog.jobs.quarantine`), so that the next job with one of them has no other file.
        """

        def work(transaction: Transaction) -> None:
            state, owner, spec = self._lock(transaction, job_id)
            if owner != attempt_id or state is not JobState.RUNNING:
                if owner == attempt_id and state is JobState.FAILED:
                    return
                raise _superseded(job_id, attempt_id)
            self._fail(transaction, spec, attempt_id, reason, suspects=suspects, max_files=1)

        self._database.transact("jobs.fail", work)

    def _fail(
        self,
        transaction: Transaction,
        spec: JobSpec,
        attempt_id: UUID | None,
        failure: str,
        *,
        suspects: Collection[UUID],
        max_files: int,
        repeatedly: bool = False,
    ) -> None:
        release_inputs(transaction, spec.job_id)
        self._finish(transaction, spec.job_id, JobState.FAILED, attempt_id, failure=failure)
        if suspects:
            add_candidates(transaction, spec, suspects, failure, max_files=max_files, repeatedly=repeatedly)

    def cancel(self, job_id: UUID, reason: str) -> bool:
        """Fail an open job of any owner; return False if it has finished already."""

        def work(transaction: Transaction) -> bool:
            state, _, _ = self._lock(transaction, job_id)
            if state not in _OPEN:
                return False
            release_inputs(transaction, job_id)
            self._finish(transaction, job_id, JobState.FAILED, None, failure=reason)
            return True

        return self._database.transact("jobs.cancel", work)

    def get(self, job_id: UUID) -> Job:
        """Return one job, or raise JobNotFoundError."""
        rows = self._database.read("jobs.get", _SQL["find_job"], {"job_id": job_id})
        if not rows:
            raise _unknown(job_id)
        return _job_from_row(rows[0])

    def state_of(self, job_id: UUID) -> tuple[JobState, int | None]:
        """Return the state of a job of any version, and when it finished; JobNotFoundError without a job."""
        rows = self._database.read("jobs.state_of", _SQL["find_job_state"], {"job_id": job_id})
        if not rows:
            raise _unknown(job_id)
        return JobState(rows[0].state), rows[0].finished_ms

    def claimable(self, *, is_probe: bool = False) -> int:
        """Return the number of jobs that this version can claim now, unless compaction is paused.

        With `is_probe`, return how many can test whether a pause can end: these need not wait.
        """
        params = {
            "now_ms": self._database.now_ms(),
            "is_probe": is_probe,
            "spec_version": SPEC_VERSION,
            "max_backoff_ms": _MAX_BACKOFF_MS,
        }
        (row,) = self._database.read("jobs.claimable", _SQL["count_claimable"], params)
        return int(row.jobs)

    def counts(self) -> dict[JobState, int]:
        """Return the number of jobs in each state."""
        found = {row.state: int(row.jobs) for row in self._database.read("jobs.counts", _SQL["count_jobs"])}
        return {state: found.get(state, 0) for state in JobState}

    @staticmethod
    def _lock(transaction: Transaction, job_id: UUID) -> tuple[JobState, UUID | None, JobSpec]:
        rows = transaction.rows(_SQL["lock_job"], {"job_id": job_id})
        if not rows:
            raise _unknown(job_id)
        (job,) = rows
        return JobState(job.state), job.attempt_id, read_spec(job.spec)

    @staticmethod
    def _finish(
        transaction: Transaction,
        job_id: UUID,
        state: JobState,
        attempt_id: UUID | None,
        *,
        failure: str | None = None,
        counts: dict[str, int] | None = None,
    ) -> None:
        transaction.send(
            _SQL["finish_job"],
            {
                "job_id": job_id,
                "state": state.value,
                "attempt_id": attempt_id,
                "now_ms": transaction.now_ms(),
                "failure": failure,
                "counts": Jsonb(counts or {}),
            },
        )

    def list(self, states: Collection[JobState] = tuple(JobState), *, limit: int = 100) -> list[Job]:
        """Return up to `limit` jobs that are in one of `states`, newest first.

        Those that a newer version planned are left out.
        """
        params = {
            "states": [state.value for state in states],
            "limit": limit,
            "spec_version": SPEC_VERSION,
        }
        return [_job_from_row(row) for row in self._database.read("jobs.list", _SQL["list_jobs"], params)]


class _SubmittedSpecs:
    """The last specifications that this process has submitted and not claimed, a bounded number; thread-safe.

    A watcher usually claims the jobs that it has planned, and then need not read specifications of thousands
    of extents. Those with transactions are left out, because an extent has a field for them that is not
    stored.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._specs: dict[UUID, JobSpec] = {}

    def add(self, spec: JobSpec) -> None:
        if any(partition.aborted or partition.controls for partition in spec.partitions):
            return
        with self._lock:
            self._specs[spec.job_id] = spec
            if len(self._specs) > _MAX_SUBMITTED_SPECS:
                del self._specs[next(iter(self._specs))]

    def all(self) -> dict[UUID, JobSpec]:
        with self._lock:
            return dict(self._specs)

    def remove(self, job_ids: Iterable[UUID]) -> None:
        with self._lock:
            for job_id in job_ids:
                self._specs.pop(job_id, None)


def _superseded(job_id: UUID, attempt_id: UUID) -> JobSupersededError:
    return JobSupersededError(
        f"attempt {attempt_id} does not own job {job_id}: another attempt does, or the job has finished",
        remedy="discard the attempt's files; garbage collection will delete them",
    )


def _unknown(job_id: UUID) -> JobNotFoundError:
    return JobNotFoundError(f"there is no job {job_id}")


def _job_from_row(row: Row, known: Mapping[UUID, JobSpec] = MappingProxyType({})) -> Job:
    return Job(
        spec=read_spec(row.spec) if row.spec is not None else known[row.job_id],
        state=JobState(row.state),
        attempt_id=row.attempt_id,
        application_id=row.application_id,
        heartbeat_ms=row.heartbeat_ms,
        attempts=row.attempts,
        failure=row.failure,
        counts=row.counts,
        finished_ms=row.finished_ms,
        not_before_ms=row.not_before_ms,
    )
