"""Connections to the catalog's PostgreSQL: address, limits, session parameters, and error messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from typing_extensions import override

from catalog.database.address import parse_address
from catalog.errors import CatalogAddressError

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")
Row: TypeAlias = Any
"""A result row as a named tuple; its attributes are the column names of the query."""
TupleRow: TypeAlias = tuple[Any, ...]
"""A result row as a plain tuple, for statements that return many rows on the commit path."""
Connection = psycopg.Connection[TupleRow]

SCHEMA = "siltstone"
_PRIMARY: Final = "read-write"
_MIN_CONNECT_SECONDS: Final = 2  # libpq's minimum
_WAIT_INTERVAL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLimits:
    """Limits on connections and durations (in seconds) of one process.

    `commit_connections` are reserved for commits, and `heartbeat_connections` for heartbeats. Both are added
    to `max_connections`.

    A commit that waits longer than `commit_lock_seconds` for a lock gives way and tries again, for
    `lock_seconds` in all. Others wait for `lock_seconds` at once. A transaction is ended when its client is
    silent for `silent_client_seconds`, so that a frozen process does not hold its locks.

    `response_seconds` is how long a server may not respond at all before its connection is closed. A call is
    retried for `retry_seconds` while no connection can be opened.

    With `allow_unsafe_commits`, a server may acknowledge commits that a crash or a failover loses.
    """

    max_connections: int = 8
    commit_connections: int = 2
    heartbeat_connections: int = 1
    connect_seconds: int = 10
    response_seconds: int = 60
    retry_seconds: float = 10
    statement_seconds: int = 30
    lock_seconds: int = 20
    commit_lock_seconds: float = 0.5
    silent_client_seconds: float = 2
    allow_unsafe_commits: bool = False


def session_parameters(limits: DatabaseLimits, *, lock_seconds: float | None = None) -> dict[str, str]:
    """Return PostgreSQL's parameters of a connection, by name; `lock_seconds` replaces the usual limit.

    The parameters for TCP are the server's: without them, connections of a machine that lost its power stay
    open for hours. They do not matter for a Unix socket.
    """
    lock_seconds = limits.lock_seconds if lock_seconds is None else lock_seconds
    return {
        "search_path": SCHEMA,
        "timezone": "UTC",
        "client_min_messages": "warning",
        "statement_timeout": f"{limits.statement_seconds}s",
        "lock_timeout": _milliseconds(lock_seconds),
        "idle_in_transaction_session_timeout": _milliseconds(limits.silent_client_seconds),
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "25s",
    }


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def connection_string(url: str, limits: DatabaseLimits, *, lock_seconds: float | None = None) -> str:
    """Return `url` with Siltstone's timeouts and search path, for connections to a primary.

    CatalogAddressError does not contain any part of the URL, because the URL may hold a password.
    """
    given = dict(parse_address(url))
    wanted = given.pop("target_session_attrs", _PRIMARY)
    if wanted not in {_PRIMARY, "primary"}:
        raise CatalogAddressError(
            f"the catalog's connection string asks for a server with target_session_attrs={wanted}, "
            "but a standby may lag behind what agents have acknowledged",
            remedy=f"leave target_session_attrs out: Siltstone sets it to {_PRIMARY}",
        )
    hosts = str(given.get("host") or given.get("hostaddr") or "").count(",") + 1
    parameters = session_parameters(limits, lock_seconds=lock_seconds)
    options = " ".join(f"-c {name}={value}" for name, value in parameters.items())
    defaults: dict[str, str | int | None] = {
        # A host that does not respond must not use up the time for the others.
        "connect_timeout": max(_MIN_CONNECT_SECONDS, limits.connect_seconds // (2 * hosts - 1)),
        "application_name": "siltstone",
        # A broken connection is detected within a minute: keep-alives (idle + count * interval) detect it on
        # a connection that only listens, tcp_user_timeout on a connection that sends.
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": limits.statement_seconds * 1000,
    }
    given_options = given.pop("options", None)
    # The isolation level comes last, so that the URL cannot override it: row locks and the reads that follow
    # them rely on it.
    pinned = r"-c default_transaction_isolation=read\ committed"
    merged = {
        **defaults,
        **given,
        "options": f"{options} {given_options or ''} {pinned}",
        "target_session_attrs": _PRIMARY,
    }
    return make_conninfo("", **merged)


class CatalogConnection(psycopg.Connection[TupleRow]):
    """Connection that is closed when its server does not respond for `response_seconds`.

    The server's own timeouts end a slow statement long before. This one ends the wait for a server that is
    frozen: its machine still confirms packets, so TCP does not notice.
    """

    response_seconds: float | None = None
    stopped_waiting_for_standby = False

    @override
    def wait(
        self, gen: PQGen[T], interval: float = _WAIT_INTERVAL_SECONDS, timeout: float | None = None
    ) -> T:
        try:
            return super().wait(gen, interval, self.response_seconds if timeout is None else timeout)
        except psycopg.OperationalError as error:
            if timeout is not None or type(error).__name__ != "_WaitTimeout":
                raise
            self.close()
            raise psycopg.OperationalError(f"no response for {self.response_seconds:g} s") from None

    def note(self, notice: psycopg.errors.Diagnostic) -> None:
        """Note that PostgreSQL reports a commit as successful that did not wait for its standby.

        It does so when somebody cancels the waiting statement. The text depends on the server's language.
        """
        if notice.source_function == "SyncRepWaitForLSN":
            self.stopped_waiting_for_standby = True


def connect(conninfo: str, response_seconds: float) -> CatalogConnection:
    """Open a connection outside of any transaction."""
    connection = CatalogConnection.connect(conninfo, autocommit=True)
    connection.response_seconds = response_seconds
    connection.add_notice_handler(connection.note)
    return connection


def first_line(error: Exception) -> str:
    """Return an error's message on one line, without PostgreSQL's hints.

    If there are several hosts, psycopg lists one reason a line.
    """
    lines = (str(error).strip() or type(error).__name__).splitlines()
    reasons = [line.rpartition("failed: ")[2] for line in lines if line.startswith("- host: ")]
    hosts = [
        line.removeprefix("- ").partition(", hostaddr")[0] for line in lines if line.startswith("- host: ")
    ]
    if reasons:
        return "; ".join(f"{host}: {reason}" for host, reason in zip(hosts, reasons, strict=True))
    return lines[0]
