"""Live agents: as the catalog lists them, or as last known while the catalog is unavailable."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from agent.cluster import brokers as brokers_module
from agent.cluster.brokers import Brokers, choose
from agent.runtime.work_pool import WorkPool
from catalog.errors import CatalogUnavailableError
from catalog.model import Broker
from core.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pytest

_TIMEOUT_SECONDS = 120.0  # without a response, the test fails


class _Table:
    """The catalog's brokers. `live` blocks while `may_respond` is clear."""

    def __init__(self) -> None:
        self.brokers: Sequence[Broker] = ()
        self.calls = 0
        self.may_respond = threading.Event()
        self.may_respond.set()

    def live(self, silent_ms: int) -> Sequence[Broker]:
        del silent_ms
        self.calls += 1
        assert self.may_respond.wait(_TIMEOUT_SECONDS)
        return self.brokers


@dataclass
class _Liveness:
    """A session's liveness."""

    heartbeat_sent_at: float = 0.0
    lapses: int = 0
    is_overdue: bool = False


def test_a_group_costs_hashes_only_when_other_brokers_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator is the one that the rule chooses, with its current address."""
    table, clock, liveness = _Table(), ManualClock(), _Liveness()
    pool = WorkPool("catalog", threads=1, max_waiting=1)
    groups = [*(f"g-{number}" for number in range(100)), "long" * 100]
    hashes, score = [0], brokers_module._score

    def count(subject: bytes, broker: Broker) -> bytes:
        hashes[0] += 1
        return score(subject, broker)

    async def check(brokers: Brokers) -> int:
        """Compare the coordinators with the rule; return the number of hashes."""
        clock.advance(1)
        live = await brokers.live()
        if liveness.is_overdue:
            live = tuple(each for each in live if each != brokers.own)
        expected = [choose(live, b"group:" + group.encode()) for group in groups]
        hashes[0] = 0
        with monkeypatch.context() as counted:
            counted.setattr(brokers_module, "_score", count)
            assert [await brokers.coordinator(group) for group in groups] == expected
        return hashes[0]

    async def scenario() -> None:
        brokers = Brokers(
            cast("Any", table),
            _broker(1),
            cluster_id=UUID(int=1),
            pool=pool,
            clock=clock,
            liveness=liveness,
            silent_ms=1,
        )
        table.brokers = [_broker(number) for number in range(1, 51)]
        assert await check(brokers) == 101 * 50
        assert await check(brokers) == 50  # an id that is too long for the cache
        table.brokers = [replace(each, host="elsewhere") for each in table.brokers]
        assert await check(brokers) == 50
        table.brokers = table.brokers[:-1]
        assert await check(brokers) == 101 * 49
        liveness.is_overdue = True
        assert await check(brokers) == 101 * 48
        liveness.is_overdue = False
        assert await check(brokers) == 49
        monkeypatch.setattr(brokers_module, "_MAX_CACHED_GROUPS", 10)
        table.brokers = table.brokers[:-1]
        assert await check(brokers) == 101 * 48
        assert len(brokers._coordinators._chosen) == 10

    asyncio.run(scenario())
    pool.close()


def _broker(node_id: int) -> Broker:
    return Broker(node_id=node_id, host="localhost", port=node_id, rack=None, has_local_logs=False)


def test_a_hanging_catalog_delays_no_request() -> None:
    """Requests get the last known brokers, share one lookup, and get its result once it is there."""
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
            live = await asyncio.wait_for(brokers.live(), _TIMEOUT_SECONDS / 2)
            return [broker.node_id for broker in live]

        table.brokers = [_broker(2)]
        assert await nodes() == [1, 2]
        clock.advance(1)
        calls = table.calls
        table.may_respond.clear()
        table.brokers = [_broker(3)]
        assert await asyncio.gather(*(nodes() for _ in range(5))) == [[1, 2]] * 5
        assert await nodes() == [1, 2]
        table.may_respond.set()
        assert brokers._lookup is not None
        await asyncio.wait_for(brokers._lookup, _TIMEOUT_SECONDS / 2)
        assert table.calls == calls + 1
        assert await nodes() == [1, 3]

    asyncio.run(ask())
    pool.close()


_GROUPS = [f"group-{number}" for number in range(20)]


def _run(scenario: Callable[[_Table, _Liveness, Brokers, ManualClock], Awaitable[None]]) -> None:
    """Run a scenario with broker 1 as this agent."""
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
        await scenario(table, liveness, brokers, clock)

    asyncio.run(run())
    pool.close()


def test_an_expired_agent_coordinates_no_group() -> None:
    """Other agents have its groups then, as it sees itself. Each change starts a new term."""

    async def scenario(table: _Table, liveness: _Liveness, brokers: Brokers, clock: ManualClock) -> None:
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
        assert await own() == {True}  # one agent must
        assert brokers.term() == term + 3

    _run(scenario)


def test_an_agent_with_overdue_heartbeats_expires_itself_if_there_are_others() -> None:
    """An agent that knows no other continues while the catalog is unavailable."""

    async def scenario(table: _Table, liveness: _Liveness, brokers: Brokers, clock: ManualClock) -> None:
        def fails(silent_ms: int) -> list[Broker]:
            del silent_ms
            raise CatalogUnavailableError("no catalog", remedy="wait")

        table.brokers = [_broker(1)]
        await brokers.live()
        term, live = brokers.term(), table.live
        table.live = fails  # type: ignore[method-assign]  # the catalog is gone
        liveness.is_overdue = True
        clock.advance(1)
        assert (await brokers.coordinator("g")).node_id == 1
        assert brokers.term() == term
        table.live, table.brokers = live, [_broker(1), _broker(2)]  # type: ignore[method-assign]  # and here
        clock.advance(1)
        assert {(await brokers.coordinator(each)).node_id for each in _GROUPS} == {2}
        assert brokers.term() == term + 1
        liveness.is_overdue, liveness.heartbeat_sent_at = False, 9.0
        assert {(await brokers.coordinator(each)).node_id for each in _GROUPS} == {1, 2}
        table.live = fails  # type: ignore[method-assign]  # gone again
        liveness.is_overdue = True
        assert brokers.term() == term + 2

    _run(scenario)
