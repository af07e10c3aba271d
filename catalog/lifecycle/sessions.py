"""Sessions of agents, and the brokers among them.

A session may commit files below its own object prefix until it ends or is fenced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from catalog.database.pool import Reserve
from catalog.database.schema_version import SchemaVersion, check_schema_version
from catalog.database.sql_files import load_queries
from catalog.errors import SessionFencedError
from catalog.lifecycle.reachability import observe, silence_params
from catalog.model import Broker, Endpoint
from core.errors import FatalError

if TYPE_CHECKING:
    from uuid import UUID

    from psycopg import Cursor

    from catalog.database.connection import Row, TupleRow
    from catalog.database.pool import Database, Transaction
    from catalog.database.server_state import ServerState
    from catalog.database.sql_files import Query
    from catalog.lifecycle.incarnation import Incarnation, Incarnations

_SQL = load_queries("sessions")


class SessionState(StrEnum):
    """State of a session: active → ended | fenced. Only an active session may commit."""

    ACTIVE = "active"
    ENDED = "ended"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Session of an agent; `closed_ms` is when it ended or was fenced, None while it is active.

    While it is unsettled, garbage collection keeps its orphans (`catalog.lifecycle.lost_commits`).
    """

    session_id: UUID
    description: str
    state: SessionState
    started_ms: int
    heartbeat_ms: int
    closed_ms: int | None = None
    is_unsettled: bool = False


class Sessions:
    """Sessions of a catalog; part of `Catalog`, thread-safe.

    All times are the catalog's, so the clocks of the agents' machines do not matter.
    """

    def __init__(self, database: Database, incarnations: Incarnations, server: ServerState) -> None:
        self._database = database
        self._incarnations = incarnations
        self._server = server

    def register(self, session_id: UUID, description: str, broker: Broker | None = None) -> Incarnation:
        """Register a session, so that it may commit; with `broker`, Kafka clients can find it.

        A node has one active session: older sessions of the broker's node are fenced. Return the incarnation
        that the session commits in. It begins here if the server continues on another history.
        """
        params = {
            "session_id": session_id,
            "description": description,
            "node_id": broker.node_id if broker else None,
            "host": broker.host if broker else None,
            "port": broker.port if broker else None,
            "endpoints": json.dumps(broker.endpoints if broker else []),
            "rack": broker.rack if broker else None,
            "has_local_logs": broker is not None and broker.has_local_logs,
        }

        def work(transaction: Transaction) -> Row:
            incarnation = self._incarnations.lock(transaction)
            timed = {**params, "now_ms": transaction.now_ms()}
            transaction.send(_SQL["register_session"], timed)
            if broker is not None:
                transaction.send(_SQL["fence_older_sessions"], timed)
            return incarnation

        return self._incarnations.adopt(self._database.transact("sessions.register", work))

    def heartbeat(self, session_id: UUID) -> int:
        """Record a heartbeat; return the milliseconds since the previous one.

        SessionFencedError: the session may no longer commit. CatalogReplacedError: neither may any other
        session, because the server continues on another history. SchemaVersionError: a migration excludes
        this code.
        """

        def work(transaction: Transaction) -> tuple[list[TupleRow], Row]:
            params = {"session_id": session_id, "now_ms": transaction.now_ms()}
            beats = transaction.send(_SQL["heartbeat_session"], params)
            observed = self._server.observe(transaction)
            incarnation = self._incarnations.check(transaction)
            self._server.note(observed.fetchall())
            rows = beats.fetchall()
            observe(transaction, self._database.injected_now_ms)
            return rows, incarnation

        try:
            beats, incarnation = self._database.transact(
                "sessions.heartbeat", work, reserve=Reserve.HEARTBEATS
            )
        except FatalError:
            self.check_schema()  # a contraction may have removed what the statement uses
            raise
        if not beats:
            raise fenced_error(session_id)
        silence_ms, version, min_version = beats[0]
        check_schema_version(SchemaVersion(version, min_version))
        self._incarnations.adopt(incarnation)
        return int(silence_ms)

    def check_schema(self) -> None:
        """Raise SchemaVersionError if a migration since the start excludes this code."""
        (row,) = self._database.read("sessions.check_schema", _SQL["schema_version"])
        check_schema_version(SchemaVersion(row.version, row.min_version))

    def end(self, session_id: UUID) -> None:
        """End a session, which commits nothing afterwards."""
        close = partial(_close, query=_SQL["end_session"], session_id=session_id)
        self._database.transact("sessions.end", close)

    def fence(self, session_id: UUID) -> None:
        """Fence a session, so that it cannot commit; its earlier commits stay."""
        close = partial(_close, query=_SQL["fence_session"], session_id=session_id)
        self._database.transact("sessions.fence", close)

    def fence_silent(self, silence_ms: int, confirm_ms: int) -> list[UUID]:
        """Mark silent sessions, fence those whose silence is confirmed, and return the ids of these.

        `catalog.lifecycle.reachability` has the rule. Call it every few seconds. It skips rows that others
        have locked, so it first ends the transactions of frozen processes, which would keep theirs.
        """
        self._database.end_silent_transactions()
        params = silence_params(self._database, silence_ms, confirm_ms)

        def work(transaction: Transaction) -> Cursor[TupleRow]:
            observe(transaction, self._database.injected_now_ms)
            transaction.send(_SQL["mark_silent_sessions"], params)
            return transaction.send(_SQL["fence_suspected_sessions"], params)

        return [row[0] for row in self._database.transact("sessions.fence_silent", work)]

    def get(self, session_id: UUID) -> Session | None:
        """Return one session, or None if it was never registered or its row has expired."""
        rows = self._database.read("sessions.get", _SQL["find_session"], {"session_id": session_id})
        return _session_from_row(rows[0]) if rows else None

    def active(self) -> list[Session]:
        """Return the active sessions."""
        rows = self._database.read("sessions.active", _SQL["active_sessions"])
        return [_session_from_row(row) for row in rows]


class Brokers:
    """Agents that serve the Kafka protocol; part of `Catalog`, thread-safe.

    A broker is a session with an address; `Sessions.register` creates it.
    """

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def new_node_id(self) -> int:
        """Return a node id for a new agent."""
        self._incarnations.ensure()
        return int(self._database.read("brokers.new_node_id", _SQL["new_node_id"])[0].node_id)

    def live(self, silent_ms: int) -> list[Broker]:
        """Return the brokers whose last heartbeat is at most `silent_ms` old, by node id.

        Only time in which the catalog was reachable counts, so an outage of the catalog hides no broker.
        """
        rows = self._database.read("brokers.live", _SQL["live_brokers"], {"silent_ms": silent_ms})
        return [_broker_from_row(row) for row in rows]

    def cluster_id(self) -> UUID:
        """Return the cluster id for Kafka clients."""
        cluster_id: UUID = self._database.read("brokers.cluster_id", _SQL["cluster_id"])[0].cluster_id
        return cluster_id


def _broker_from_row(row: Row) -> Broker:
    endpoints = tuple(Endpoint(*each) for each in row.endpoints)
    return Broker(**{**row._asdict(), "endpoints": endpoints})


def _close(transaction: Transaction, query: Query, session_id: UUID) -> None:
    transaction.send(query, {"session_id": session_id, "now_ms": transaction.now_ms()})


def fenced_error(session_id: UUID, state: str | None = None) -> SessionFencedError:
    """Return the error for a session that may not commit."""
    reason = "is not active" if state is None else f"is {state}"
    return SessionFencedError(
        f"session {session_id} {reason}: it may not commit", remedy="register a new session"
    )


def _session_from_row(row: Row) -> Session:
    return Session(
        session_id=row.session_id,
        description=row.description,
        state=SessionState(row.state),
        started_ms=row.started_ms,
        heartbeat_ms=row.heartbeat_ms,
        closed_ms=row.closed_ms,
        is_unsettled=row.is_unsettled,
    )
