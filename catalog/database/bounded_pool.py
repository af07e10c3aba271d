"""Bounded pools of connections that the threads themselves open.

A thread that needs a connection takes an idle one, waits a moment for one in use, or opens one itself. It
gets the true reason of a failure, and the first call after an outage succeeds: nothing backs off in the
background.

A pool bounds the connections of one kind of work. Several pools share one `ConnectionStock`, so that a
process has few connections as long as none of them is stuck, and yet no kind can use up those of another.

An idle connection has nothing to read. If it has, the server closed it or is about to, as it does when it
stops. Such a connection is discarded before use, at the cost of one system call.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.database.connection import CatalogConnection
    from core.clock import Clock

_MAX_AGE_SECONDS: Final = 3600.0  # so that connections spread again after a change of address
_SHORT_WAIT_SECONDS: Final = 0.01


class ConnectionsInUseError(psycopg.OperationalError):
    """All connections of a pool were in use for too long."""


class PoolClosedError(psycopg.OperationalError):
    """This process has closed the pool."""


class _Idle(NamedTuple):
    connection: CatalogConnection
    opened: float
    since: float


class _Waiter:
    """A thread that waits for an idle connection, or (`connection` stays None) for a place in its pool."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.is_granted = False
        self.connection: _Idle | None = None


class ConnectionStock:
    """The open connections of one or several pools, opened by `connect`; thread-safe.

    A thread that finds no idle connection waits for one before it opens another: 10 ms, or `stuck_seconds` if
    there are `usual_size` already. A connection that has been idle for `idle_seconds` is closed, and after
    `spare_seconds` already if there are others.
    """

    def __init__(
        self,
        connect: Callable[[], CatalogConnection],
        clock: Clock,
        *,
        usual_size: int,
        stuck_seconds: float,
        idle_seconds: float,
        spare_seconds: float,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._usual_size = usual_size
        self._stuck_seconds = stuck_seconds
        self._idle_seconds = idle_seconds
        self._spare_seconds = spare_seconds
        self._lock = threading.Lock()
        self._idle: deque[_Idle] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._opened: dict[CatalogConnection, float] = {}
        self._count = 0  # all connections: idle, lent, and being opened
        self._closed = False

    def take(self) -> CatalogConnection:
        """Return a connection; the caller gives it back."""
        idle, waiter = self._idle_or_waiter()
        if waiter is not None:
            idle = self._wait(waiter)
        if idle is None:
            return self._open()
        with self._lock:
            self._opened[idle.connection] = idle.opened
        return idle.connection

    def give_back(self, connection: CatalogConnection) -> None:
        """Take a connection back; a broken one, or one inside a transaction, is closed."""
        now = self._clock.monotonic()
        dropped: list[CatalogConnection] = []
        with self._lock:
            opened = self._opened.pop(connection)
            keep = (
                not self._closed
                and now - opened < _MAX_AGE_SECONDS
                and connection.pgconn.transaction_status == TransactionStatus.IDLE
            )
            if not keep:
                dropped.append(connection)
            elif self._waiters:
                self._grant(_Idle(connection, opened, now))
            else:
                self._idle.append(_Idle(connection, opened, now))
            self._remove(len(dropped))
        _close_all(dropped)
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that have been idle for long."""
        now = self._clock.monotonic()
        dropped: list[CatalogConnection] = []
        with self._lock:
            while self._idle:
                limit = self._idle_seconds if self._count == 1 else self._spare_seconds
                if now - self._idle[0].since <= limit:
                    break
                dropped.append(self._idle.popleft().connection)
                self._remove(1)
        _close_all(dropped)

    def discard_idle(self) -> None:
        """Close all idle connections, because their server no longer is what it was."""
        with self._lock:
            discarded = [each.connection for each in self._idle]
            self._idle.clear()
            self._remove(len(discarded))
        _close_all(discarded)

    def close(self) -> None:
        """Close all idle connections now, and the others when they are given back."""
        with self._lock:
            self._closed = True
            self._let_open(len(self._waiters))  # which fails, because the stock is closed
        self.discard_idle()

    def _idle_or_waiter(self) -> tuple[_Idle | None, _Waiter | None]:
        """Return the newest usable connection, or a new waiter, or nothing: the caller opens the first."""
        unusable: list[CatalogConnection] = []
        try:
            with self._lock:
                while self._idle:
                    idle = self._idle.pop()
                    if _is_usable(idle.connection):
                        return idle, None
                    unusable.append(idle.connection)
                    self._remove(1)
                if not self._count:
                    self._count += 1
                    return None, None
                waiter = _Waiter()
                self._waiters.append(waiter)
                return None, waiter
        finally:
            _close_all(unusable)

    def _wait(self, waiter: _Waiter) -> _Idle | None:
        """Return the connection that the waiter was granted; None if it must open one, which is counted."""
        try:
            waiter.event.wait(_SHORT_WAIT_SECONDS)
            if not self._may_open(waiter, self._usual_size):
                waiter.event.wait(self._stuck_seconds)
                self._may_open(waiter)
        except BaseException:  # a signal's handler has raised: no other thread gets what was granted
            with self._lock:
                if waiter.is_granted:
                    self._remove(1)
                else:
                    self._waiters.remove(waiter)
            if waiter.connection is not None:
                _close_all([waiter.connection.connection])
            raise
        return waiter.connection

    def _may_open(self, waiter: _Waiter, max_count: int | None = None) -> bool:
        """Let a waiter open one of at most `max_count` connections; return False if it must wait longer.

        The result is True, too, if it was granted a connection.
        """
        with self._lock:
            if waiter.is_granted:
                return True
            if max_count is not None and self._count >= max_count:
                return False
            self._waiters.remove(waiter)
            waiter.is_granted = True
            self._count += 1
            return True

    def _grant(self, idle: _Idle) -> None:
        waiter = self._waiters.popleft()
        waiter.connection = idle
        waiter.is_granted = True
        waiter.event.set()

    def _remove(self, count: int) -> None:
        """Count connections that are gone; threads that waited for them open others. With the lock."""
        self._count -= count
        self._let_open(min(len(self._waiters), self._usual_size - self._count) if count else 0)

    def _let_open(self, count: int) -> None:
        """Let the first waiters open a connection each. With the lock."""
        for _ in range(count):
            waiter = self._waiters.popleft()
            waiter.is_granted = True
            self._count += 1
            waiter.event.set()

    def _open(self) -> CatalogConnection:
        """Open a connection, which is counted already."""
        try:
            connection = self._connect_unless_closed()
        except BaseException:
            with self._lock:
                self._remove(1)
            raise
        with self._lock:
            self._opened[connection] = self._clock.monotonic()
        return connection

    def _connect_unless_closed(self) -> CatalogConnection:
        if self._closed:
            raise _closed_error()
        return self._connect()


class BoundedPool:
    """Up to `max_size` connections of a stock for one kind of work; thread-safe.

    Threads that wait for a place get it in their order. After `wait_seconds` they get ConnectionsInUseError,
    and PoolClosedError once the pool is closed.
    """

    def __init__(self, name: str, stock: ConnectionStock, *, max_size: int, wait_seconds: float) -> None:
        self._name = name
        self._stock = stock
        self._max_size = max_size
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._waiters: deque[_Waiter] = deque()
        self._places = max_size
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[CatalogConnection]:
        """Lend a connection; a broken one, or one inside a transaction, is closed afterwards."""
        self._take_place()
        try:
            connection = self._stock.take()
            try:
                yield connection
            finally:
                self._stock.give_back(connection)
        finally:
            self._free_place()

    def discard_idle(self) -> None:
        """Close all idle connections, because their server no longer is what it was."""
        self._stock.discard_idle()

    def close(self) -> None:
        """Close all idle connections now, and the others when they are given back; end all waiting."""
        with self._lock:
            self._closed = True
            for waiter in self._waiters:
                waiter.event.set()
        self._stock.close()

    def _take_place(self) -> None:
        with self._lock:
            if self._closed:
                raise _closed_error()
            if self._places:
                self._places -= 1
                return
            waiter = _Waiter()
            self._waiters.append(waiter)
        try:
            waiter.event.wait(self._wait_seconds)
        except BaseException:  # a signal's handler has raised
            if not self._withdraw(waiter):
                self._free_place()
            raise
        if self._withdraw(waiter):
            if self._closed:
                raise _closed_error()
            raise ConnectionsInUseError(
                f"all connections for {self._name} ({self._max_size}) were in use for "
                f"{self._wait_seconds:g} s"
            )

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Remove a waiter; return False if it was granted a place."""
        with self._lock:
            if waiter.is_granted:
                return False
            self._waiters.remove(waiter)
            return True

    def _free_place(self) -> None:
        with self._lock:
            if self._waiters:
                waiter = self._waiters.popleft()
                waiter.is_granted = True
                waiter.event.set()
            else:
                self._places += 1


def _close_all(connections: list[CatalogConnection]) -> None:
    for each in connections:
        with suppress(psycopg.Error, OSError):
            each.close()


def _closed_error() -> PoolClosedError:
    return PoolClosedError("this process has closed the catalog")


def _is_usable(connection: CatalogConnection) -> bool:
    """Return True unless the connection is closed or its server has sent something.

    A server sends something to an idle connection only to end it, or if a reported parameter changed, such
    as default_transaction_read_only on a server that was demoted.
    """
    if connection.pgconn.status != ConnStatus.OK:
        return False
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return not poll.poll(0)
