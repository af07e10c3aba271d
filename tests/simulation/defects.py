"""Defects that are planted to see that schedules find them: each is one thing that somebody might forget.

What goes wrong inside of transactions that run side by side is not among them, for schedules have none:
`tests/catalog` has those.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from catalog.commit import assignment, sequences
from catalog.commit import repository as commits
from catalog.commit.repository import _Commit
from catalog.jobs import repository as jobs
from catalog.jobs.publish import JobPublication
from catalog.jobs.repository import Jobs
from catalog.model import JobState
from tests.simulation.world import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    import pytest

    from catalog.commit.sequences import ProducerState
    from catalog.database.connection import Row
    from catalog.database.pool import Transaction
    from catalog.database.sql_files import Query
    from catalog.model import JobResult, JobSpec, ProducerStamp, RunResult

_CALM: Final = (0.0, 0.0, 0.0)
_STALLS: Final = (0.0, 0.1, 0.0)
_ALL_OF_IT: Final = (0.02, 0.02, 0.05)


@dataclass(frozen=True, slots=True)
class Defect:
    """`plant` puts it into the real code; `shows` is in a sentence about what it does, under `rules`.

    `first` is a seed from which on it is not long in coming, so that the test is short.
    """

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    shows: str = ""
    rules: Rules = field(default_factory=Rules)
    first: int = 0


def _nothing(_patch: pytest.MonkeyPatch) -> None:
    """The rules are the defect."""


def _take_duplicates_for_new(patch: pytest.MonkeyPatch) -> None:
    real = sequences.check_sequence

    def forgetful(
        state: ProducerState | None, stamp: ProducerStamp, count: int, first_new_producer_id: int
    ) -> RunResult | None:
        verdict = real(state, stamp, count, first_new_producer_id)
        return None if verdict is not None and verdict.duplicate else verdict

    patch.setattr(assignment, "check_sequence", forgetful)


def _commit_again_when_asked_again(patch: pytest.MonkeyPatch) -> None:
    """The file's earlier answer is not looked for; nor is what else would notice."""
    _change(patch, commits._SQL, "find_result", b"WHERE ", b"WHERE false AND (")
    _change(patch, commits._SQL, "find_result", b"IS NOT NULL OR r.file_id IS NOT NULL", b"IS NOT NULL)")
    for name in ("insert_file", "insert_result"):
        query = commits._SQL[name]
        patch.setitem(commits._SQL, name, replace(query, sql=query.sql + b" ON CONFLICT DO NOTHING"))


def _let_the_late_swap(patch: pytest.MonkeyPatch) -> None:
    """Neither is the job's attempt asked for, nor whether its inputs are live."""
    lock, complete = Jobs._lock, Jobs.complete
    late: dict[UUID, UUID] = {}

    def careless(transaction: Transaction, job_id: UUID) -> tuple[JobState, UUID | None, JobSpec]:
        state, attempt_id, spec = lock(transaction, job_id)
        return (JobState.RUNNING, late[job_id], spec) if job_id in late else (state, attempt_id, spec)

    def complete_anyway(self: Jobs, result: JobResult) -> None:
        late[result.job_id] = result.attempt_id
        try:
            complete(self, result)
        finally:
            del late[result.job_id]

    patch.setattr(Jobs, "_lock", staticmethod(careless))
    patch.setattr(Jobs, "complete", complete_anyway)
    patch.setattr(JobPublication, "_check_missing", lambda _swap: None)


def _let_the_fenced_commit(patch: pytest.MonkeyPatch) -> None:
    """Its object may be garbage already."""

    def take_the_time_alone(commit: _Commit, rows: list[Row]) -> None:
        commit._now_ms = rows[0][1]

    patch.setattr(_Commit, "_check_session", take_the_time_alone)


def _put_outputs_below_the_log_start(patch: pytest.MonkeyPatch) -> None:
    """What DeleteRecords or retention took during the job comes back."""
    lock = JobPublication._lock_and_remove

    def as_it_was_planned(swap: JobPublication) -> list[Row]:
        removed = lock(swap)
        for partition in swap._partitions.values():
            partition.log_start_offset = 0
        return removed

    patch.setattr(JobPublication, "_lock_and_remove", as_it_was_planned)
    patch.setattr(JobPublication, "_check_missing", lambda _swap: None)


def _claim_what_is_claimed(patch: pytest.MonkeyPatch) -> None:
    _change(patch, jobs._SQL, "lock_inputs", b"WHERE e.job_id IS NULL", b"WHERE true")


def _change(
    patch: pytest.MonkeyPatch, queries: Mapping[str, Query], name: str, old: bytes, new: bytes
) -> None:
    query = queries[name]
    assert old in query.sql
    patch.setitem(queries, name, replace(query, sql=query.sql.replace(old, new)))


_NO_GRACE = Rules(weather=_CALM, garbage=replace(Rules().garbage, grace_ms=0))
_SHORT_GRACE = Rules(weather=_STALLS, garbage=replace(Rules().garbage, grace_ms=5_000))
DEFECTS: Final = (
    Defect("garbage goes at once", _nothing, "grace outlives readers", _NO_GRACE, first=9),
    Defect(
        "duplicates are taken for new",
        _take_duplicates_for_new,
        "there twice",
        Rules(weather=_ALL_OF_IT),
        first=7,
    ),
    Defect("a commit asked for again is made again", _commit_again_when_asked_again, first=11),
    Defect("whoever comes late swaps", _let_the_late_swap, rules=Rules(weather=_STALLS), first=3),
    Defect("a fenced session commits", _let_the_fenced_commit, "missing_object", _SHORT_GRACE, first=56),
    Defect(
        "outputs come back from below the log start",
        _put_outputs_below_the_log_start,
        rules=Rules(weather=_STALLS),
    ),
    Defect("what is claimed is claimed again", _claim_what_is_claimed, first=4),
)
