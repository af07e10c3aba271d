"""Connections to the catalog's PostgreSQL: address, limits, session parameters, and error messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from typing_extensions import override

from catalog.database.address import parse_address
from catalog.errors import CatalogAddressError

if TYPE_CHECKING:
    from psycopg.abc import PQGen

    from catalog.database.limits import DatabaseLimits

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


def session_parameters(limits: DatabaseLimits, *, lock_seconds: float | None = None) -> dict[str, str]:
    """Return PostgreSQL's parameters of a connection, by name; `lock_seconds` replaces the usual limit.

    The parameters for TCP are the server's: without them, connections of a machine that lost its power stay
    open for hours. They do not matter for a Unix socket. The cost of a random page is that of a cached one,
    because the tables in use are cached. With the server's default, PostgreSQL scans 10,000 rows to find 100.
    """
    lock_seconds = limits.lock_seconds if lock_seconds is None else lock_seconds
    return {
        "search_path": SCHEMA,
        "timezone": "UTC",
        "client_min_messages": "warning",
        "random_page_cost": "1.1",
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


def connection_string(
    url: str, limits: DatabaseLimits, *, lock_seconds: float | None = None, with_parameters: bool = True
) -> str:
    """Return `url` with Siltstone's timeouts and search path, for connections to a primary.

    Poolers refuse a session's parameters; `with_parameters=False` leaves them out.
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
    merged = {**defaults, **given, "target_session_attrs": _PRIMARY}
    if with_parameters:
        merged["options"] = f"{options} {given_options or ''} {pinned}"
    elif given_options:
        merged["options"] = given_options
    return make_conninfo("", **merged)


class CatalogConnection(psycopg.Connection[TupleRow]):
    """Connection that is closed when its server does not respond for `response_seconds`.

    The server's own timeouts end a slow statement long before. This one ends the wait for a server that is
    frozen: its machine still confirms packets, so TCP does not notice.
    """

    response_seconds: float | None = None
    is_pooled = False
    begin: tuple[bytes, ...] = (b"BEGIN",)
    """The statements that begin a transaction."""
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
    hosts = [line.removeprefix("- ") for line in lines if line.startswith("- host: ")]
    return "; ".join(map(_host_and_reason, hosts)) or lines[0]


def _host_and_reason(line: str) -> str:
    """Shorten psycopg's line about one host: host and port, and the last part of the reason."""
    host, _, rest = line.partition(", hostaddr: ")
    return f"{host}: {rest.partition(': ')[2].rpartition('failed: ')[2]}"
