"""What operators watch about the catalog's server: its durability and its standbys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from catalog.database.connection import TupleRow
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("server")


class Replication(NamedTuple):
    """Numbers of connected standbys and of those that commits wait for, and the largest lag."""

    standbys: int
    synchronous_standbys: int
    lag_bytes: int


class ServerState:
    """What this process last saw of the catalog's server; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.replication: Replication | None = None

    @property
    def unsafe_settings(self) -> tuple[str, ...]:
        """Return the settings with which acknowledged records may be lost."""
        return self._database.durability.unsafe

    def observe(self, transaction: Transaction) -> psycopg.Cursor[TupleRow]:
        """Send a query for the state of replication; pass its rows to `note`."""
        return transaction.send(_SQL["replication"])

    def note(self, rows: Sequence[TupleRow]) -> None:
        """Remember the state of replication; no row means that the role may not see it (pg_monitor may)."""
        self.replication = Replication(*rows[0]) if rows else None
