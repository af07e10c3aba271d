"""Transactions on PostgreSQL: a bounded pool, timeouts, retries, and errors of our own kinds.

A unit of work is a function of a `Transaction`. It may run several times, so it must leave nothing behind but
what it does through the transaction. After a serialization failure or a deadlock nothing has happened and the
work is simply done again. After a lost connection the commit may or may not have happened: only work that is
marked idempotent is repeated then.

Statements of one transaction go out in pipeline mode: what does not wait for an answer shares a round trip,
BEGIN and COMMIT included.
"""

from __future__ import annotations

import selectors
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg_pool import ConnectionPool, PoolTimeout
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt
from typing_extensions import override

from catalog.database import arrays
from catalog.database.connection import (
    DatabaseLimits,
    LastFailure,
    connection_string,
    describe_address,
    first_line,
)
from catalog.database.operation_counts import OperationCounts
from catalog.database.sql_files import load_queries
from catalog.errors import CatalogUnavailableError, UnstorableValueError
from core.clock import SystemClock
from core.errors import FatalError, SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from catalog.database.connection import Connection, Row
    from catalog.database.sql_files import Query
    from core.clock import Clock
    from core.ids import Ids

T = TypeVar("T")
_SQL = load_queries("time")
_ATTEMPTS = 8
_FIRST_WAIT_SECONDS = 0.01
_LONGEST_WAIT_SECONDS = 2.0
_NEVER_HAPPENED = (
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.ReadOnlySqlTransaction,
    pg.IdleInTransactionSessionTimeout,
)
_UNSTORABLE = (pg.CharacterNotInRepertoire, pg.UntranslatableCharacter, pg.ProgramLimitExceeded)
_NOT_REPEATED = (pg.QueryCanceled, pg.LockNotAvailable, PoolTimeout, pg.ProgramLimitExceeded)


class Transaction:
    """What a unit of work may do; handed to it by `Database.transact`."""

    def __init__(
        self, connection: Connection, pipeline: psycopg.Pipeline, patience: float, injected: Clock | None
    ) -> None:
        self._connection = connection
        self._patience = patience
        self._injected = injected
        self._pipeline = pipeline
        self.statements = 0

    def send(self, query: Query, params: Mapping[str, object] | None = None) -> psycopg.Cursor[Row]:
        """Send a statement without waiting for its answer; `wait` before fetching from what is returned."""
        self.statements += 1
        return self._connection.cursor(binary=True).execute(query.sql, params)

    def wait(self) -> None:
        """Wait for the answers to all that was sent: one round trip."""
        self._flush()
        self._pipeline.sync()

    def _flush(self) -> None:
        """Hand the last byte of what was sent to the system.

        `Pipeline.sync` of psycopg 3.3 waits for the socket to be readable only: of a statement that did not
        fit the socket's buffer the rest would stay here, and both sides would wait for ever. What the server
        says meanwhile is taken in, or it might stop listening.
        """
        pgconn = self._connection.pgconn
        if not pgconn.flush():
            return
        with selectors.DefaultSelector() as selector:
            selector.register(pgconn.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while pgconn.flush():
                ready = selector.select(self._patience)
                if not ready:
                    raise psycopg.OperationalError(f"the server took nothing for {self._patience:g} s")
                if ready[0][1] & selectors.EVENT_READ:
                    pgconn.consume_input()

    def rows(self, query: Query, params: Mapping[str, object] | None = None) -> list[Row]:
        """Send a statement and wait for its rows."""
        cursor = self.send(query, params)
        self.wait()
        return cursor.fetchall()

    def now_ms(self) -> int:
        """The catalog's time: the server's clock decides, for all machines are compared by it.

        One round trip, unless a test or a simulation owns the time.
        """
        if self._injected is not None:
            return self._injected.now_ms()
        return int(self.rows(_SQL["server_now"])[0][0])

    def count(self, query: Query, params: Mapping[str, object] | None = None) -> int:
        """Send a statement, wait for it, and say how many rows it touched."""
        cursor = self.send(query, params)
        self.wait()
        return cursor.rowcount


@contextmanager
def _transaction(connection: Connection, patience: float, injected: Clock | None) -> Iterator[Transaction]:
    """A transaction in one pipeline: BEGIN goes out with the first statements, COMMIT with the last.

    `patience` bounds in seconds how long the server may take nothing of what is sent.
    """
    try:
        with connection.pipeline() as pipeline:
            connection.execute(b"BEGIN")
            yield Transaction(connection, pipeline, patience, injected)
            connection.execute(b"COMMIT")
    except BaseException:
        if not connection.closed:
            connection.rollback()
        raise


class Database:
    """A pool of connections to one catalog; safe to use from many threads.

    A `SystemClock` is one machine's among many: then the server's clock stamps and judges what lies in the
    catalog. Any other clock is taken to be everybody's, as in tests and simulations.
    """

    def __init__(self, url: str, clock: Clock, ids: Ids, limits: DatabaseLimits | None = None) -> None:
        self._limits = limits or DatabaseLimits()
        self._clock = clock
        self._injected = None if isinstance(clock, SystemClock) else clock
        self._ids = ids
        self.conninfo = connection_string(url, self._limits)
        self.address = describe_address(url)
        self.counts = OperationCounts()
        self._last_failure = LastFailure()
        self._pool = self._new_pool(1, self._limits.max_connections)
        # Readers may take every other connection: producers do not wait for them.
        self._pool_apart = self._new_pool(0, self._limits.commit_connections)

    def _new_pool(self, min_size: int, max_size: int) -> ConnectionPool[Connection]:
        return ConnectionPool(
            self.conninfo,
            connection_class=self._last_failure.noted_by(),
            kwargs={"autocommit": True},
            min_size=min_size,
            max_size=max_size,
            timeout=self._limits.connect_seconds,
            max_waiting=1000,
            num_workers=1,
            configure=arrays.register,
            open=True,
        )

    @override
    def __repr__(self) -> str:
        return f"Database({self.address!r})"

    def close(self) -> None:
        """Close every connection; waits for none of them to come back."""
        self._pool.close()
        self._pool_apart.close()

    @property
    def injected_now_ms(self) -> int | None:
        """The time for statements that ask the server's clock where it is None."""
        return None if self._injected is None else self._injected.now_ms()

    def now_ms(self) -> int:
        """The catalog's time, as `Transaction.now_ms` has it."""
        injected = self.injected_now_ms
        return injected if injected is not None else int(self.read("time.now", _SQL["server_now"])[0][0])

    def transact(
        self,
        operation: str,
        work: Callable[[Transaction], T],
        *,
        idempotent: bool = True,
        apart: bool = False,
    ) -> T:
        """Do `work` in one transaction and return what it returns; counts it under `operation`.

        `apart` takes one of the connections that are kept for commits.
        """

        def attempt(connection: Connection, tally: _Tally) -> T:
            with _transaction(connection, self._limits.statement_seconds, self._injected) as transaction:
                try:
                    return work(transaction)
                finally:
                    tally.statements += transaction.statements

        pool = self._pool_apart if apart else self._pool
        return self._repeat(operation, attempt, pool, idempotent=idempotent)

    def read(self, operation: str, query: Query, params: Mapping[str, object] | None = None) -> list[Row]:
        """The rows of one statement, in one round trip."""

        def attempt(connection: Connection, tally: _Tally) -> list[Row]:
            tally.statements += 1
            return connection.cursor(binary=True).execute(query.sql, params).fetchall()

        return self._repeat(operation, attempt, self._pool, idempotent=True)

    def _repeat(
        self,
        operation: str,
        attempt: Callable[[Connection, _Tally], T],
        pool: ConnectionPool[Connection],
        *,
        idempotent: bool,
    ) -> T:
        def worth_repeating(error: BaseException) -> bool:
            if isinstance(error, _NEVER_HAPPENED):
                return True
            return (
                idempotent
                and isinstance(error, psycopg.OperationalError)
                and not isinstance(error, _NOT_REPEATED)
            )

        with self._counted(operation) as tally, self._own_errors(operation):
            for again in Retrying(
                stop=stop_after_attempt(_ATTEMPTS),
                wait=self._wait,
                sleep=self._clock.sleep,
                retry=retry_if_exception(worth_repeating),
                reraise=True,
            ):
                with again:
                    number = again.retry_state.attempt_number
                    tally.retries = number - 1
                    if number > 1:
                        pool.check()
                    with pool.connection() as connection:
                        try:
                            return attempt(connection, tally)
                        except pg.ReadOnlySqlTransaction:
                            connection.close()  # to a server that is not the first one any more
                            raise
        raise AssertionError  # reraise leaves no other way out

    def _wait(self, state: RetryCallState) -> float:
        """Full jitter (Brooker, "Exponential backoff and jitter")."""
        ceiling = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0**state.attempt_number)
        return self._ids.random() * ceiling

    @contextmanager
    def _counted(self, operation: str) -> Iterator[_Tally]:
        tally = _Tally()
        started = self._clock.monotonic()
        failed = True
        try:
            yield tally
            failed = False
        finally:
            self.counts.add(
                operation,
                retries=tally.retries,
                failed=failed,
                statements=tally.statements,
                seconds=self._clock.monotonic() - started,
            )

    @contextmanager
    def _own_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._own_error(operation, error) from error

    def _own_error(self, operation: str, error: psycopg.Error) -> SiltstoneError:
        # psycopg itself refuses a NUL, without a state: it has not asked the server.
        if isinstance(error, _UNSTORABLE) or (isinstance(error, psycopg.DataError) and not error.sqlstate):
            return UnstorableValueError(
                f"the catalog cannot keep what {operation} was given: {first_line(error)}",
                remedy="give shorter names, and text without NUL",
            )
        if isinstance(error, (psycopg.OperationalError, *_NEVER_HAPPENED)):
            why = self._last_failure.words if isinstance(error, PoolTimeout) else None
            return CatalogUnavailableError(
                f"the catalog at {self.address} did not answer {operation}: {why or first_line(error)}",
                remedy="check that PostgreSQL runs there and is not overloaded",
                retry_after_seconds=1.0,
            )
        return FatalError(
            f"the catalog at {self.address} refused {operation}: {error.sqlstate} {first_line(error)}",
            remedy="this is a defect of Siltstone, or the database was changed by other hands",
        )


@dataclass(slots=True)
class _Tally:
    retries: int = 0
    statements: int = 0
