"""The rate of moves between log directories."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from agent.local_topics.moves.move_throttle import MoveThrottle
from catalog.config.broker_definitions import MOVE_RATE
from core.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.runtime.work_pool import WorkPool
    from catalog.config.repository import BrokerConfigs


class _Config:
    def __init__(self, rate: str | None) -> None:
        self._rate = rate

    def is_default(self, name: str) -> bool:
        assert name == MOVE_RATE
        return self._rate is None

    def value(self, name: str) -> str | None:
        assert name == MOVE_RATE
        return self._rate


class _Configs:
    rate: str | None = None

    def find(self, names: Sequence[str]) -> dict[str, _Config]:
        return {name: _Config(self.rate) for name in names}


class _Pool:
    async def run(self, call: Callable[[], object]) -> object:
        return call()


def test_a_move_does_not_wait_at_a_rate_that_was_raised_while_no_move_waited() -> None:
    """The bytes of a move that was cancelled count at the new rate."""

    async def run() -> None:
        clock, configs = ManualClock(0), _Configs()
        throttle = MoveThrottle(
            cast("BrokerConfigs", configs), 1, pool=cast("WorkPool", _Pool()), clock=clock
        )
        configs.rate = "1"
        cancelled = asyncio.Event()
        cancelled.set()
        await throttle.take(1 << 20, cancelled)
        configs.rate = None
        clock.advance(3_000)
        await asyncio.wait_for(throttle.take(1 << 20, asyncio.Event()), 5)

    asyncio.run(run())
