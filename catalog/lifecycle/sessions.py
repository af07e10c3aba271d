"""Sessions: who may commit files that lie below its prefix, and who may no longer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from catalog.database.sql_files import load_queries
from catalog.errors import SessionFencedError

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.database.sql_files import Query
    from catalog.model import Broker

_SQL = load_queries("sessions")


class SessionState(StrEnum):
    """active → ended | fenced; only an active session commits."""

    ACTIVE = "active"
    ENDED = "ended"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An agent's stay, from its start to its end; `over_ms` is when it was over, None while it is active."""

    session_id: UUID
    description: str
    state: SessionState
    started_ms: int
    heartbeat_ms: int
    over_ms: int | None = None


class Sessions:
    """The sessions of a catalog; part of `Catalog`, and as safe to use from many threads.

    Heartbeats are stamped and judged by the catalog's time; the clocks of the machines do not matter.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, session_id: UUID, description: str, broker: Broker | None = None) -> None:
        """Make a session known, so that it may commit; with `broker`, Kafka clients are sent to it.

        A node lives once: older sessions of the broker's node are fenced.
        """
        params = {
            "session_id": session_id,
            "description": description,
            "node_id": broker.node_id if broker else None,
            "host": broker.host if broker else None,
            "port": broker.port if broker else None,
            "rack": broker.rack if broker else None,
            "has_local_logs": broker is not None and broker.has_local_logs,
        }

        def work(transaction: Transaction) -> None:
            timed = {**params, "now_ms": transaction.now_ms()}
            transaction.send(_SQL["register_session"], timed)
            if broker is not None:
                transaction.send(_SQL["fence_namesakes"], timed)

        self._database.transact("sessions.register", work)

    def heartbeat(self, session_id: UUID) -> int:
        """Say that a session lives; SessionFencedError when it may no longer commit.

        Returns for how many milliseconds nothing had been heard of it.
        """

        def work(transaction: Transaction) -> list[Row]:
            params = {"session_id": session_id, "now_ms": transaction.now_ms()}
            return transaction.rows(_SQL["heartbeat_session"], params)

        rows = self._database.transact("sessions.heartbeat", work)
        if not rows:
            raise fenced(session_id)
        return int(rows[0][0])

    def end(self, session_id: UUID) -> None:
        """Say that a session will commit nothing any more."""
        self._database.transact(
            "sessions.end", partial(_end, query=_SQL["end_session"], session_id=session_id)
        )

    def fence(self, session_id: UUID) -> None:
        """Make sure that a session cannot commit any more; what it committed stays."""
        self._database.transact(
            "sessions.fence", partial(_end, query=_SQL["fence_session"], session_id=session_id)
        )

    def fence_silent(self, older_than_ms: int) -> list[UUID]:
        """Fence the sessions whose last heartbeat is older than that many milliseconds; returns them."""

        def work(transaction: Transaction) -> list[Row]:
            now_ms = transaction.now_ms()
            params = {"now_ms": now_ms, "before_ms": now_ms - older_than_ms}
            return transaction.rows(_SQL["fence_silent_sessions"], params)

        return [row[0] for row in self._database.transact("sessions.fence_silent", work)]

    def get(self, session_id: UUID) -> Session | None:
        """One session, or None when it was never registered."""
        rows = self._database.read("sessions.get", _SQL["find_session"], {"session_id": session_id})
        return _session_of(rows[0]) if rows else None

    def active(self) -> list[Session]:
        """The sessions that may commit."""
        return [_session_of(row) for row in self._database.read("sessions.active", _SQL["list_sessions"])]


def _end(transaction: Transaction, query: Query, session_id: UUID) -> None:
    transaction.send(query, {"session_id": session_id, "now_ms": transaction.now_ms()})


def fenced(session_id: UUID, state: str | None = None) -> SessionFencedError:
    """The error for a session that may not commit."""
    why = "is not active" if state is None else f"is {state}"
    return SessionFencedError(
        f"session {session_id} {why}: it may not commit", remedy="register a new session"
    )


def _session_of(row: Row) -> Session:
    return Session(
        session_id=row[0],
        description=row[1],
        state=SessionState(row[2]),
        started_ms=row[3],
        heartbeat_ms=row[4],
        over_ms=row[5],
    )
