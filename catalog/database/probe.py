"""A probe of the catalog on a separate connection, with a deadline that this process enforces.

The pools are unsuitable: when the server hangs, their connections hang with it, because the server's own
timeouts do not run, and TCP's do not either while its kernel acknowledges.
"""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from catalog.database.connection import first_line
from catalog.errors import CatalogUnavailableError

if TYPE_CHECKING:
    from catalog.database.connection import Connection
    from catalog.database.pool import Database

_OPERATION: Final = "health.probe"
_QUERY: Final = b"SELECT current_setting('transaction_read_only')"
_MIN_CONNECT_SECONDS: Final = 2  # libpq takes a shorter timeout as this


class CatalogProbe:
    """Checks that the catalog responds in time and accepts writes; for use by one thread.

    The connection stays open between calls, so a call costs one statement. After a failure it is opened
    again.
    """

    def __init__(self, database: Database, timeout_seconds: float) -> None:
        self._database = database
        self._timeout_seconds = timeout_seconds
        self._connection: Connection | None = None

    def check(self) -> None:
        """Send one statement.

        Raise CatalogUnavailableError without a response in time, or if the server is read-only.
        """
        clock = self._database.machine_clock
        started, failed = clock.monotonic(), True
        try:
            is_read_only = self._ask() != b"off"
            if is_read_only:
                raise self._error("it accepts no writes")
            failed = False
        except psycopg.Error as error:
            raise self._error(first_line(error)) from error
        finally:
            if failed:
                self.close()
            self._database.counts.add(
                _OPERATION,
                retries=0,
                failed=failed,
                statements=1,
                seconds=clock.monotonic() - started,
            )

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self) -> bytes | None:
        if self._connection is None:
            timeout = max(_MIN_CONNECT_SECONDS, round(self._timeout_seconds))
            self._connection = psycopg.connect(
                make_conninfo(self._database.conninfo, connect_timeout=timeout), autocommit=True
            )
        pgconn = self._connection.pgconn
        pgconn.send_query(_QUERY)
        deadline = self._database.machine_clock.monotonic() + self._timeout_seconds
        value: bytes | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(pgconn.socket, selectors.EVENT_READ)
            while True:
                pgconn.flush()
                while pgconn.is_busy():
                    left = deadline - self._database.machine_clock.monotonic()
                    if left <= 0 or not selector.select(left):
                        raise self._error(f"no response for {self._timeout_seconds:g} s")
                    pgconn.consume_input()
                result = pgconn.get_result()
                if result is None:
                    return value
                if result.status != pq.ExecStatus.TUPLES_OK:
                    raise self._error(result.error_message.decode(errors="replace").strip())
                value = result.get_value(0, 0)

    def _error(self, reason: str) -> CatalogUnavailableError:
        return CatalogUnavailableError(
            f"the catalog at {self._database.address} did not respond to a probe: {reason}",
            remedy="check that PostgreSQL runs there, is the primary, and is not overloaded",
        )
