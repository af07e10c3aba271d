"""Quarantine of files that make compaction jobs fail.

One file that cannot be read, or whose records no worker can process, makes every job fail that reads it. So
the files of a permanently failed job become quarantine candidates. The next job with any of them takes at
most half as many files as the failed one. This bisection isolates the faulty file while jobs over the other
files succeed. A file that fails alone is quarantined: it stays live and readable, but no job takes it until
an operator releases it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import FileKind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("quarantine")
_MIN_BACKOFF_MS: Final = 60_000
_MAX_BACKOFF_MS: Final = 60 * 60 * 1000
# A file that fails alone for temporary reasons is quarantined after this many failures, about seven hours.
_MAX_TEMPORARY_FAILURES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineCandidate:
    """Live file of a failed job; the next job that takes it has at most `max_files` files."""

    file_id: UUID
    object_name: str
    kind: FileKind
    size: int
    committed_ms: int
    max_files: int
    failures: int
    job_id: UUID
    reason: str
    failed_ms: int
    not_before_ms: int
    quarantined_ms: int | None


class Quarantine:
    """Quarantine candidates of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self, *, quarantined: bool = False, limit: int = 1000) -> list[QuarantineCandidate]:
        """Return up to `limit` candidates in commit order, quarantined files first.

        With `quarantined`, return only quarantined files.
        """
        params = {"quarantined": quarantined, "limit": limit}
        rows = self._database.read("quarantine.list", _SQL["list_candidates"], params)
        return [_candidate_from_row(row) for row in rows]

    def release(self, file_ids: Collection[UUID] | None = None) -> int:
        """Let jobs take these files, or all files, again; return the number of released candidates."""
        params = {"file_ids": None if file_ids is None else arrays.uuids(file_ids)}

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["release_candidates"], params)

        return self._database.transact("quarantine.release", work)


def add_candidates(
    transaction: Transaction,
    job_id: UUID,
    file_ids: Sequence[UUID],
    failure: str,
    now_ms: int,
    *,
    permanent: bool,
) -> None:
    """Make the files of a failed job candidates; `permanent` means that a retry would fail, too."""
    transaction.send(
        _SQL["add_candidates"],
        {
            "job_id": job_id,
            "file_ids": arrays.uuids(file_ids),
            "files": len(file_ids),
            "failure": failure,
            "now_ms": now_ms,
            "min_backoff_ms": 0 if permanent else _MIN_BACKOFF_MS,
            "max_backoff_ms": _MAX_BACKOFF_MS,
            "max_failures": 1 if permanent else _MAX_TEMPORARY_FAILURES,
        },
    )


def _candidate_from_row(row: Row) -> QuarantineCandidate:
    return QuarantineCandidate(**{**row._asdict(), "kind": FileKind(row.kind)})
