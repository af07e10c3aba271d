"""The object store that a catalog is bound to. It is recorded once and never replaced by another store.

A process with the wrong store would take missing objects for deleted ones, and publish records that no other
process can find. `object_store.binding` compares the store with this record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("store_binding")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBinding:
    """Object store: the id in its marker object, and its last known URL without secrets."""

    store_id: UUID
    url: str


class StoreBindingRepository:
    """Object store of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recorded(self) -> StoreBinding | None:
        """Return the recorded store; None before the first `bind`."""
        rows = self._database.read("store_binding.recorded", _SQL["find_store"])
        return _binding_from_row(rows[0]) if rows else None

    def bind(self, store_id: UUID, url: str) -> StoreBinding:
        """Record the store, unless one is recorded already; return the recorded store."""
        params = {"store_id": store_id, "url": url}

        def work(transaction: Transaction) -> Row:
            transaction.send(_SQL["bind_store"], params)
            return transaction.rows(_SQL["find_store"])[0]

        return _binding_from_row(self._database.transact("store_binding.bind", work))

    def move(self, store_id: UUID, url: str) -> None:
        """Record a new URL of the recorded store; nothing happens for another store."""
        params = {"store_id": store_id, "url": url}
        self._database.transact(
            "store_binding.move", lambda transaction: transaction.send(_SQL["update_store_url"], params)
        )


def _binding_from_row(row: Row) -> StoreBinding:
    return StoreBinding(store_id=row.store_id, url=row.url)
