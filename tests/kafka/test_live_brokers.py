"""Which agents are there: as the catalog has it, and as it had it while it does not answer."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from agent.kafka.brokers import Brokers
from agent.work_pool import WorkPool
from bedrock.clock import ManualClock
from catalog.model import Broker

if TYPE_CHECKING:
    from collections.abc import Sequence

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
            silent_ms=1,
            patience_seconds=0.01,
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
        assert brokers._looking_up is not None
        await asyncio.wait_for(brokers._looking_up, _PATIENCE_SECONDS / 2)
        assert table.asked == asked + 1
        assert await nodes() == [1, 3]

    asyncio.run(ask())
    pool.close()
