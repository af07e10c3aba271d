"""Garbage in two steps: marked in the transaction that made it, deleted by someone else after a grace period.

A file is dead once no live extent refers to it. `dead_files` names those that nobody needs any more: dead
since before a given time, and not read by an open job. Whoever deletes the objects calls `forget` afterwards,
never before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import FileKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("garbage")
REMOVED_AT_ONCE: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFile:
    """An object that the catalog knows; `owner_id` is the session or the job that wrote it."""

    file_id: UUID
    object_name: str
    kind: FileKind
    size: int
    owner_id: UUID
    dead_ms: int | None


class Garbage:
    """What may be deleted; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def dead_files(self, before_ms: int, limit: int) -> list[CatalogFile]:
        """At most `limit` files that died before `before_ms` and that no open job reads, oldest first."""
        params = {"before_ms": before_ms, "limit": limit}
        rows = self._database.read("garbage.dead_files", _SQL["dead_files"], params)
        return [_file_of(row) for row in rows]

    def forget(self, file_ids: Sequence[UUID]) -> int:
        """Remove the rows of dead files whose objects are gone; returns how many. Live ones stay."""
        params = {"file_ids": arrays.uuids(file_ids)}

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["forget_files"], params)

        return self._database.transact("garbage.forget", work)

    def known_files(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> list[CatalogFile]:
        """A page of the files below a prefix by object name, live and dead, beginning after `after`."""
        params = {"prefix": prefix, "after": after, "limit": limit}
        rows = self._database.read("garbage.known_files", _SQL["object_names"], params)
        return [_file_of(row) for row in rows]

    def remove_deleted(self, limit: int = REMOVED_AT_ONCE) -> int:
        """Remove at most `limit` extents of deleted topics; 0 when there was nothing to remove.

        Returns how many rows went. Two who call it at once do not get in each other's way.
        """

        def work(transaction: Transaction) -> int:
            picked = transaction.rows(_SQL["pick_deleted_topic"])
            return _remove_some(transaction, picked[0][0], limit, transaction.now_ms()) if picked else 0

        return self._database.transact("garbage.remove_deleted", work)


def _remove_some(transaction: Transaction, topic_id: UUID, limit: int, now_ms: int) -> int:
    params = {"topic_id": topic_id, "limit": limit}
    removed = transaction.rows(_SQL["remove_extents_of_topic"], params)
    drop_from_files(transaction, removed, now_ms)
    extents: int = sum(row[1] for row in removed)
    producers = transaction.count(_SQL["remove_producers_of_topic"], params)
    if extents or producers:
        return extents + producers
    return transaction.count(_SQL["remove_topic"], params)


def drop_from_files(transaction: Transaction, removed: Sequence[Row], now_ms: int) -> None:
    """Take (file id, extents, claimed extents, bytes) off the files' counts, marking those dead now."""
    if not removed:
        return
    file_ids = arrays.uuids(row[0] for row in removed)
    transaction.send(_SQL["lock_files"], {"file_ids": file_ids})
    transaction.send(
        _SQL["drop_from_files"],
        {
            "file_ids": file_ids,
            "removed": arrays.bigints([row[1] for row in removed]),
            "claimed": arrays.bigints([row[2] for row in removed]),
            "bytes": arrays.bigints([row[3] for row in removed]),
            "now_ms": now_ms,
        },
    )


def _file_of(row: Row) -> CatalogFile:
    return CatalogFile(
        file_id=row[0],
        object_name=row[1],
        kind=FileKind(row[2]),
        size=row[3],
        owner_id=row[4],
        dead_ms=row[5],
    )
