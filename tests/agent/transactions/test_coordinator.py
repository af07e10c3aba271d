"""How the coordinator ends transactions that clients end at the same time."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from agent.cluster.catalog_epoch import CatalogEpoch
from agent.read.hot_tail import HotTail
from agent.runtime.metrics import AgentMetrics
from agent.runtime.work_pool import WorkPool
from agent.transactions.coordinator import TransactionCoordinator
from catalog.errors import (
    CatalogTimeoutError,
    CatalogUnavailableError,
    TransactionRefusal,
    TransactionRefusedError,
)
from catalog.transactions.repository import EndedTransaction
from catalog.transactions.rules import ProducerIdentity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from agent.transactions.coordinator import TransactionTable
    from catalog.transactions.repository import EndRequest

pytestmark = pytest.mark.anyio
_FENCED = "fenced"
_SLOW = "slow"


class Table:
    """Ends transactions once `gate` is open, and records which ones it ends together."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls: list[list[str]] = []
        self.arrivals: list[float] = []
        self.is_available = True
        self.is_slow = True
        self.lock = threading.Event()
        self.lock.set()
        self.locked: set[str] = set()

    def end_all(
        self, requests: Sequence[EndRequest], /, *, waits_briefly: bool = False
    ) -> list[EndedTransaction | TransactionRefusedError]:
        names = [each.transactional_id for each in requests]
        self.calls.append(names)
        self.arrivals += [each.arrived_at for each in requests]
        assert self.gate.wait(60)
        if names == [_SLOW]:
            assert self.lock.wait(60)
        if self.locked.intersection(names):
            assert waits_briefly or len(names) > 1, "occupies a thread for the whole lock limit"
            raise CatalogTimeoutError("a lock was not granted")
        if self.is_slow and _SLOW in names:
            raise CatalogTimeoutError("a lock was not granted")
        if not self.is_available:
            raise CatalogUnavailableError("no catalog", remedy="wait", retry_after_seconds=1)
        return [
            TransactionRefusedError(TransactionRefusal.PRODUCER_FENCED, "another producer")
            if each.transactional_id == _FENCED
            else EndedTransaction(
                ProducerIdentity(each.producer.producer_id, each.producer.producer_epoch + 1),
                leaders=frozenset({7}),
            )
            for each in requests
        ]


@asynccontextmanager
async def coordinating(
    on_pending_markers: Callable[[Collection[int]], object] = lambda _: None,
) -> AsyncIterator[tuple[TransactionCoordinator, Table]]:
    table, pool = Table(), WorkPool("commits", threads=2, max_waiting=10)
    coordinator = TransactionCoordinator(
        cast("TransactionTable", table),
        pool,
        HotTail(0),
        CatalogEpoch(),
        AgentMetrics(),
        (),
        on_pending_markers,
    )
    try:
        yield coordinator, table
    finally:
        table.gate.set()
        table.lock.set()
        await asyncio.to_thread(pool.close)


def ending(
    coordinator: TransactionCoordinator, name: str, number: int, arrived_at: float = 0.0
) -> asyncio.Task[ProducerIdentity]:
    producer = ProducerIdentity(number, 0)
    return asyncio.create_task(
        coordinator.end(name, producer, commits=True, arrived_at=arrived_at, bumps_epoch=True)
    )


async def test_transactions_that_end_meanwhile_end_together() -> None:
    """A repeated request for the same transactional id waits for the first one."""
    async with coordinating() as (coordinator, table):
        names = ["a", "b", _FENCED, "c", "b", "d"]
        tasks = [ending(coordinator, names[0], 0)]
        await asyncio.sleep(0)
        tasks += [ending(coordinator, name, number) for number, name in enumerate(names[1:], 1)]
        await asyncio.sleep(0)
        table.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[2], TransactionRefusedError)
        assert [each for each in results if isinstance(each, ProducerIdentity)] == [
            ProducerIdentity(number, 1) for number in (0, 1, 3, 4, 5)
        ]
        assert table.calls == [["a"], ["b", _FENCED, "c", "d"], ["b"]]


async def test_a_client_that_goes_delays_nobody() -> None:
    async with coordinating() as (coordinator, table):
        gone, first = ending(coordinator, "a", 1), ending(coordinator, "b", 2)
        await asyncio.sleep(0)
        second = ending(coordinator, "c", 3)
        gone.cancel()
        await asyncio.wait([gone])
        table.gate.set()
        assert [(await each).producer_id for each in (first, second)] == [2, 3]


async def test_an_end_keeps_the_time_of_its_arrival_while_it_waits() -> None:
    """Its client may end the transaction at another agent meanwhile, and begin the next one."""
    async with coordinating() as (coordinator, table):
        tasks = [ending(coordinator, "a", 1, arrived_at) for arrived_at in (3.0, 8.0)]
        await asyncio.sleep(0)
        table.gate.set()
        await asyncio.gather(*tasks)
        assert table.arrivals == [3.0, 8.0]


async def test_many_ends_of_one_transaction_delay_no_other() -> None:
    async with coordinating() as (coordinator, table):
        tasks = [ending(coordinator, "a", 1) for _ in range(50)]
        await asyncio.sleep(0)
        other = ending(coordinator, "b", 2)
        await asyncio.sleep(0)
        table.gate.set()
        assert (await other).producer_id == 2
        assert table.calls[:2] == [["a"], ["a", "b"]]
        await asyncio.gather(*tasks)


async def test_ends_that_wait_are_dropped_when_their_clients_have_gone() -> None:
    async with coordinating() as (coordinator, table):
        first = ending(coordinator, "a", 1)
        await asyncio.sleep(0)
        gone = [ending(coordinator, "b", 2) for _ in range(50)]
        await asyncio.sleep(0)
        for each in gone:
            each.cancel()
        await asyncio.wait(gone)
        table.gate.set()
        await first
        assert (await ending(coordinator, "c", 3)).producer_id == 3
        assert table.calls == [["a"], ["c"]]


async def test_a_reader_that_cannot_be_woken_delays_no_client() -> None:
    """The transactions have ended in the catalog; readers look again by themselves."""

    def fail(_: Collection[int]) -> None:
        raise RuntimeError("no notification")

    async with coordinating(fail) as (coordinator, table):
        table.gate.set()
        ended = await asyncio.gather(*(ending(coordinator, name, 1) for name in "abc"))
        assert ended == [ProducerIdentity(1, 1)] * 3


async def test_a_transaction_that_waits_for_a_lock_fails_alone() -> None:
    """From then on it ends apart from the others, until it has ended in time."""
    async with coordinating() as (coordinator, table):
        table.gate.set()

        async def end_all() -> list[object]:
            tasks = [ending(coordinator, name, 1) for name in ("a", _SLOW, "b")]
            return [*await asyncio.gather(*tasks, return_exceptions=True)]

        ended = ProducerIdentity(1, 1)
        for calls in ([["a", _SLOW, "b"], [_SLOW], ["a"], ["b"]], [["a", "b"], [_SLOW]]):
            table.calls.clear()
            first, slow, last = await end_all()
            assert (first, last) == (ended, ended)
            assert isinstance(slow, CatalogTimeoutError)
            assert sorted(table.calls) == sorted(calls)
        table.is_slow = False
        assert await end_all() == [ended] * 3
        table.calls.clear()
        assert await end_all() == [ended] * 3
        assert table.calls == [["a", _SLOW, "b"]]


async def test_many_locked_transactions_delay_others_by_brief_waits_only() -> None:
    """They were in one batch. Each would occupy one of the few threads for the whole lock limit."""
    async with coordinating() as (coordinator, table):
        table.gate.set()
        table.locked = {"x", "y", "z"}
        for _ in range(2):  # the locked ones are known the second time
            tasks = [ending(coordinator, name, 1) for name in "xyzab"]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in results] == [CatalogTimeoutError] * 3 + [ProducerIdentity] * 2
        table.locked.clear()
        ended = await asyncio.gather(*(ending(coordinator, name, 1) for name in "xyz"))
        assert ended == [ProducerIdentity(1, 1)] * 3


async def test_a_client_that_repeats_a_slow_end_holds_up_no_other() -> None:
    """It gave up the first request, which still waits for the lock: both threads would wait for it."""
    async with coordinating() as (coordinator, table):
        table.gate.set()
        table.lock.clear()
        first = [ending(coordinator, name, 1) for name in ("a", _SLOW)]
        assert await first[0] == ProducerIdentity(1, 1)
        repeated, other = (ending(coordinator, name, 1) for name in (_SLOW, "b"))
        assert await other == ProducerIdentity(1, 1)
        assert sorted(table.calls) == [["a"], ["a", _SLOW], ["b"], [_SLOW]]
        table.lock.set()
        results = await asyncio.gather(first[1], repeated, return_exceptions=True)
        assert [type(each) for each in results] == [CatalogTimeoutError] * 2


async def test_a_transaction_that_is_known_to_be_slow_holds_up_no_other() -> None:
    async with coordinating() as (coordinator, table):
        table.gate.set()
        with pytest.raises(CatalogTimeoutError):
            await ending(coordinator, _SLOW, 1)
        table.gate.clear()
        waiting = [ending(coordinator, _SLOW, 1) for _ in range(2)]
        await asyncio.sleep(0)
        other = ending(coordinator, "a", 2)
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        table.gate.set()
        assert await other == ProducerIdentity(2, 1)


async def test_an_outage_reaches_every_client_and_ends_nothing_else() -> None:
    async with coordinating() as (coordinator, table):
        table.is_available = False
        table.gate.set()
        results = await asyncio.gather(
            *(ending(coordinator, name, 1) for name in "abc"), return_exceptions=True
        )
        assert [type(each) for each in results] == [CatalogUnavailableError] * 3
        table.is_available = True
        assert await ending(coordinator, "a", 1) == ProducerIdentity(1, 1)
