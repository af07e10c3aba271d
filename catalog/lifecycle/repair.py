"""What the catalog can say for certain of its own sums and counts, and set right: each follows from extents.

Extents themselves, bounds and bytes are never touched: what they should be, nothing here knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.database.sql_files import load_queries
from catalog.errors import CatalogInUseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.model import PartitionId

_SQL = load_queries("repair")
_FILES_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTally:
    """A file's counts as they are kept, and as its extents have them: live, claimed, bytes, dead.

    `stale_claims` is how many of its extents are claimed by jobs that are over, or that nobody knows.
    """

    file_id: UUID
    object_name: str
    kept: tuple[int, int, int, bool]
    counted: tuple[int, int, int, bool]
    stale_claims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenWriters:
    """How many sessions of agents, and jobs, were forgotten that were not over."""

    sessions: int
    jobs: int


class Repair:
    """Sums and counts of a catalog; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def file_tallies(self) -> Iterator[FileTally]:
        """The files whose counts are wrong or whose claims are stale, each judged in one moment.

        Asks for a page of files at a time, and reads every extent once by the index on files.
        """
        after: UUID | None = UUID(int=0)
        while after is not None:
            params = {"after": after, "limit": _FILES_AT_ONCE}
            rows = self._database.read("repair.check_files", _SQL["check_files"], params)
            after = rows[-1][0] if rows else None
            for row in rows:
                kept, extents = (row[2], row[3], row[4], row[5]), row[6]
                counted = (extents, row[7], row[8], extents == 0)
                if kept != counted or row[9]:
                    yield FileTally(
                        file_id=row[0], object_name=row[1], kept=kept, counted=counted, stale_claims=row[9]
                    )

    def recount_file(self, file_id: UUID) -> None:
        """Free what jobs claim that are over, and set the file's counts by its extents."""

        def work(transaction: Transaction) -> None:
            params = {"file_id": file_id, "now_ms": transaction.now_ms()}
            transaction.send(_SQL["release_stale"], params)
            transaction.send(_SQL["lock_file"], params)
            transaction.send(_SQL["recount_file"], params)

        self._database.transact("repair.recount_file", work)

    def forget_writers(self, silent_for_ms: int = 0) -> ForgottenWriters:
        """Forget the sessions and jobs that are not over; how many of each there were.

        For a catalog that was restored from a backup, while nothing runs. What they wrote since the backup
        has no row here. If they were known, it would pass for what dead writers left, and be deleted; an
        owner that nobody knows keeps it.

        CatalogInUseError, and nothing is forgotten, when one of them was heard of in the last
        `silent_for_ms`. A backup that is younger than that looks no different.
        """

        def work(transaction: Transaction) -> ForgottenWriters:
            transaction.send(_SQL["free_open_claims"])
            transaction.send(_SQL["forget_job_files"])
            jobs = transaction.rows(_SQL["forget_open_jobs"])
            sessions = transaction.rows(_SQL["forget_active_sessions"])
            if silent_for_ms:
                _refuse_those_at_work(transaction.now_ms() - silent_for_ms, sessions, jobs)
            return ForgottenWriters(sessions=len(sessions), jobs=len(jobs))

        return self._database.transact("repair.forget_writers", work)

    def recount_partition(self, partition: PartitionId) -> None:
        """Set the partition's sums by its extents."""
        params = {"topic_id": partition.topic_id, "partition": partition.partition}

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["lock_partition"], params)
            transaction.send(_SQL["recount_partition"], params)

        self._database.transact("repair.recount_partition", work)


def _refuse_those_at_work(since_ms: int, sessions: Sequence[Row], jobs: Sequence[Row]) -> None:
    """Raise when one of these was heard of since then; each row ends in the time, None if it never was."""
    agents, drivers = (
        sum(row[-1] is not None and row[-1] > since_ms for row in rows) for rows in (sessions, jobs)
    )
    if agents or drivers:
        raise CatalogInUseError(
            f"the catalog is in use: it has just heard of {agents} agents and of {drivers} running jobs",
            remedy="stop all agents and all compaction, and wait a minute",
        )
