"""Agents as brokers: who speaks the Kafka protocol now, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.database.sql_files import load_queries
from catalog.model import Broker

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.pool import Database

_SQL = load_queries("brokers")


class Brokers:
    """The brokers of a catalog; part of `Catalog`, and as safe to use from many threads.

    A broker is a session with an address; `Sessions.register` makes one.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def new_node_id(self) -> int:
        """A node id for an agent that starts."""
        return int(self._database.read("brokers.new_node_id", _SQL["new_node_id"])[0][0])

    def live(self, silent_ms: int) -> list[Broker]:
        """The brokers whose last heartbeat is at most that many milliseconds old, by node id."""
        params = {"now_ms": self._database.injected_now_ms, "silent_ms": silent_ms}
        rows = self._database.read("brokers.live", _SQL["live_brokers"], params)
        return [
            Broker(node_id=row[0], host=row[1], port=row[2], rack=row[3], has_local_logs=row[4])
            for row in rows
        ]

    def cluster_id(self) -> UUID:
        """What clients know this catalog by."""
        found: UUID = self._database.read("brokers.cluster_id", _SQL["cluster_id"])[0][0]
        return found
