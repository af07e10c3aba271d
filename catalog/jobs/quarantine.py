"""Files that were in a job that failed for good, and what becomes of them.

One file that cannot be read, or whose records no worker gets through, spoils every job that it is in. So the
files of a failed job are suspected: the next jobs with any of them take half as many, until the one is alone
that is to blame, and everything else has been compacted. What fails alone is quarantined. It stays live and
can be read; nothing is deleted, and no job takes it until somebody forgives it.
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
_FIRST_WAIT_MS: Final = 60_000
_LONGEST_WAIT_MS: Final = 60 * 60 * 1000
# So often a file fails alone, for reasons that might pass, before it is quarantined: some seven hours.
_PATIENCE: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A live file that was in a failed job; the next one with it takes at most `most_files`."""

    file_id: UUID
    object_name: str
    kind: FileKind
    size: int
    committed_ms: int
    most_files: int
    failures: int
    job_id: UUID
    reason: str
    failed_ms: int
    not_before_ms: int
    quarantined_ms: int | None


class Suspects:
    """The suspected files of a catalog; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self, *, quarantined: bool = False, limit: int = 1000) -> list[Suspect]:
        """At most `limit`, those in quarantine first (or alone, if `quarantined`), in commit order."""
        params = {"quarantined": quarantined, "limit": limit}
        return [
            _suspect_of(row) for row in self._database.read("suspects.list", _SQL["list_suspects"], params)
        ]

    def forgive(self, file_ids: Collection[UUID] | None = None) -> int:
        """Let these files, or all, be taken by jobs again; returns how many were suspected."""
        params = {"file_ids": None if file_ids is None else arrays.uuids(file_ids)}

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["forgive"], params)

        return self._database.transact("suspects.forgive", work)


def suspect(
    transaction: Transaction,
    job_id: UUID,
    file_ids: Sequence[UUID],
    failure: str,
    now_ms: int,
    *,
    lasting: bool,
) -> None:
    """Suspect the files of a failed job; with `lasting`, trying the same again would be of no use."""
    transaction.send(
        _SQL["suspect_files"],
        {
            "job_id": job_id,
            "file_ids": arrays.uuids(file_ids),
            "files": len(file_ids),
            "failure": failure,
            "now_ms": now_ms,
            "first_wait_ms": 0 if lasting else _FIRST_WAIT_MS,
            "longest_wait_ms": _LONGEST_WAIT_MS,
            "patience": 1 if lasting else _PATIENCE,
        },
    )


def _suspect_of(row: Row) -> Suspect:
    return Suspect(
        file_id=row[0],
        object_name=row[1],
        kind=FileKind(row[2]),
        size=row[3],
        committed_ms=row[4],
        most_files=row[5],
        failures=row[6],
        job_id=row[7],
        reason=row[8],
        failed_ms=row[9],
        not_before_ms=row[10],
        quarantined_ms=row[11],
    )
