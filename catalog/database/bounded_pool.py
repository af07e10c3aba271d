"""Bounded pool of connections that the threads themselves open.

A thread that finds no idle connection opens one itself, unless all are in use. It gets the true reason of a
failure, and the first call after an outage succeeds: nothing backs off in the background.

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

_MAX_IDLE_SECONDS: Final = 600.0
_MAX_AGE_SECONDS: Final = 3600.0  # so that connections spread again after a change of address


class ConnectionsInUseError(psycopg.OperationalError):
    """All connections of a pool were in use for too long."""


class PoolClosedError(psycopg.OperationalError):
    """This process has closed the pool."""


class _Idle(NamedTuple):
    connection: CatalogConnection
    opened: float
    since: float


class _Waiter:
    """A thread that waits for a connection, or for the permission to open one (`connection` is None then)."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.is_granted = False
        self.connection: _Idle | None = None


class BoundedPool:
    """Up to `max_size` connections, opened by `connect`; thread-safe.

    Threads that wait get connections in their order. After `wait_seconds` they get ConnectionsInUseError, and
    PoolClosedError once the pool is closed.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], CatalogConnection],
        clock: Clock,
        *,
        max_size: int,
        wait_seconds: float,
    ) -> None:
        self._name = name
        self._connect = connect
        self._clock = clock
        self._max_size = max_size
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._idle: deque[_Idle] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._opened: dict[CatalogConnection, float] = {}
        self._places = max_size
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[CatalogConnection]:
        """Lend a connection; a broken one, or one inside a transaction, is closed afterwards."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def discard_idle(self) -> None:
        """Close all idle connections, because their server no longer is what it was."""
        with self._lock:
            discarded = list(self._idle)
            self._idle.clear()
            self._places += len(discarded)
        for each in discarded:
            self._close_connection(each.connection)

    def close(self) -> None:
        """Close all idle connections now, and the others when they are given back; end all waiting."""
        with self._lock:
            self._closed = True
            for waiter in self._waiters:
                waiter.event.set()
        self.discard_idle()

    def _take(self) -> CatalogConnection:
        idle, waiter = self._idle_or_place()
        if waiter is not None:
            idle = self._wait(waiter)
        if idle is None:
            return self._open()
        with self._lock:
            self._opened[idle.connection] = idle.opened
        return idle.connection

    def _idle_or_place(self) -> tuple[_Idle | None, _Waiter | None]:
        """Return the newest usable connection, or nothing with a place taken, or else a new waiter."""
        unusable: list[CatalogConnection] = []
        try:
            with self._lock:
                if self._closed:
                    raise _closed_error()
                while self._idle:
                    idle = self._idle.pop()
                    if _is_usable(idle.connection):
                        return idle, None
                    unusable.append(idle.connection)
                    self._places += 1
                if self._places:
                    self._places -= 1
                    return None, None
                waiter = _Waiter()
                self._waiters.append(waiter)
                return None, waiter
        finally:
            for each in unusable:
                self._close_connection(each)

    def _wait(self, waiter: _Waiter) -> _Idle | None:
        """Return the connection that the waiter was granted; None if it must open one."""
        try:
            waiter.event.wait(self._wait_seconds)
        except BaseException:  # a signal's handler has raised: no other thread gets what was granted
            if not self._withdraw(waiter):
                self._return_grant(waiter)
            raise
        if self._withdraw(waiter):
            if self._closed:
                raise _closed_error()
            raise ConnectionsInUseError(
                f"all {self._max_size} connections for {self._name} were in use for {self._wait_seconds:g} s"
            )
        return waiter.connection

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Remove a waiter; return False if it was granted something."""
        with self._lock:
            if waiter.is_granted:
                return False
            self._waiters.remove(waiter)
            return True

    def _return_grant(self, waiter: _Waiter) -> None:
        if waiter.connection is not None:
            self._close_connection(waiter.connection.connection)
        self._free_place()

    def _open(self) -> CatalogConnection:
        """Open a connection at the place that was taken."""
        if self._closed:
            self._free_place()
            raise _closed_error()
        try:
            connection = self._connect()
        except BaseException:
            self._free_place()
            raise
        with self._lock:
            self._opened[connection] = self._clock.monotonic()
        return connection

    def _give_back(self, connection: CatalogConnection) -> None:
        now = self._clock.monotonic()
        with self._lock:
            opened = self._opened.pop(connection)
            keep = (
                not self._closed
                and now - opened < _MAX_AGE_SECONDS
                and connection.pgconn.transaction_status == TransactionStatus.IDLE
            )
            if keep and self._waiters:
                self._grant(_Idle(connection, opened, now))
            elif keep:
                self._idle.append(_Idle(connection, opened, now))
            old = (
                self._idle.popleft() if self._idle and now - self._idle[0].since > _MAX_IDLE_SECONDS else None
            )
        if not keep:
            self._close_connection(connection)
            self._free_place()
        if old is not None:
            self._close_connection(old.connection)
            self._free_place()

    def _free_place(self) -> None:
        with self._lock:
            if self._waiters:
                self._grant(None)
            else:
                self._places += 1

    def _grant(self, idle: _Idle | None) -> None:
        waiter = self._waiters.popleft()
        waiter.connection = idle
        waiter.is_granted = True
        waiter.event.set()

    @staticmethod
    def _close_connection(connection: CatalogConnection) -> None:
        with suppress(psycopg.Error, OSError):
            connection.close()


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
