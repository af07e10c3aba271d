"""Connections to one catalog, directly or through a pooler.

A pooler such as PgBouncer in transaction mode gives each transaction of a client another connection to the
server. What a client sets for its session therefore reaches other clients, or is lost. Prepared statements
and LISTEN depend on the session as well. Poolers accept no parameters at start-up for the same reason.

The first connection shows whether there is a pooler: it refuses the parameters, or the process id that it
reported at start-up is not that of the server's process. Connections through a pooler then set their
parameters in each transaction, in the same round trip as BEGIN, and prepare no statements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from catalog.database.address import describe_address
from catalog.database.connection import connect, connection_string, first_line, session_parameters
from catalog.errors import CatalogAddressError

if TYPE_CHECKING:
    from catalog.database.connection import CatalogConnection
    from catalog.database.limits import DatabaseLimits

# Of PgBouncer, and of RDS Proxy ("RDS Proxy currently doesn't support command-line options").
_REFUSALS: Final = ("unsupported startup parameter", "support command-line options")
# A pooler's connections do not keep what a session pins (`catalog.database.durability`).
_SAFE_COMMIT: Final = (
    "set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') "
    "THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
)


class Connector:
    """Opens connections to the catalog at `url`; thread-safe.

    Transactions wait for a lock for `lock_seconds`, if that is given.
    """

    def __init__(self, url: str, limits: DatabaseLimits, *, lock_seconds: float | None = None) -> None:
        self._address = describe_address(url)
        self._direct = connection_string(url, limits, lock_seconds=lock_seconds)
        self._pooled = connection_string(url, limits, with_parameters=False)
        self._limits = limits
        self._is_pooled: bool | None = None
        parameters = session_parameters(limits, lock_seconds=lock_seconds)
        # Parameters of TCP concern the socket between pooler and server.
        settings = [
            f"set_config('{name}', '{value}', true)"
            for name, value in parameters.items()
            if not name.startswith("tcp_")
        ]
        if not limits.allow_unsafe_commits:
            settings.append(_SAFE_COMMIT)
        self._begin_pooled = (
            b"BEGIN ISOLATION LEVEL READ COMMITTED",
            f"SELECT {', '.join(settings)}".encode(),
        )

    @property
    def is_pooled(self) -> bool:
        """Return True if connections go through a pooler; False before the first one."""
        return self._is_pooled is True

    @property
    def conninfo(self) -> str:
        """Return the connection string that the server or pooler accepts."""
        return self._pooled if self._is_pooled else self._direct

    def connect(self) -> CatalogConnection:
        """Open a connection that the caller closes.

        CatalogAddressError: there is a pooler that does not keep a connection for a whole transaction.
        """
        connection = self._discover() if self._is_pooled is None else self._open(self.conninfo)
        if self._is_pooled:
            connection.is_pooled = True
            connection.begin = self._begin_pooled
            connection.prepare_threshold = None
        return connection

    def _open(self, conninfo: str) -> CatalogConnection:
        return connect(conninfo, self._limits.response_seconds)

    def _discover(self) -> CatalogConnection:
        refuses_parameters = False
        try:
            connection = self._open(self._direct)
        except psycopg.OperationalError as error:
            if not any(refusal in str(error) for refusal in _REFUSALS):
                raise
            refuses_parameters = True
            connection = self._open(self._pooled)
        try:
            # A pooler may pass the process id on, while it pins the connection.
            is_pooled = refuses_parameters or is_behind_pooler(connection)
            if is_pooled:
                self._check_transactions(connection)
        except BaseException:
            connection.close()
            raise
        self._is_pooled = is_pooled
        return connection

    def _check_transactions(self, connection: CatalogConnection) -> None:
        """Raise CatalogAddressError if the pooler gives each statement another connection."""
        try:
            with connection.transaction():
                connection.execute(b"SELECT 1", prepare=False)
        except psycopg.OperationalError as error:
            if "statement pooling mode" not in str(error):
                raise
            raise CatalogAddressError(
                f"the pooler at {self._address} refuses transactions: {first_line(error)}",
                remedy="set its pool_mode to transaction",
            ) from error


def is_behind_pooler(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    """Return True if something between this process and the server holds the server's connections."""
    row = connection.execute(b"SELECT pg_backend_pid()", prepare=False).fetchone()
    return row != (connection.info.backend_pid,)
