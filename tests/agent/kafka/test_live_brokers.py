"""Which agents are there: as the catalog has it, and as it had it while it does not answer."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from agent.cluster.brokers import Brokers
from agent.runtime.work_pool import WorkPool
from catalog.errors import CatalogUnavailableError
from catalog.model import Broker
from core.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

_PATIENCE_SECONDS = 120.0  # of the test: without an answer it fails


class _Table:
    """The catalog's brokers, which answers when it may."""

    def __init__(self) -> None:
        self.brokers: Sequence[Broker] = ()
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def live(self, silent_ms: int) -> Sequence[Broker]:
        del silent_ms
        self.asked += 1
        assert self.may_answer.wait(_PATIENCE_SECONDS)
        return self.brokers


@dataclass
class _Liveness:
    """What the session would say."""

    heartbeat_sent_at: float = 0.0
    lapses: int = 0
    is_overdue: bool = False


def _broker(node_id: int) -> Broker:
    return Broker(node_id=node_id, host="localhost", port=node_id, rack=None, has_local_logs=False)


def test_a_catalog_that_hangs_keeps_nobody_waiting() -> None:
    """What was known is told meanwhile, one look-up is under way for all, and its answer counts at last."""
    table, clock = _Table(), ManualClock()
    pool = WorkPool("catalog", threads=1, max_waiting=1)

    async def ask() -> None:
        brokers = Brokers(
            cast("Any", table),
            _broker(1),
            cluster_id=UUID(int=1),
            pool=pool,
            clock=clock,
            liveness=_Liveness(),
            silent_ms=1,
            lookup_timeout_seconds=0.01,
        )

        async def nodes() -> list[int]:
            live = await asyncio.wait_for(brokers.live(), _PATIENCE_SECONDS / 2)
            return [broker.node_id for broker in live]

        table.brokers = [_broker(2)]
        assert await nodes() == [1, 2]
        clock.advance(1)
        asked = table.asked
        table.may_answer.clear()
        table.brokers = [_broker(3)]
        assert await asyncio.gather(*(nodes() for _ in range(5))) == [[1, 2]] * 5
        assert await nodes() == [1, 2]
        table.may_answer.set()
        assert brokers._lookup is not None
        await asyncio.wait_for(brokers._lookup, _PATIENCE_SECONDS / 2)
        assert table.asked == asked + 1
        assert await nodes() == [1, 3]

    asyncio.run(ask())
    pool.close()


_GROUPS = [f"group-{number}" for number in range(20)]


def _told(story: Callable[[_Table, _Liveness, Brokers, ManualClock], Awaitable[None]]) -> None:
    """Run a story about broker 1."""
    table, liveness, clock = _Table(), _Liveness(), ManualClock()
    pool = WorkPool("catalog", threads=1, max_waiting=1)

    async def run() -> None:
        brokers = Brokers(
            cast("Any", table),
            _broker(1),
            cluster_id=UUID(int=1),
            pool=pool,
            clock=clock,
            liveness=liveness,
            silent_ms=1,
        )
        await story(table, liveness, brokers, clock)

    asyncio.run(run())
    pool.close()


def test_who_is_taken_for_dead_coordinates_nothing() -> None:
    """The others have its groups then, in its own eyes too; it begins a term, once for each heartbeat."""

    async def story(table: _Table, liveness: _Liveness, brokers: Brokers, clock: ManualClock) -> None:
        async def own() -> set[bool]:
            clock.advance(1)
            return {(await brokers.coordinator(each)).node_id == 1 for each in _GROUPS}

        table.brokers = [_broker(1), _broker(2)]
        assert await own() == {True, False}
        term = brokers.term()
        table.brokers = [_broker(2)]
        assert await own() == {False}
        assert await own() == {False}
        assert brokers.term() == term + 1
        table.brokers = [_broker(1), _broker(2)]
        liveness.heartbeat_sent_at, liveness.lapses = 5.0, 1
        assert await own() == {True, False}
        assert brokers.term() == term + 2
        table.brokers = []
        assert await own() == {True}  # somebody must
        assert brokers.term() == term + 3

    _told(story)


def test_whose_heartbeats_do_not_arrive_takes_itself_for_dead_if_there_are_others() -> None:
    """Alone with what it knows, an agent goes on while the catalog is silent, and no longer."""

    async def story(table: _Table, liveness: _Liveness, brokers: Brokers, clock: ManualClock) -> None:
        def fails(silent_ms: int) -> list[Broker]:
            del silent_ms
            raise CatalogUnavailableError("no catalog", remedy="wait")

        table.brokers = [_broker(1)]
        await brokers.live()
        term, answers = brokers.term(), table.live
        table.live = fails  # type: ignore[method-assign]  # the catalog is gone
        liveness.is_overdue = True
        clock.advance(1)
        assert (await brokers.coordinator("g")).node_id == 1
        assert brokers.term() == term
        table.live, table.brokers = answers, [_broker(1), _broker(2)]  # type: ignore[method-assign]  # and here
        clock.advance(1)
        assert {(await brokers.coordinator(each)).node_id for each in _GROUPS} == {2}
        assert brokers.term() == term + 1
        liveness.is_overdue, liveness.heartbeat_sent_at = False, 9.0
        assert {(await brokers.coordinator(each)).node_id for each in _GROUPS} == {1, 2}
        table.live = fails  # type: ignore[method-assign]  # gone again
        liveness.is_overdue = True
        assert brokers.term() == term + 2

    _told(story)
