"""Connections to the catalog's PostgreSQL: address, limits, and the reason of the last failed attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg.conninfo import make_conninfo
from typing_extensions import override

from catalog.database.address import parse_address

if TYPE_CHECKING:
    from typing import Self

Row: TypeAlias = Any
"""A result row as a named tuple; its attributes are the column names of the query."""
TupleRow: TypeAlias = tuple[Any, ...]
"""A result row as a plain tuple, for statements that return many rows on the commit path."""
Connection = psycopg.Connection[TupleRow]

SCHEMA = "siltstone"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLimits:
    """Limits on connections and durations (in seconds) of one process.

    `commit_connections` are reserved for commits and are added to `max_connections`.
    """

    max_connections: int = 8
    commit_connections: int = 2
    connect_seconds: int = 10
    statement_seconds: int = 30
    lock_seconds: int = 20
    idle_in_transaction_seconds: int = 60


def connection_string(url: str, limits: DatabaseLimits) -> str:
    """Return `url` with Siltstone's timeouts and search path.

    CatalogAddressError does not contain any part of the URL, because the URL may hold a password.
    """
    given = dict(parse_address(url))
    options = (
        f"-c search_path={SCHEMA} -c timezone=UTC -c client_min_messages=warning"
        f" -c statement_timeout={limits.statement_seconds}s -c lock_timeout={limits.lock_seconds}s"
        f" -c idle_in_transaction_session_timeout={limits.idle_in_transaction_seconds}s"
    )
    defaults: dict[str, str | int | None] = {
        "connect_timeout": limits.connect_seconds,
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
    merged = {**defaults, **given, "options": f"{options} {given_options or ''} {pinned}"}
    return make_conninfo("", **merged)


class LastConnectError:
    """Reason why a pool's last attempt to connect failed; None after a success.

    A pool connects in the background and writes the reason only to its log. A caller that waits for a
    connection learns no more than that there is none.
    """

    def __init__(self) -> None:
        self.message: str | None = None

    def connection_class(self) -> type[Connection]:
        """Return a connection class that records the outcome of each attempt to connect."""
        last = self

        class RecordingConnection(psycopg.Connection[TupleRow]):
            @classmethod
            @override
            def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
                try:
                    connection = super().connect(conninfo, **kwargs)
                except psycopg.Error as error:
                    last.message = first_line(error)
                    raise
                last.message = None
                return connection

        return RecordingConnection


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without PostgreSQL's hints."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
