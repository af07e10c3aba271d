"""Compaction jobs: submitted → running → completed | failed, and back to submitted when an attempt is lost.

A submitted job has claimed its extents: no other job can have them, and its files are not deleted, until it
is over. One attempt at a time owns a running job; whatever another one reports is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg.types.json import Jsonb

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import ExtentsUnavailableError, JobNotFoundError, JobSupersededError
from catalog.jobs.checks import check_result, check_spec
from catalog.jobs.json_format import read_spec, write_spec
from catalog.jobs.publish import Swap
from catalog.jobs.quarantine import suspect
from catalog.lifecycle.garbage import drop_from_files
from catalog.model import Job, JobState
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.model import Extent, JobResult, JobSpec
    from core.ids import Ids

_SQL = load_queries("jobs")
_MAX_AT_ONCE = 1000
MAX_ATTEMPTS: Final = 5
_OPEN = (JobState.SUBMITTED, JobState.RUNNING)


class RecentWork(NamedTuple):
    """Sums over jobs: what was expected of those that are not done, and what the others did.

    `get_requests` has repeated ones too. A done job that has counted nothing is among the expected.
    """

    expected_bytes: int
    expected_nanodollars: int
    bytes_in: int
    bytes_out: int
    get_requests: int
    output_files: int


class Jobs:
    """The jobs of a catalog; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database, ids: Ids) -> None:
        self._database = database
        self._ids = ids

    def submit(self, spec: JobSpec, *, moved_bytes: int = 0, nanodollars: int = 0) -> None:
        """Add a job and claim its extents; once, however often it is tried.

        `moved_bytes` and `nanodollars` are what `planned_since` adds up.

        ExtentsUnavailableError when an extent is not live any more or another job has it: plan anew.
        """
        check_spec(spec)
        extents = [extent for file in spec.inputs for extent in file.extents]
        kept = write_spec(spec).decode()

        def work(transaction: Transaction) -> None:
            params = {
                "job_id": spec.job_id,
                "spec": kept,
                "now_ms": transaction.now_ms(),
                "moved_bytes": moved_bytes,
                "nanodollars": nanodollars,
            }
            if transaction.count(_SQL["insert_job"], params):
                _claim_extents(transaction, spec, extents)

        self._database.transact("jobs.submit", work)

    def planned_since(self, before_now_ms: int) -> RecentWork:
        """What the jobs submitted so lately move and cost together; of those that are done, what they did."""
        params = {"before_now_ms": before_now_ms, "now_ms": self._database.injected_now_ms}
        (row,) = self._database.read("jobs.planned_since", _SQL["planned_since"], params)
        return RecentWork(*map(int, row))

    def claim(self, application_id: str, limit: int) -> list[Job]:
        """Take up to `limit` submitted jobs, oldest first; each comes back with a new attempt_id."""
        if not 1 <= limit <= _MAX_AT_ONCE:
            raise InvalidInputError(
                f"{limit} jobs cannot be claimed at once", remedy=f"1 to {_MAX_AT_ONCE} can"
            )
        params = {
            "application_id": application_id,
            "limit": limit,
            "attempt_ids": arrays.uuids([self._ids.new_uuid() for _ in range(limit)]),
        }

        def work(transaction: Transaction) -> list[Row]:
            claim = {**params, "now_ms": transaction.now_ms()}
            return transaction.rows(_SQL["claimed_before"], params) or transaction.rows(_SQL["claim"], claim)

        return [_job_of(row) for row in self._database.transact("jobs.claim", work)]

    def heartbeat(self, job_id: UUID, attempt_id: UUID) -> None:
        """Say that an attempt lives; JobSupersededError when it has lost the job."""
        params = {"job_id": job_id, "attempt_id": attempt_id}

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["heartbeat"], {**params, "now_ms": transaction.now_ms()})

        if not self._database.transact("jobs.heartbeat", work):
            raise _superseded(job_id, attempt_id)

    def release(self, job_id: UUID, attempt_id: UUID) -> None:
        """Give a running job back to whoever claims it next; it keeps its extents.

        An attempt that does not own the job has nothing to give back: it may have done so already, and the
        answer was lost.
        """
        params = {"job_id": job_id, "attempt_id": attempt_id}
        self._database.transact(
            "jobs.release", lambda transaction: transaction.send(_SQL["resubmit"], params)
        )

    def release_expired(self, older_than_ms: int) -> list[UUID]:
        """Give back the running jobs whose last heartbeat is older than that many milliseconds; returns them.

        A job that has gone silent after `MAX_ATTEMPTS` claims is failed instead: it may be what kills those
        that run it. Its extents are free again.
        """
        params = {"before_ms": self._database.now_ms() - older_than_ms, "most_attempts": MAX_ATTEMPTS}

        def work(transaction: Transaction) -> list[Row]:
            return transaction.rows(_SQL["resubmit_expired"], params)

        released = [row[0] for row in self._database.transact("jobs.release_expired", work)]
        for (job_id,) in self._database.read("jobs.exhausted", _SQL["find_exhausted"], params):
            self._fail_exhausted(job_id, params)
        return released

    def _fail_exhausted(self, job_id: UUID, params: dict[str, int]) -> None:
        def work(transaction: Transaction) -> None:
            rows = transaction.rows(_SQL["lock_exhausted"], {**params, "job_id": job_id})
            if not rows:
                return  # it has been heard of again, or someone else was quicker
            failure = f"given up after {rows[0][0]} attempts, the last of which went silent"
            _free_extents(transaction, job_id)
            self._finish(transaction, job_id, JobState.FAILED, None, failure=failure)
            files = [each.file_id for each in read_spec(rows[0][1]).inputs]
            suspect(transaction, job_id, files, failure, transaction.now_ms(), lasting=True)

        self._database.transact("jobs.fail_exhausted", work)

    def complete(self, result: JobResult) -> None:
        """Publish an attempt's outputs in place of the job's inputs, in one transaction.

        JobSupersededError when the attempt does not own the job, JobInputsChangedError when an input is gone
        that retention has not taken, JobOutputError when the outputs do not cover the inputs. Repeating a
        completion that succeeded does nothing.
        """

        def work(transaction: Transaction) -> None:
            state, attempt_id, spec = self._lock(transaction, result.job_id)
            if attempt_id != result.attempt_id or state is not JobState.RUNNING:
                if attempt_id == result.attempt_id and state is JobState.COMPLETED:
                    return
                raise _superseded(result.job_id, result.attempt_id)
            check_result(spec, result)
            now_ms = transaction.now_ms()
            removed = Swap(transaction, spec, result, now_ms).run()
            _free_extents(transaction, result.job_id, removed, now_ms)
            self._finish(
                transaction, result.job_id, JobState.COMPLETED, result.attempt_id, counts=result.counts
            )

        self._database.transact("jobs.complete", work)

    def fail(self, job_id: UUID, attempt_id: UUID, reason: str, *, lasting: bool = True) -> None:
        """Give a job up for good and free its extents; JobSupersededError when the attempt has lost it.

        Its files are suspected (`catalog.jobs.quarantine`): the next jobs that take them are smaller. Without
        `lasting` the reason may pass, and they are left alone for a while.
        """

        def work(transaction: Transaction) -> None:
            state, owner, spec = self._lock(transaction, job_id)
            if owner != attempt_id or state is not JobState.RUNNING:
                if owner == attempt_id and state is JobState.FAILED:
                    return
                raise _superseded(job_id, attempt_id)
            _free_extents(transaction, job_id)
            self._finish(transaction, job_id, JobState.FAILED, attempt_id, failure=reason)
            files = [each.file_id for each in spec.inputs]
            suspect(transaction, job_id, files, reason, transaction.now_ms(), lasting=lasting)

        self._database.transact("jobs.fail", work)

    def cancel(self, job_id: UUID, reason: str) -> bool:
        """Give up a job that is not over, whoever runs it; False when it is over already."""

        def work(transaction: Transaction) -> bool:
            state, _, _ = self._lock(transaction, job_id)
            if state not in _OPEN:
                return False
            _free_extents(transaction, job_id)
            self._finish(transaction, job_id, JobState.FAILED, None, failure=reason)
            return True

        return self._database.transact("jobs.cancel", work)

    def get(self, job_id: UUID) -> Job:
        """One job, or JobNotFoundError."""
        rows = self._database.read("jobs.get", _SQL["find_job"], {"job_id": job_id})
        if not rows:
            raise _unknown(job_id)
        return _job_of(rows[0])

    def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state."""
        found = {row[0]: int(row[1]) for row in self._database.read("jobs.counts", _SQL["count_jobs"])}
        return {state: found.get(state, 0) for state in JobState}

    @staticmethod
    def _lock(transaction: Transaction, job_id: UUID) -> tuple[JobState, UUID | None, JobSpec]:
        rows = transaction.rows(_SQL["lock_job"], {"job_id": job_id})
        if not rows:
            raise _unknown(job_id)
        state, attempt_id, spec = rows[0]
        return JobState(state), attempt_id, read_spec(spec)

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
        params = {"job_id": job_id}
        transaction.send(_SQL["delete_job_files"], params)
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
        """The newest jobs that are in one of `states`, at most `limit`."""
        params = {"states": [state.value for state in states], "limit": limit}
        return [_job_of(row) for row in self._database.read("jobs.list", _SQL["list_jobs"], params)]


def _claim_extents(transaction: Transaction, spec: JobSpec, extents: Sequence[Extent]) -> None:
    params = {
        "job_id": spec.job_id,
        "topic_ids": arrays.uuids(extent.topic_id for extent in extents),
        "partitions": arrays.integers([extent.partition for extent in extents]),
        "base_offsets": arrays.bigints([extent.base_offset for extent in extents]),
    }
    wanted = {
        **params,
        "last_offsets": arrays.bigints([extent.last_offset for extent in extents]),
        "file_ids": arrays.uuids(extent.file_id for extent in extents),
    }
    free = set(transaction.rows(_SQL["lock_inputs"], wanted))
    for extent in extents:
        if (extent.topic_id, extent.partition, extent.base_offset) not in free:
            raise ExtentsUnavailableError(
                f"job {spec.job_id}: the extent of topic {extent.topic_id}, partition {extent.partition} at "
                f"offset {extent.base_offset} is gone, or another job has claimed it",
                remedy="plan anew",
            )
    files = sorted(spec.inputs, key=lambda file: file.file_id)
    file_params = {
        "job_id": spec.job_id,
        "file_ids": arrays.uuids(file.file_id for file in files),
        "claims": arrays.bigints([len(file.extents) for file in files]),
    }
    transaction.send(_SQL["lock_files"], file_params)
    transaction.send(_SQL["claim_inputs"], params)
    transaction.send(_SQL["add_claims"], file_params)
    transaction.send(_SQL["insert_job_files"], file_params)


def _free_extents(
    transaction: Transaction,
    job_id: UUID,
    removed: Sequence[tuple[UUID, int, int, int]] = (),
    now_ms: int = 0,
) -> None:
    """Free what a job still claims, and take what a swap removed off its files: extents first, then files."""
    freed = transaction.rows(_SQL["release_extents"], {"job_id": job_id})
    touched = sorted({row[0] for row in freed} | {row[0] for row in removed})
    transaction.send(_SQL["lock_files"], {"file_ids": arrays.uuids(touched)})
    drop_from_files(transaction, removed, now_ms)
    params = {
        "file_ids": arrays.uuids(row[0] for row in freed),
        "claims": arrays.bigints([-row[1] for row in freed]),
    }
    transaction.send(_SQL["add_claims"], params)


def _superseded(job_id: UUID, attempt_id: UUID) -> JobSupersededError:
    return JobSupersededError(
        f"attempt {attempt_id} does not own job {job_id}: another one does, or the job is over",
        remedy="drop what the attempt has written; it will be collected",
    )


def _unknown(job_id: UUID) -> JobNotFoundError:
    return JobNotFoundError(f"there is no job {job_id}")


def _job_of(row: Row) -> Job:
    job_id, state, spec, attempt_id, application_id, heartbeat_ms, attempts, failure, counts, finished_ms = (
        row
    )
    del job_id
    return Job(
        spec=read_spec(spec),
        state=JobState(state),
        attempt_id=attempt_id,
        application_id=application_id,
        heartbeat_ms=heartbeat_ms,
        attempts=attempts,
        failure=failure,
        counts=counts,
        finished_ms=finished_ms,
    )
