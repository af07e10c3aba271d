"""Planted defects that schedules must find.

Defects within concurrent transactions are not among them, because schedules have none. `tests/catalog` covers
those.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from catalog.commit import assignment, sequences
from catalog.commit import attempt as commits
from catalog.commit.attempt import CommitAttempt
from catalog.jobs import claims
from catalog.jobs.publish import JobPublication
from catalog.jobs.repository import Jobs
from tests.simulation.environment import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest

    from catalog.commit.sequences import ProducerState
    from catalog.database.connection import Row
    from catalog.database.sql_files import Query
    from catalog.model import ProducerStamp, RunResult

_NO_FAULTS: Final = (0.0, 0.0, 0.0)
_STALLS_ONLY: Final = (0.0, 0.1, 0.0)
_ALL_FAULTS: Final = (0.02, 0.02, 0.05)


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect in the real code, or in `rules`.

    `plant` patches the code. `expected` is part of a violation that the defect causes. `first_seed` is a seed
    shortly before one that finds it, so that the test is short.
    """

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    expected: str = ""
    rules: Rules = field(default_factory=Rules)
    first_seed: int = 0


def _patch_nothing(_patch: pytest.MonkeyPatch) -> None:
    """The rules are the defect."""


def _accept_duplicates(patch: pytest.MonkeyPatch) -> None:
    real = sequences.check_sequence

    def accept_duplicates(
        state: ProducerState | None, stamp: ProducerStamp, count: int, first_new_producer_id: int
    ) -> RunResult | None:
        verdict = real(state, stamp, count, first_new_producer_id)
        return None if verdict is not None and verdict.duplicate else verdict

    patch.setattr(assignment, "check_sequence", accept_duplicates)


def _repeat_commits(patch: pytest.MonkeyPatch) -> None:
    """Ignore the stored result of a file's commit, and remove the other checks that would notice."""
    _change(patch, commits._SQL, "find_result", b"WHERE ", b"WHERE false AND (")
    _change(patch, commits._SQL, "find_result", b"IS NOT NULL OR r.file_id IS NOT NULL", b"IS NOT NULL)")
    for name in ("insert_file", "insert_result"):
        query = commits._SQL[name]
        patch.setitem(commits._SQL, name, replace(query, sql=query.sql + b" ON CONFLICT DO NOTHING"))


def _publish_late_attempts(patch: pytest.MonkeyPatch) -> None:
    """Check neither the attempt of a job nor whether its inputs are live."""
    patch.setattr(Jobs, "_may_publish", lambda *_: True)
    patch.setattr(JobPublication, "_check_inputs", lambda *_arguments: None)


def _commit_in_fenced_sessions(patch: pytest.MonkeyPatch) -> None:
    """The object may already be deleted as garbage."""

    def set_time_without_check(commit: CommitAttempt, rows: list[Row]) -> None:
        _, commit._now_ms, commit.epoch, _, commit.flushed = rows[0]

    patch.setattr(CommitAttempt, "_check_session", set_time_without_check)


def _publish_below_the_log_start(patch: pytest.MonkeyPatch) -> None:
    """Records that DeleteRecords or retention removed during the job come back."""
    lock = JobPublication._lock_partitions

    def lock_with_log_start_zero(publication: JobPublication) -> None:
        lock(publication)
        for partition in publication._partitions.values():
            partition.log_start_offset = 0

    patch.setattr(JobPublication, "_lock_partitions", lock_with_log_start_zero)
    patch.setattr(JobPublication, "_check_inputs", lambda *_arguments: None)


def _claim_twice(patch: pytest.MonkeyPatch) -> None:
    _change(patch, claims._SQL, "lock_inputs", b"WHERE e.job_id IS NULL AND f.job_id IS NULL", b"WHERE true")
    unclaimed = b"AND f.claimed_extents = 0 AND f.job_id IS NULL"
    _change(patch, claims._SQL, "claim_files", unclaimed, b"")


def _change(
    patch: pytest.MonkeyPatch, queries: Mapping[str, Query], name: str, old: bytes, new: bytes
) -> None:
    query = queries[name]
    assert old in query.sql
    patch.setitem(queries, name, replace(query, sql=query.sql.replace(old, new)))


_NO_GRACE = Rules(fault_rates=_NO_FAULTS, garbage=replace(Rules().garbage, grace_ms=0))
_SHORT_GRACE = Rules(fault_rates=_STALLS_ONLY, garbage=replace(Rules().garbage, grace_ms=5_000))
DEFECTS: Final = (
    Defect(
        "garbage is deleted without a grace period",
        _patch_nothing,
        "grace outlives readers",
        _NO_GRACE,
        first_seed=19,
    ),
    Defect(
        "duplicates are accepted",
        _accept_duplicates,
        "duplicated",
        Rules(fault_rates=_ALL_FAULTS),
        first_seed=7,
    ),
    Defect("a repeated commit takes effect twice", _repeat_commits, first_seed=18),
    Defect(
        "a late attempt publishes",
        _publish_late_attempts,
        rules=Rules(fault_rates=_STALLS_ONLY),
        first_seed=15,
    ),
    Defect(
        "a fenced session commits", _commit_in_fenced_sessions, "missing_object", _SHORT_GRACE, first_seed=1
    ),
    Defect(
        "outputs below the log start are published",
        _publish_below_the_log_start,
        rules=Rules(fault_rates=_STALLS_ONLY),
        first_seed=16,
    ),
    Defect("a file is claimed twice", _claim_twice, first_seed=3),
)
