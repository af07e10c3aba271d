"""Transactions on PostgreSQL: a bounded pool, timeouts, retries, and errors of `catalog.errors`.

A unit of work is a function of a `Transaction`. It may run several times, so its only effects must be those
that it has through the transaction. After a serialization failure or a deadlock, nothing has happened, and
the work runs again. After a lost connection, the commit may have happened: only idempotent work runs again.

The statements of one transaction are sent in pipeline mode. Statements that do not wait for a result share a
round trip, including BEGIN and COMMIT.
"""

from __future__ import annotations

import selectors
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import psycopg
import structlog
from psycopg import errors as pg
from psycopg.rows import namedtuple_row
from typing_extensions import override

from catalog.database import arrays
from catalog.database.address import describe_address
from catalog.database.bounded_pool import (
    BoundedPool,
    ConnectionsInUseError,
    ConnectionStock,
    PoolClosedError,
)
from catalog.database.connection import first_line
from catalog.database.connector import Connector
from catalog.database.durability import DurabilityCheck
from catalog.database.limits import DatabaseLimits
from catalog.database.sql_files import load_queries
from catalog.errors import CatalogTimeoutError, CatalogUnavailableError, UnstorableValueError
from core.clock import SystemClock
from core.errors import FatalError, SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from uuid import UUID

    from catalog.database.connection import CatalogConnection, Row, TupleRow
    from catalog.database.sql_files import Query
    from core.clock import Clock
    from core.ids import Ids

T = TypeVar("T")
_SQL = load_queries("time")
_SERVER_SQL = load_queries("server")
_log = structlog.get_logger(__name__)
_MAX_ATTEMPTS = 8
_USUAL_SHARED = 3  # connections for everything but commits and heartbeats, while none of them is stuck
_MIN_BACKOFF_SECONDS = 0.01
MAX_BACKOFF_SECONDS: Final = 1.0  # the longest pause between two attempts of a call
_MAX_DOUBLINGS = 32
_WAIT_PER_SILENCE = 0.45
# After these errors the transaction has certainly not been committed.
_NOT_COMMITTED = (
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.ReadOnlySqlTransaction,
    pg.IdleInTransactionSessionTimeout,
)
_UNSTORABLE = (pg.CharacterNotInRepertoire, pg.UntranslatableCharacter, pg.ProgramLimitExceeded)
_NOT_RETRIED = (pg.QueryCanceled, ConnectionsInUseError, PoolClosedError, pg.ProgramLimitExceeded)


class Transaction:
    """Interface of a unit of work to its transaction; created by `Database.transact`."""

    def __init__(
        self,
        connection: CatalogConnection,
        pipeline: psycopg.Pipeline,
        limits: DatabaseLimits,
        machine_clock: Clock,
        injected_clock: Clock | None,
    ) -> None:
        self._connection = connection
        self._send_timeout = limits.statement_seconds
        self._max_silence = limits.silent_client_seconds / 4
        self._machine_clock = machine_clock
        self._injected_clock = injected_clock
        self._pipeline = pipeline
        self._waited_at = machine_clock.monotonic()
        self.statements = 0

    def send(self, query: Query, params: Mapping[str, object] | None = None) -> psycopg.Cursor[TupleRow]:
        """Send a statement without waiting for its result; call `wait` before fetching from the cursor."""
        self.statements += 1
        return self._connection.cursor(binary=True).execute(query.sql, params)

    def wait(self) -> None:
        """Wait for the results of all statements that were sent: one round trip."""
        self._flush()
        self._pipeline.sync()
        self._waited_at = self._machine_clock.monotonic()

    def _flush(self) -> None:
        """Write all pending output to the socket.

        `Pipeline.sync` of psycopg 3.3 waits only until the socket is readable. The rest of a statement that
        exceeds the socket's buffer would stay in this process, and both sides would wait forever. Input is
        consumed meanwhile, because a server that cannot send may stop reading.
        """
        pgconn = self._connection.pgconn
        if not pgconn.flush():
            return
        with selectors.DefaultSelector() as selector:
            selector.register(pgconn.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while pgconn.flush():
                ready = selector.select(self._send_timeout)
                if not ready:
                    raise psycopg.OperationalError(f"the server read no data for {self._send_timeout:g} s")
                if ready[0][1] & selectors.EVENT_READ:
                    pgconn.consume_input()

    def rows(self, query: Query, params: Mapping[str, object] | None = None) -> list[Row]:
        """Send a statement, wait for it, and return its rows as named tuples."""
        self.statements += 1
        cursor = self._connection.cursor(binary=True, row_factory=namedtuple_row).execute(query.sql, params)
        self.wait()
        return cursor.fetchall()

    def now_ms(self) -> int:
        """Return the catalog's time: that of the server's clock, which is the same for all machines.

        This costs one round trip, unless a test or a simulation injected its own clock.
        """
        if self._injected_clock is not None:
            return self._injected_clock.now_ms()
        return int(self.rows(_SQL["server_now"])[0].now_ms)

    def keep_alive(self) -> None:
        """Show the server that this process is not frozen; call it often while much is computed.

        A transaction is ended when its client is silent for `silent_client_seconds`. This sends a statement
        if the last round trip was a quarter of that ago.
        """
        if self._machine_clock.monotonic() - self._waited_at > self._max_silence:
            self.rows(_SQL["server_now"])

    def count(self, query: Query, params: Mapping[str, object] | None = None) -> int:
        """Send a statement, wait for it, and return the number of affected rows."""
        cursor = self.send(query, params)
        self.wait()
        return cursor.rowcount


class Reserve(Enum):
    """Kinds of work with a bound on their connections each, so that none can use up those of another."""

    GENERAL = auto()
    FETCHES = auto()
    GROUPS = auto()
    MAINTENANCE = auto()
    COMMITS = auto()
    HEARTBEATS = auto()


class _NotConnectedError(psycopg.OperationalError):
    """No connection could be opened, so nothing has happened."""


@contextmanager
def _connection_of(pool: BoundedPool) -> Iterator[CatalogConnection]:
    """Lend a connection of `pool`, and react to the failures that concern the server."""
    with ExitStack() as lent:
        try:
            connection = lent.enter_context(pool.connection())
        except (ConnectionsInUseError, PoolClosedError):
            raise
        except psycopg.OperationalError as error:
            raise _NotConnectedError(str(error)) from error
        try:
            yield connection
        except pg.ReadOnlySqlTransaction:
            connection.close()  # its server is no longer the primary
            pool.discard_idle()
            raise
        finally:
            if connection.closed:
                pool.discard_idle()  # they lead to the same server


@contextmanager
def _transaction(
    connection: CatalogConnection, limits: DatabaseLimits, machine_clock: Clock, injected_clock: Clock | None
) -> Iterator[Transaction]:
    """Open a transaction in one pipeline: BEGIN is sent with the first statements, COMMIT with the last."""
    try:
        with connection.pipeline() as pipeline:
            for statement in connection.begin:
                connection.execute(statement)
            yield Transaction(connection, pipeline, limits, machine_clock, injected_clock)
            connection.execute(b"COMMIT")
        _require_standby(connection)
    except BaseException:
        if not connection.closed:
            connection.rollback()
        raise


def _require_standby(connection: CatalogConnection) -> None:
    """Raise an error after a commit that was to wait for a synchronous standby and did not.

    It may run again: the retry locks rows, so its own commit waits for everything that was written before.
    """
    if connection.stopped_waiting_for_standby:
        connection.close()
        raise psycopg.OperationalError("the commit is not known to be on the synchronous standby")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCount:
    """Totals of one operation; `seconds` includes retries and the waits between them."""

    calls: int = 0
    retries: int = 0
    failures: int = 0
    statements: int = 0
    seconds: float = 0.0


_NO_CALLS = OperationCount()


class OperationCounts:
    """Totals by operation name; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, OperationCount] = {}

    def add(self, operation: str, *, retries: int, failed: bool, statements: int, seconds: float) -> None:
        """Count one call of `operation`."""
        with self._lock:
            old = self._counts.get(operation, _NO_CALLS)
            self._counts[operation] = replace(
                old,
                calls=old.calls + 1,
                retries=old.retries + retries,
                failures=old.failures + failed,
                statements=old.statements + statements,
                seconds=old.seconds + seconds,
            )

    def snapshot(self) -> dict[str, OperationCount]:
        """Return the current totals."""
        with self._lock:
            return dict(self._counts)


@dataclass(slots=True)
class _CallStatistics:
    """Retries and statements of one call."""

    retries: int = 0
    statements: int = 0


class Database:
    """Connection pools to one catalog; thread-safe.

    A `SystemClock` is the clock of one machine among many, so the server's clock sets and compares all times
    in the catalog. Any other clock, as in tests and simulations, replaces the server's clock.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        ids: Ids,
        limits: DatabaseLimits | None = None,
        *,
        listen_url: str | None = None,
    ) -> None:
        self._limits = limits or DatabaseLimits()
        self._clock = clock
        self._injected_clock = None if isinstance(clock, SystemClock) else clock
        self._ids = ids
        limits = self._limits
        # A transaction that waits longer ends those of frozen processes, and tries again. Its last wait may
        # begin just before they count as silent, so both times add up.
        lock_seconds = min(_WAIT_PER_SILENCE * limits.silent_client_seconds, limits.lock_seconds)
        self._connector = Connector(url, limits, lock_seconds=lock_seconds)
        self._listen_connector = self._connector if listen_url is None else Connector(listen_url, limits)
        self.address = describe_address(url)
        self.counts = OperationCounts()
        self.durability = DurabilityCheck(self.address, allow_unsafe_commits=limits.allow_unsafe_commits)
        impatient = Connector(url, limits, lock_seconds=limits.commit_lock_seconds)
        self._thread = threading.local()
        shared = self._new_stock(self._connector, usual_size=_USUAL_SHARED)
        committing, beating = self._new_stock(impatient), self._new_stock(impatient)
        self._stocks = (shared, committing, beating)
        self._pools = {
            Reserve.GENERAL: self._new_pool("reads and changes", limits.max_connections, shared),
            # Threads choose these with `dedicate_thread`, because several kinds share an operation.
            Reserve.FETCHES: self._new_pool("fetches", limits.fetch_connections, shared),
            Reserve.GROUPS: self._new_pool("groups", limits.group_connections, shared),
            Reserve.MAINTENANCE: self._new_pool("maintenance", limits.maintenance_connections, shared),
            # Producers must not wait for readers, even if readers use all connections that they may.
            Reserve.COMMITS: self._new_pool("commits", limits.commit_connections, committing),
            # An agent that cannot send its heartbeat loses its session.
            Reserve.HEARTBEATS: self._new_pool("heartbeats", limits.heartbeat_connections, beating),
        }

    def dedicate_thread(self, reserve: Reserve) -> None:
        """Let all general calls of the calling thread use the connections of `reserve`."""
        self._thread.reserve = reserve

    def _pool_of(self, reserve: Reserve) -> BoundedPool:
        is_general = reserve is Reserve.GENERAL
        return self._pools[getattr(self._thread, "reserve", reserve) if is_general else reserve]

    def _new_stock(self, connector: Connector, usual_size: int = 1) -> ConnectionStock:
        return ConnectionStock(
            partial(self.connect, connector),
            self._clock,
            usual_size=usual_size,
            stuck_seconds=self._limits.stuck_seconds,
            idle_seconds=self._limits.idle_seconds,
            spare_seconds=self._limits.spare_seconds,
        )

    def _new_pool(self, name: str, max_size: int, stock: ConnectionStock) -> BoundedPool:
        return BoundedPool(name, stock, max_size=max_size, wait_seconds=self._limits.connect_seconds)

    def connect(self, connector: Connector | None = None) -> CatalogConnection:
        """Open a connection that the caller closes."""
        connection = (connector or self._connector).connect()
        try:
            arrays.register(connection)
            self.durability.check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def connect_for_notifications(self) -> CatalogConnection | None:
        """Open a connection for LISTEN that the caller closes; None if that would go through a pooler."""
        connection = self._listen_connector.connect()
        if not self._listen_connector.is_pooled:
            arrays.register(connection)
            return connection
        connection.close()
        return None

    @property
    def conninfo(self) -> str:
        """Return the connection string that the server accepts."""
        return self._connector.conninfo

    @property
    def is_pooled(self) -> bool:
        """Return True if connections go through a pooler."""
        return self._connector.is_pooled

    @override
    def __repr__(self) -> str:
        return f"Database({self.address!r})"

    def close(self) -> None:
        """Close every connection without waiting for those in use."""
        for pool in self._pools.values():
            pool.close()

    @property
    def machine_clock(self) -> Clock:
        """The clock that measures durations in this process."""
        return self._clock

    @property
    def injected_now_ms(self) -> int | None:
        """Return the injected clock's time, or None if statements must use the server's clock."""
        return None if self._injected_clock is None else self._injected_clock.now_ms()

    def monotonic(self) -> float:
        """Return seconds on this process's clock, which never goes back."""
        return self._clock.monotonic()

    def new_uuid(self) -> UUID:
        """Return a new identifier."""
        return self._ids.new_uuid()

    def now_ms(self) -> int:
        """Return the catalog's time, as `Transaction.now_ms` does."""
        injected = self.injected_now_ms
        return injected if injected is not None else int(self.read("time.now", _SQL["server_now"])[0].now_ms)

    def transact(
        self,
        operation: str,
        work: Callable[[Transaction], T],
        *,
        idempotent: bool = True,
        repeats_lock_waits: bool = True,
        reserve: Reserve = Reserve.GENERAL,
    ) -> T:
        """Run `work` in one transaction and return its result; count the call under `operation`.

        A thread with dedicated connections uses these; any other thread uses those in `reserve`. A wait for a
        lock lasts as long as the limits say for one wait, and is repeated for `lock_seconds` in all, or not.
        """

        def attempt(connection: CatalogConnection, statistics: _CallStatistics) -> T:
            with _transaction(connection, self._limits, self._clock, self._injected_clock) as transaction:
                try:
                    return work(transaction)
                finally:
                    statistics.statements += transaction.statements

        lock_seconds = self._limits.lock_seconds if repeats_lock_waits else 0
        pool = self._pool_of(reserve)
        return self._retry(operation, attempt, pool, idempotent=idempotent, lock_seconds=lock_seconds)

    def read(self, operation: str, query: Query, params: Mapping[str, object] | None = None) -> list[Row]:
        """Run one statement in one round trip and return its rows as named tuples."""

        def attempt(connection: CatalogConnection, statistics: _CallStatistics) -> list[Row]:
            statistics.statements += 1
            cursor = connection.cursor(binary=True, row_factory=namedtuple_row)
            if not connection.is_pooled:
                return cursor.execute(query.sql, params).fetchall()
            with connection.pipeline():
                for statement in connection.begin:
                    connection.execute(statement)
                cursor.execute(query.sql, params)
                connection.execute(b"COMMIT")
            return cursor.fetchall()

        pool, lock_seconds = self._pool_of(Reserve.GENERAL), self._limits.lock_seconds
        return self._retry(operation, attempt, pool, idempotent=True, lock_seconds=lock_seconds)

    def _retry(
        self,
        operation: str,
        attempt: Callable[[CatalogConnection, _CallStatistics], T],
        pool: BoundedPool,
        *,
        idempotent: bool,
        lock_seconds: float,
    ) -> T:
        started = self._clock.monotonic()
        with self._counted(operation) as statistics, self._translated_errors(operation):
            while True:
                try:
                    with _connection_of(pool) as connection:
                        return attempt(connection, statistics)
                except psycopg.Error as error:
                    if isinstance(error, pg.LockNotAvailable):
                        self._end_silent_transactions(pool)
                    is_last = self._is_last(error, statistics.retries, started, lock_seconds)
                    if is_last or not _is_retriable(error, idempotent=idempotent):
                        raise
                statistics.retries += 1
                self._clock.sleep(self._backoff(statistics.retries))

    def _is_last(self, failure: psycopg.Error, retries: int, started: float, lock_seconds: float) -> bool:
        """Return True after the last attempt: time counts for a server that restarts, and for locks."""
        seconds = self._clock.monotonic() - started
        if isinstance(failure, _NotConnectedError):
            return seconds >= self._limits.retry_seconds
        if isinstance(failure, pg.LockNotAvailable):
            return seconds >= lock_seconds
        return retries + 1 >= _MAX_ATTEMPTS

    def end_silent_transactions(self) -> None:
        """End Siltstone's transactions on this database whose clients have been frozen for long.

        The server itself ends a transaction whose client sends nothing between two statements. It has no
        such limit while it waits for the rest of a statement or pipeline, or for a client that reads no
        results.
        """
        query, params = (
            _SERVER_SQL["end_silent_transactions"],
            {"seconds": self._limits.frozen_client_seconds},
        )
        _log_ended(self.read("database.end_silent_transactions", query, params))

    def _end_silent_transactions(self, pool: BoundedPool) -> None:
        """Do the same, and sooner, for a transaction that waits for a lock; ignore errors.

        It uses a connection of the pool of that transaction.
        """
        params = {"seconds": self._limits.silent_client_seconds}
        with suppress(psycopg.Error), _connection_of(pool) as connection:
            cursor = connection.cursor(row_factory=namedtuple_row)
            query = _SERVER_SQL["end_silent_transactions"]
            _log_ended(cursor.execute(query.sql, params).fetchall())

    def _backoff(self, retries: int) -> float:
        """Return a wait with full jitter (Brooker, "Exponential backoff and jitter")."""
        ceiling = min(MAX_BACKOFF_SECONDS, _MIN_BACKOFF_SECONDS * 2.0 ** min(retries, _MAX_DOUBLINGS))
        return self._ids.random() * ceiling

    @contextmanager
    def _counted(self, operation: str) -> Iterator[_CallStatistics]:
        statistics = _CallStatistics()
        started = self._clock.monotonic()
        failed = True
        try:
            yield statistics
            failed = False
        finally:
            self.counts.add(
                operation,
                retries=statistics.retries,
                failed=failed,
                statements=statistics.statements,
                seconds=self._clock.monotonic() - started,
            )
            for stock in self._stocks:  # an agent's heartbeats come here even if it is idle
                stock.close_idle()

    @contextmanager
    def _translated_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._translate(operation, error) from error

    def _translate(self, operation: str, error: psycopg.Error) -> SiltstoneError:
        # psycopg rejects a NUL by itself, without asking the server: such an error has no SQLSTATE.
        if isinstance(error, _UNSTORABLE) or (isinstance(error, psycopg.DataError) and not error.sqlstate):
            return UnstorableValueError(
                f"the catalog cannot store an argument of {operation}: {first_line(error)}",
                remedy="use shorter names, and text without NUL",
            )
        if isinstance(error, (psycopg.OperationalError, *_NOT_COMMITTED)):
            is_slow = isinstance(error, (pg.LockNotAvailable, pg.QueryCanceled))
            kind = CatalogTimeoutError if is_slow else CatalogUnavailableError
            return kind(
                f"the catalog at {self.address} did not respond to {operation}: {first_line(error)}",
                remedy="check that PostgreSQL and its synchronous standbys run, and are not overloaded",
                retry_after_seconds=1.0,
            )
        return FatalError(
            f"the catalog at {self.address} rejected {operation}: {error.sqlstate} {first_line(error)}",
            remedy="this is a defect of Siltstone, or something else has changed the database",
        )


def _is_retriable(error: psycopg.Error, *, idempotent: bool) -> bool:
    """Return True if nothing has happened, or if the work may run again after an unknown outcome."""
    if isinstance(error, (_NotConnectedError, pg.LockNotAvailable, *_NOT_COMMITTED)):
        return True
    return idempotent and isinstance(error, psycopg.OperationalError) and not isinstance(error, _NOT_RETRIED)


def _log_ended(rows: list[Row]) -> None:
    for row in rows:
        _log.warning("ended a transaction whose client was frozen", backend=row.pid, state=row.waits)
