"""Garbage collection of files in two steps.

1. The transaction that removes a file's last live extent marks the file as dead.
2. After a grace period, the garbage collector deletes the object and then, never before, calls `delete_rows`.

`dead_files` returns files that have been dead since before a given time and that no open job reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import FileKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.lifecycle.incarnation import Incarnations

_SQL = load_queries("garbage")
MAX_REMOVED: Final = 5000
"""Default limit of the number of extents that one transaction removes."""
LOCAL_TOPIC_KEPT_MS: Final = 7 * 24 * 3_600_000
"""Time for which the row of a purged local topic stays, so that its agents learn to delete the logs."""
RETRY_PAUSES: Final = {"first_pause_ms": 60_000, "max_pause_ms": 6 * 3_600_000}
"""Pauses before objects that could not be deleted are tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFile:
    """Object that the catalog knows; `owner_id` is the session or the job that wrote it."""

    file_id: UUID
    object_name: str
    kind: FileKind
    size: int
    owner_id: UUID
    dead_ms: int | None


class FileRemoval(NamedTuple):
    """Extents that a transaction removed from one file, those of them that a job had claimed, and bytes."""

    file_id: UUID
    extents: int
    claimed_extents: int
    length: int


class Garbage:
    """Dead files and deleted topics; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def dead_files(
        self, before_ms: int, limit: int, *, after: CatalogFile | None = None
    ) -> list[CatalogFile]:
        """Return up to `limit` files that died before `before_ms`, oldest first, beginning after `after`.

        Files that an open job reads are left out, and those that `postpone` has put off.
        """
        params = {
            "before_ms": before_ms,
            "limit": limit,
            "after_ms": -1 if after is None else after.dead_ms,
            "after_id": UUID(int=0) if after is None else after.file_id,
            "now_ms": self._database.injected_now_ms,
        }
        rows = self._database.read("garbage.dead_files", _SQL["dead_files"], params)
        return [_file_from_row(row) for row in rows]

    def postpone(self, file_ids: Sequence[UUID]) -> None:
        """Put off dead files that could not be deleted; the pause doubles with each failure."""
        params = {"file_ids": arrays.uuids(file_ids), **RETRY_PAUSES}

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["postpone_files"], {**params, "now_ms": transaction.now_ms()})

        self._database.transact("garbage.postpone", work)

    def delete_rows(self, file_ids: Sequence[UUID]) -> int:
        """Delete the rows of dead files whose objects were deleted; return their number.

        Live files stay.
        """
        params = {"file_ids": arrays.uuids(file_ids)}

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["delete_files"], params)

        return self._database.transact("garbage.delete_rows", work)

    def known_files(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> list[CatalogFile]:
        """Return a page of live and dead files below a prefix, by object name, starting after `after`."""
        params = {"prefix": prefix, "after": after, "limit": limit}
        rows = self._database.read("garbage.known_files", _SQL["known_files"], params)
        return [_file_from_row(row) for row in rows]

    def remove_deleted(self, limit: int = MAX_REMOVED, *, delay_ms: int = 0) -> int:
        """Remove up to `limit` rows of each kind of a topic that was deleted `delay_ms` ago.

        Return the number of rows.

        The result is 0 once there is nothing to remove. Concurrent callers work on different topics. A topic
        can be undeleted until the first removal. The first one of a local topic only marks it as purged, and
        the others follow after `LOCAL_TOPIC_KEPT_MS`.

        A failover may have lost the undeletion of a topic. So no removal begins while a session is unsettled,
        and the delay begins again with each epoch. If the catalog's clock was ahead then, the removal begins
        at the latest two delays after this method notices. CatalogReplacedError: the next epoch has not
        begun yet.
        """

        def work(transaction: Transaction) -> int:
            self._incarnations.check(transaction)
            now_ms = transaction.now_ms()
            params = {"before_ms": now_ms - delay_ms, "local_before_ms": now_ms - LOCAL_TOPIC_KEPT_MS}
            transaction.send(_SQL["correct_beginning"], {"now_ms": now_ms, "delay_ms": delay_ms})
            topics = transaction.rows(_SQL["pick_deleted_topic"], params)
            topics = topics or transaction.rows(_SQL["pick_purged_local_topic"], params)
            return _remove_some(transaction, topics[0].topic_id, limit, now_ms) if topics else 0

        return self._database.transact("garbage.remove_deleted", work)


def _remove_some(transaction: Transaction, topic_id: UUID, limit: int, now_ms: int) -> int:
    params = {"topic_id": topic_id, "limit": limit}
    purged = transaction.rows(_SQL["begin_purge"], {"topic_id": topic_id, "now_ms": now_ms})
    if purged and purged[0].is_local:
        return len(purged)
    rows = transaction.rows(_SQL["remove_extents_of_topic"], params)
    removals = [FileRemoval(row.file_id, row.extents, row.claimed_extents, row.length) for row in rows]
    subtract_from_files(transaction, removals, now_ms)
    extents = sum(each.extents for each in removals)
    producers = transaction.count(_SQL["remove_producers_of_topic"], params)
    gaps = transaction.count(_SQL["remove_gaps_of_topic"], params)
    offsets = transaction.count(_SQL["remove_offsets_of_topic"], params)
    partitions = transaction.count(_SQL["remove_partitions_of_topic"], params)
    aborted = transaction.count(_SQL["remove_aborted_of_topic"], params)
    removed = extents + producers + gaps + offsets + partitions + aborted
    return removed or transaction.count(_SQL["remove_topic"], params)


def lock_files(transaction: Transaction, file_ids: Iterable[UUID]) -> None:
    """Lock files in the order of their ids, as every transaction does that changes their counts."""
    transaction.send(_SQL["lock_files"], {"file_ids": arrays.uuids(file_ids)})


def subtract_from_files(transaction: Transaction, removals: Sequence[FileRemoval], now_ms: int) -> None:
    """Subtract removed extents from the counts of their files; mark files without live extents as dead."""
    if not removals:
        return
    lock_files(transaction, (each.file_id for each in removals))
    transaction.send(
        _SQL["subtract_from_files"],
        {
            "file_ids": arrays.uuids(each.file_id for each in removals),
            "removed": arrays.bigints([each.extents for each in removals]),
            "claimed": arrays.bigints([each.claimed_extents for each in removals]),
            "bytes": arrays.bigints([each.length for each in removals]),
            "now_ms": now_ms,
        },
    )


def _file_from_row(row: Row) -> CatalogFile:
    return CatalogFile(
        file_id=row.file_id,
        object_name=row.object_name,
        kind=FileKind(row.kind),
        size=row.size,
        owner_id=row.owner_id,
        dead_ms=row.dead_ms,
    )
