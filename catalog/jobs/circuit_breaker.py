"""Circuit breaker of compaction: a pause while unrelated jobs fail alike.

An expired token or a full disk makes every job fail, with any input. Once `FAILURES` jobs with disjoint
inputs have failed with errors of one class since the last job completed, and none of the failures is proof
against a file, no driver claims a job until a pause is over. Failures of other classes in between do not
matter: one environment may fail in several ways. One job may run then, the *probe*. If it fails, a longer
pause follows. Any completed job ends the pause: waiting jobs become claimable at once, because the
environment caused their faults.

A job that goes on failing after such a pause is itself the cause, and must not hold up the others. So its
faults are not forgotten. With `OWN_FAULTS` of them, the job keeps its own back-off when a pause ends, and its
further faults cause no pause. Deaths may always cause one, because a job that has died too often fails.

Deaths during a pause are not counted against a job, nor is the death of a worker that causes a pause:
something may kill the workers of any job. So no job fails of deaths during a pause, however long it lasts. A
job that kills its workers is found by its deaths between pauses, while others complete.

A job that has died too often causes a pause instead of failing, if an unrelated job has failed alike since
the last one completed. Otherwise an environment that kills two jobs could fail both, before a third one runs.
A job that has died twice, and is the only one that has failed, is therefore claimed after others. If there
is no other one, the job itself fails: nothing can tell its files from the environment then, and they must not
be retried without end.

A driver that stops sending heartbeats counts as the failure of one of its jobs: something may kill
drivers with any jobs. But one of the jobs may have killed it, too. So the end of such a pause keeps the
deaths that were counted before it.

The state is one row of the catalog, so that all drivers share it. It is locked after a job that is reported,
and before jobs that are claimed, which are never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from psycopg.types.json import Json

from catalog.database import arrays
from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("circuit_breaker")
FAILURES: Final = 3
"""Number of jobs that must fail alike."""
_EXHAUSTED_FAILURES: Final = 2
"""Number of jobs that must fail alike if one of them has died too often."""
MAX_CLASSES: Final = 8
"""Number of classes of errors that are remembered besides that of the last failure."""
OWN_FAULTS: Final = 3
"""Number of faults from which on a job probably causes them itself."""
SILENT_DRIVER: Final = "SilentDriver"
"""Class of the failures of drivers that have stopped sending heartbeats."""
FIRST_PAUSE_MS: Final = 60_000
_MAX_PAUSE_MS: Final = 60 * 60 * 1000
_MAX_MESSAGE: Final = 2000
_SILENCE: Final = "drivers stop sending heartbeats"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPause:
    """Pause of compaction, and the failures that caused it.

    `jobs` jobs failed with errors of class `error`; `message` is that of the last one. No job is claimed
    before `not_before_ms`. With `is_probing`, one job runs, and its outcome decides.
    """

    error: str
    message: str
    jobs: int
    paused_ms: int
    not_before_ms: int
    is_probing: bool


class BackOff(NamedTuple):
    """Outcome of a job's fault. `released`: the job returned to the queue. `pause` is that of compaction."""

    released: bool
    pause: CompactionPause | None


class CircuitBreaker:
    """Circuit breaker of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(self) -> CompactionPause | None:
        """Return the pause that holds now, or that a probe may end; None if jobs may be claimed freely."""
        return _pause_of(self._database.read("circuit_breaker.find", _SQL["find"]))

    def reset(self) -> bool:
        """End a pause, because its cause was removed; return False if there is none."""
        return self._database.transact("circuit_breaker.reset", partial(_forget, is_reset=True))


def is_due(pause: CompactionPause, now_ms: int) -> bool:
    """Return True if a probe may be claimed.

    A pause that ends later than any pause can began before the clock stepped back.
    """
    return not pause.is_probing and not now_ms < pause.not_before_ms <= now_ms + _MAX_PAUSE_MS


def lock_pause(transaction: Transaction) -> CompactionPause | None:
    """Return the pause, locked until the transaction ends; do not lock if there is none."""
    if _pause_of(transaction.rows(_SQL["find"])) is None:
        return None
    return _pause_of(transaction.rows(_SQL["lock"]))


def set_probe(transaction: Transaction, attempt_id: UUID) -> None:
    """Record the attempt whose outcome decides about the pause that is locked."""
    transaction.send(_SQL["set_probe"], {"attempt_id": attempt_id})


def record_failure(
    transaction: Transaction,
    job_id: UUID,
    attempt_id: UUID,
    error: str,
    message: str,
    *,
    may_pause: bool = True,
    is_exhausted: bool = False,
) -> CompactionPause | None:
    """Record that an open job failed without proof against a file; return the pause, if there is one.

    Without `may_pause`, the failure causes no pause, but a probe has failed all the same. With
    `is_exhausted`, the job has died so often that its files are suspected unless there is a pause.
    """
    if not may_pause and lock_pause(transaction) is None:
        return None
    now_ms = transaction.now_ms()
    params: dict[str, object] = {"error": error, "message": message[:_MAX_MESSAGE], "now_ms": now_ms}
    transaction.send(_SQL["insert"], params)
    rows = transaction.rows(_SQL["lock"])
    if not rows:  # a job was completed at this moment
        return None
    (row,) = rows
    if row.pauses and row.probe_attempt_id != attempt_id:  # the job was claimed before the pause
        return _pause_of(rows)
    job_ids = _failed_alike(transaction, row, job_id, error)
    needed = _EXHAUSTED_FAILURES if is_exhausted else FAILURES
    pauses = row.pauses + (bool(row.pauses) or len(job_ids) >= needed)
    paused_ms = row.paused_ms if row.pauses else now_ms
    pause_ms = min(_MAX_PAUSE_MS, FIRST_PAUSE_MS << min(pauses - 1, 20)) if pauses else 0
    transaction.send(
        _SQL["update"],
        {
            **params,
            "job_ids": arrays.uuids(job_ids),
            "others": Json(_others(row, error)),
            "pauses": pauses,
            "paused_ms": paused_ms if pauses else None,
            "not_before_ms": now_ms + pause_ms if pauses else None,
        },
    )
    return _pause_of(transaction.rows(_SQL["find"]))


def record_silence(transaction: Transaction, attempts: Sequence[tuple[UUID, UUID]]) -> None:
    """Record that a driver has stopped sending heartbeats for these jobs and attempts: one failure.

    Several drivers that die with the same jobs count as failures of different jobs.
    """
    rows = transaction.rows(_SQL["find"])
    known = set(_failed_before(rows[0], SILENT_DRIVER)) if rows else set()
    probe = rows[0].probe_attempt_id if rows else None
    job_id, attempt_id = min(attempts, key=lambda each: (each[1] != probe, each[0] in known))
    record_failure(transaction, job_id, attempt_id, SILENT_DRIVER, _SILENCE)


def record_last_silence(transaction: Transaction, job_id: UUID, attempt_id: UUID) -> bool:
    """Record the silence of a driver whose job has died too often; return True if compaction is paused."""
    pause = record_failure(transaction, job_id, attempt_id, SILENT_DRIVER, _SILENCE, is_exhausted=True)
    return pause is not None


def record_success(transaction: Transaction) -> bool:
    """Record that a job was completed; return True if this ends a pause."""
    if not transaction.rows(_SQL["find"]):  # almost always
        return False
    return _forget(transaction, is_reset=False)


def _forget(transaction: Transaction, *, is_reset: bool) -> bool:
    """Forget the failures in a row; return True if this ends a pause. With `is_reset`, forget all faults."""
    ended = [row for row in transaction.rows(_SQL["delete"]) if row.pauses]
    for row in ended:
        params = {
            "is_reset": is_reset,
            "keeps_deaths": not is_reset and row.error == SILENT_DRIVER,
            "own_faults": OWN_FAULTS,
        }
        transaction.send(_SQL["end_back_off"], params)
    return bool(ended)


def _failed_alike(transaction: Transaction, row: Row, job_id: UUID, error: str) -> list[UUID]:
    """Return the jobs with disjoint inputs that failed with errors of this class since the last success."""
    before = _failed_before(row, error)
    params = {"job_id": job_id, "job_ids": arrays.uuids(before)}
    if before and transaction.rows(_SQL["shares_input"], params):
        return before
    return [*before, job_id][-FAILURES:]


def _failed_before(row: Row, error: str) -> list[UUID]:
    """Return the jobs that have failed with errors of this class before."""
    return list(row.job_ids) if row.error == error else [UUID(each) for each in row.others.get(error, ())]


def _others(row: Row, error: str) -> dict[str, list[str]]:
    """Return the jobs that have failed with errors of other classes, by class; the last ones are last."""
    others = {name: job_ids for name, job_ids in row.others.items() if name not in {error, row.error}}
    if row.error != error:
        others[row.error] = [str(each) for each in row.job_ids]
    return dict(list(others.items())[-MAX_CLASSES:])


def _pause_of(rows: list[Row]) -> CompactionPause | None:
    if not rows or not rows[0].pauses:
        return None
    (row,) = rows
    return CompactionPause(
        error=row.error,
        message=row.message,
        jobs=len(row.job_ids),
        paused_ms=row.paused_ms,
        not_before_ms=row.not_before_ms,
        is_probing=row.is_probing,
    )
