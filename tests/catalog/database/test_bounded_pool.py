"""The pool of connections: its bound, the order of waiting threads, and what it closes."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.database.bounded_pool import (
    BoundedPool,
    ConnectionsInUseError,
    ConnectionStock,
    PoolClosedError,
)
from catalog.database.connection import connect
from core.clock import ManualClock

if TYPE_CHECKING:
    from catalog.database.connection import CatalogConnection

_HOUR = 3600
_IDLE_SECONDS = 600
_SPARE_SECONDS = 60


class _Pools:
    """Pools of a test, and the connections that they opened."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.clock = ManualClock()
        self.opened: list[CatalogConnection] = []
        self.fail = False

    def new(self, max_size: int, wait_seconds: float = 240) -> BoundedPool:
        return BoundedPool("tests", self.stock(), max_size=max_size, wait_seconds=wait_seconds)

    def stock(self, usual_size: int = 1, stuck_seconds: float = 0.02) -> ConnectionStock:
        return ConnectionStock(
            self._open,
            self.clock,
            usual_size=usual_size,
            stuck_seconds=stuck_seconds,
            idle_seconds=_IDLE_SECONDS,
            spare_seconds=_SPARE_SECONDS,
        )

    def _open(self) -> CatalogConnection:
        if self.fail:
            raise psycopg.OperationalError("refused")
        self.opened.append(connect(self._url, 60))
        return self.opened[-1]


@pytest.fixture
def pools(catalog_url: str) -> _Pools:
    return _Pools(catalog_url)


def test_a_connection_is_used_again(pools: _Pools) -> None:
    pool = pools.new(2)
    for _ in range(3):
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert len(pools.opened) == 1
    pool.close()
    assert pools.opened[0].closed


def test_a_full_pool_says_that_its_connections_are_in_use(pools: _Pools) -> None:
    pool = pools.new(2, wait_seconds=0)
    with (
        pool.connection(),
        pool.connection(),
        pytest.raises(ConnectionsInUseError, match=r"all connections for tests \(2\)"),
        pool.connection(),
    ):
        pass
    with pool.connection(), pool.connection():
        assert len(pools.opened) == 2
    pool.close()


def test_waiting_threads_get_connections_in_their_order(pools: _Pools) -> None:
    pool = pools.new(1)
    served: list[int] = []

    def work(number: int) -> None:
        with pool.connection():
            served.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    with pool.connection():
        for waiting, thread in enumerate(threads):
            thread.start()
            while len(pool._waiters) <= waiting:
                pass
    for thread in threads:
        thread.join()
    assert served == list(range(5))
    assert len(pools.opened) == 1
    pool.close()


def test_a_waiting_thread_opens_a_connection_in_place_of_a_broken_one(pools: _Pools) -> None:
    pool = pools.new(1)
    waiting = threading.Thread(target=lambda: ExitStack().enter_context(pool.connection()))
    with pool.connection() as connection:
        waiting.start()
        while not pool._waiters:
            pass
        connection.close()
    waiting.join()
    assert len(pools.opened) == 2
    pool.close()


def test_a_failure_to_connect_leaves_no_place_taken(pools: _Pools) -> None:
    pool = pools.new(1, wait_seconds=0)
    pools.fail = True
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError, match="refused"), pool.connection():
            pass
    pools.fail = False
    with pool.connection() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    pool.close()


def test_a_connection_inside_a_transaction_is_not_used_again(pools: _Pools) -> None:
    pool = pools.new(1)
    with pool.connection() as connection:
        connection.execute("BEGIN")
    assert connection.closed
    with pool.connection() as another:
        assert another is not connection
    pool.close()


def test_connections_that_are_old_or_idle_for_long_are_closed(pools: _Pools) -> None:
    pool = pools.new(2)
    with pool.connection(), pool.connection():
        pass
    pools.clock.advance(_HOUR / 2)
    with pool.connection():
        pass
    assert sum(not each.closed for each in pools.opened) == 1  # the other one was idle
    pools.clock.advance(_HOUR / 2)
    with pool.connection():
        pass
    assert all(each.closed for each in pools.opened)
    pool.close()


def test_the_last_connection_stays_open_for_longer_than_the_others(pools: _Pools) -> None:
    stock = pools.stock(usual_size=3)
    pool = BoundedPool("tests", stock, max_size=3, wait_seconds=240)

    def count_open() -> int:
        return sum(not each.closed for each in pools.opened)

    with pool.connection(), pool.connection(), pool.connection():
        pools.clock.advance(_IDLE_SECONDS + 1)
        stock.close_idle()
        assert count_open() == 3  # none is idle
    pools.clock.advance(_SPARE_SECONDS)
    stock.close_idle()
    assert count_open() == 3
    pools.clock.advance(1)
    stock.close_idle()
    assert count_open() == 1
    pools.clock.advance(_IDLE_SECONDS - _SPARE_SECONDS - 1)
    stock.close_idle()
    assert count_open() == 1
    pools.clock.advance(1)
    stock.close_idle()
    assert count_open() == 0
    pool.close()


def test_a_closed_pool_closes_a_connection_that_is_given_back(pools: _Pools) -> None:
    pool = pools.new(1)
    with pool.connection():
        pool.close()
        assert [each.closed for each in pools.opened] == [False]
    assert [each.closed for each in pools.opened] == [True]
    with pytest.raises(psycopg.OperationalError, match="has closed the catalog"), pool.connection():
        pass


def test_a_closed_pool_ends_all_waiting_and_opens_nothing(pools: _Pools) -> None:
    pool = pools.new(1)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            with pool.connection():
                pass
        except PoolClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    with pool.connection():
        thread.start()
        while not pool._waiters:
            pass
        pool.close()
        thread.join()
    assert len(errors) == 1
    assert [each.closed for each in pools.opened] == [True]


@pytest.mark.parametrize("is_granted", [False, True])
def test_an_interrupted_wait_leaves_no_place_taken(
    pools: _Pools, monkeypatch: pytest.MonkeyPatch, *, is_granted: bool
) -> None:
    """The handler of a signal may raise at any moment, also just after a connection was granted."""
    pool = pools.new(1)
    with ExitStack() as lent:
        lent.enter_context(pool.connection())

        def interrupt(_event: threading.Event, _seconds: float) -> bool:
            if is_granted:
                lent.close()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(threading.Event, "wait", interrupt)
            with pytest.raises(KeyboardInterrupt), pool.connection():
                pass
    with pool.connection() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    pool.close()


def _in_thread(pool: BoundedPool, until: threading.Event) -> threading.Thread:
    """Hold a connection of `pool` in another thread until an event; return the thread once it has one."""
    held = threading.Event()

    def hold() -> None:
        with pool.connection():
            held.set()
            until.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    return thread


def test_pools_that_share_a_stock_use_one_connection_in_turns(pools: _Pools) -> None:
    stock = pools.stock(usual_size=3)
    kinds = [BoundedPool(name, stock, max_size=2, wait_seconds=240) for name in ("a", "b", "c")]
    for pool in kinds:
        with pool.connection():
            pass
    assert len(pools.opened) == 1
    for pool in kinds:
        pool.close()


def test_a_thread_gets_the_connection_that_another_pool_gives_back(pools: _Pools) -> None:
    stock = pools.stock(usual_size=1)
    one, other = (BoundedPool(name, stock, max_size=2, wait_seconds=240) for name in ("a", "b"))
    with ExitStack() as lent:
        lent.enter_context(one.connection())
        lent.enter_context(other.connection())  # the other one is stuck
        release = threading.Event()
        waiting = threading.Thread(target=lambda: _in_thread(other, release).join())
        waiting.start()
        while not stock._waiters:
            pass
        lent.close()
        release.set()
        waiting.join()
    assert len(pools.opened) == 2
    one.close()


def test_stuck_connections_of_one_pool_leave_those_of_another(pools: _Pools) -> None:
    stock = pools.stock(usual_size=2)
    stuck, other = (BoundedPool(name, stock, max_size=3, wait_seconds=240) for name in ("a", "b"))
    release = threading.Event()
    threads = [_in_thread(stuck, release) for _ in range(3)]
    with other.connection() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert len(pools.opened) == 4
    release.set()
    for each in threads:
        each.join()
    pools.clock.advance(_IDLE_SECONDS + 1)
    with other.connection():
        pass
    assert sum(not each.closed for each in pools.opened) == 1
    stuck.close()


@pytest.mark.parametrize("is_stopping", [False, True], ids=["broken", "closed"])
def test_a_thread_that_waits_for_a_usual_connection_is_woken_when_it_is_gone(
    pools: _Pools, *, is_stopping: bool
) -> None:
    """It opens another one, or learns that the stock is closed; it does not wait for `stuck_seconds`."""
    stock = pools.stock(usual_size=1, stuck_seconds=240)
    one, other = (BoundedPool(name, stock, max_size=1, wait_seconds=240) for name in ("a", "b"))
    outcomes: list[object] = []

    def use() -> None:
        try:
            with other.connection() as connection:
                outcomes.append(connection.execute("SELECT 1").fetchone())
        except PoolClosedError:
            outcomes.append("closed")

    thread = threading.Thread(target=use)
    with one.connection() as connection:
        thread.start()
        while not stock._waiters:
            pass
        thread.join(0.1)  # beyond the short wait
        if is_stopping:
            stock.close()
        else:
            connection.close()
    thread.join(60)
    assert outcomes == ["closed" if is_stopping else (1,)]
    one.close()
