"""Repair of totals and counts that follow from the extents.

Offsets, bounds and bytes are never changed, because nothing in the catalog tells what they should be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.database.pool import Database, Transaction
    from catalog.model import Extent, PartitionId

_SQL = load_queries("repair")
_PAGE_FILES: Final = 500


class ExtentCounts(NamedTuple):
    """Counts of a file's extents; a file is dead if it has none."""

    live_extents: int
    claimed_extents: int
    live_bytes: int
    is_dead: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCounts:
    """Stored and actual counts of a file.

    `stale_claims` is the number of its extents that finished or unknown jobs claim.
    """

    file_id: UUID
    object_name: str
    stored: ExtentCounts
    actual: ExtentCounts
    stale_claims: int


class Repair:
    """Totals and counts of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def wrong_file_counts(self) -> Iterator[FileCounts]:
        """Yield the files with wrong counts or stale claims; each file is checked in one snapshot.

        This reads one page of files at a time, and every extent once by the index on files.
        """
        after: UUID | None = UUID(int=0)
        while after is not None:
            params = {"after": after, "limit": _PAGE_FILES}
            rows = self._database.read("repair.check_files", _SQL["check_files"], params)
            after = rows[-1].file_id if rows else None
            for row in rows:
                stored = ExtentCounts(row.live_extents, row.claimed_extents, row.live_bytes, row.is_dead)
                actual = ExtentCounts(row.extents, row.claims, row.bytes, row.extents == 0)
                if stored != actual or row.stale_claims:
                    yield FileCounts(
                        file_id=row.file_id,
                        object_name=row.object_name,
                        stored=stored,
                        actual=actual,
                        stale_claims=row.stale_claims,
                    )

    def recount_file(self, file_id: UUID) -> None:
        """Release stale claims of a file, and set its counts from its extents."""

        def work(transaction: Transaction) -> None:
            params = {"file_id": file_id, "now_ms": transaction.now_ms()}
            transaction.send(_SQL["release_stale_claims"], params)
            transaction.send(_SQL["lock_file"], params)
            transaction.send(_SQL["release_stale_file"], params)
            transaction.send(_SQL["recount_file"], params)

        self._database.transact("repair.recount_file", work)

    def recount_partition(self, partition: PartitionId) -> None:
        """Set a partition's totals from its extents."""
        params = {"topic_id": partition.topic_id, "partition": partition.partition}

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["lock_partition"], params)
            transaction.send(_SQL["recount_partition"], params)

        self._database.transact("repair.recount_partition", work)

    def clear_unique_keys(self, extent: Extent) -> None:
        """Record that keys of the extent occur twice, and that its partition needs an exact job.

        Does nothing if the extent was replaced meanwhile. Open jobs have a copy of the old flag.
        """
        params = {
            "topic_id": extent.topic_id,
            "partition": extent.partition,
            "base_offset": extent.base_offset,
            "file_id": extent.file_id,
        }

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["lock_partition"], params)
            if transaction.rows(_SQL["clear_unique_keys"], params):
                transaction.send(_SQL["require_deduplication"], params)

        self._database.transact("repair.clear_unique_keys", work)
