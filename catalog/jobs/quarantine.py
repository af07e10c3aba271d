"""Quarantine of files that are proven to make compaction jobs fail.

One file that cannot be read, or whose records no worker survives, makes every job fail that reads it. A file
is suspected for one of two reasons only:

- A task found corrupt bytes in it. The next job with this file has no other one.
- Processes that worked on its job died repeatedly, while compaction was not paused. All files of the job are
  suspected then, and the next job with any of them takes at most half as many files. This bisection isolates
  the faulty file while jobs over the other files succeed.

A suspected file is a quarantine candidate. If another job fails in one of these ways and has no other file,
the file is quarantined: it stays live and readable, but no job takes it until an operator releases it. One
failure is not enough, because the store may return a wrong response once; a job whose processes died
repeatedly has failed often enough. Faults of the environment never lead here
(`catalog.jobs.circuit_breaker`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import FileKind

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.model import JobSpec

_SQL = load_queries("quarantine")


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
    spec: JobSpec,
    suspects: Collection[UUID],
    failure: str,
    *,
    max_files: int,
    repeatedly: bool,
) -> None:
    """Suspect files of a failed job; the next job that takes one of them has at most `max_files` files.

    With `repeatedly`, several attempts of the job have failed.
    """
    transaction.send(
        _SQL["add_candidates"],
        {
            "job_id": spec.job_id,
            "file_ids": arrays.uuids(suspects),
            "max_files": max_files,
            "alone": len(spec.inputs) == 1,
            "repeatedly": repeatedly,
            "failure": failure,
            "now_ms": transaction.now_ms(),
        },
    )


def _candidate_from_row(row: Row) -> QuarantineCandidate:
    return QuarantineCandidate(**{**row._asdict(), "kind": FileKind(row.kind)})
