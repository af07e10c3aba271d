"""How connections to the catalog are made: where to, within which bounds, and why one could not be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typing_extensions import override

from catalog.errors import CatalogAddressError

if TYPE_CHECKING:
    from typing import Self

Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]

SCHEMA = "siltstone"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLimits:
    """Bounds on what a process asks of the catalog, in connections and seconds.

    `commit_connections` come on top of the others and are for commits alone.
    """

    max_connections: int = 8
    commit_connections: int = 2
    connect_seconds: int = 10
    statement_seconds: int = 30
    lock_seconds: int = 20
    idle_in_transaction_seconds: int = 60


def connection_string(url: str, limits: DatabaseLimits) -> str:
    """`url` with Siltstone's timeouts and search path; CatalogAddressError without a word of its password."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        raise CatalogAddressError(
            "the catalog's connection string cannot be understood",
            remedy="give it as postgresql://user@host:port/database",
        ) from None
    options = (
        f"-c search_path={SCHEMA} -c timezone=UTC -c client_min_messages=warning"
        f" -c statement_timeout={limits.statement_seconds}s -c lock_timeout={limits.lock_seconds}s"
        f" -c idle_in_transaction_session_timeout={limits.idle_in_transaction_seconds}s"
    )
    defaults: dict[str, str | int | None] = {
        "connect_timeout": limits.connect_seconds,
        "application_name": "siltstone",
        # A link that is dead though nobody said so is found out within a minute, by whoever only listens
        # (idle + count · interval) as by whoever has sent something.
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": limits.statement_seconds * 1000,
    }
    given_options = given.pop("options", None)
    # Last, so that it holds: row locks and the reads after them count on it.
    pinned = r"-c default_transaction_isolation=read\ committed"
    merged = {**defaults, **given, "options": f"{options} {given_options or ''} {pinned}"}
    return make_conninfo("", **merged)


def describe_address(url: str) -> str:
    """Host, port and database of a connection string, for people; never its password."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        return "an address that cannot be understood"
    return f"{given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname', '')}"


class LastFailure:
    """Why the last try of a pool to connect came to nothing; None when it did not.

    A pool makes its connections in the background. Who waits for one is told that there is none, and why is
    in the pool's log alone.
    """

    def __init__(self) -> None:
        self.words: str | None = None

    def noted_by(self) -> type[Connection]:
        """The kind of connection that notes here how each try to make one ended."""
        failure = self

        class Noted(psycopg.Connection[Row]):
            @classmethod
            @override
            def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
                try:
                    made = super().connect(conninfo, **kwargs)
                except psycopg.Error as error:
                    failure.words = first_line(error)
                    raise
                failure.words = None
                return made

        return Noted


def first_line(error: Exception) -> str:
    """What an error says, without the hints that PostgreSQL puts below."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
