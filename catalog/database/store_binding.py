"""Which object store holds the catalog's objects: noted once, and never exchanged for another.

A process that was started with the wrong store would take absent objects for deleted ones, and publish
records where no other process finds them. `object_store.binding.tie` holds the two against each other.
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
    """An object store: the id in its marker object, and where it was last found, without secrets."""

    store_id: UUID
    url: str


class ObjectHome:
    """The object store of a catalog; part of `Catalog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recorded(self) -> StoreBinding | None:
        """What is noted; None before the first `bind`."""
        rows = self._database.read("home.recorded", _SQL["find_home"])
        return _home_of(rows[0]) if rows else None

    def bind(self, store_id: UUID, url: str) -> StoreBinding:
        """Note the store unless one is noted already; returns what is noted afterwards."""
        params = {"store_id": store_id, "url": url}

        def work(transaction: Transaction) -> Row:
            transaction.send(_SQL["bind_home"], params)
            return transaction.rows(_SQL["find_home"])[0]

        return _home_of(self._database.transact("home.bind", work))

    def move(self, store_id: UUID, url: str) -> None:
        """Note where the store is found now; nothing happens unless it is the one that is noted."""
        params = {"store_id": store_id, "url": url}
        self._database.transact("home.move", lambda transaction: transaction.send(_SQL["move_home"], params))


def _home_of(row: Row) -> StoreBinding:
    return StoreBinding(store_id=row[0], url=row[1])
