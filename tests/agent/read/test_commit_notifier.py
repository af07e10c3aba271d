"""What the listener for commits says of a catalog that is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.read.catalog_cache import BoundsCache
from agent.read.commit_notifier import CommitNotifier
from agent.runtime.health import CallHealth
from agent.runtime.retry import RetryPolicy
from catalog.errors import CatalogUnavailableError

if TYPE_CHECKING:
    from catalog.model import PartitionId
    from core.clock import Clock
    from core.ids import Ids

pytestmark = pytest.mark.anyio
_FAILURES = 9


class _Watcher:
    """Fails some times, then tells that it is there again, and has nothing to tell."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answered: asyncio.Event) -> None:
        self._loop = loop
        self._answered = answered
        self.failures = 0

    def wait(self, timeout: float, /) -> frozenset[PartitionId]:
        del timeout
        if self.failures < _FAILURES:
            self.failures += 1
            raise CatalogUnavailableError("the catalog is away")
        self._loop.call_soon_threadsafe(self._answered.set)
        return frozenset()

    def close(self) -> None:
        pass


async def test_an_outage_is_told_less_and_less_often_and_its_end_once(clock: Clock, ids: Ids) -> None:
    """The first, second, fourth and eighth failure of nine are logged: an hour takes a dozen lines."""
    answered = asyncio.Event()
    watch = CommitNotifier(
        _Watcher(asyncio.get_running_loop(), answered),
        BoundsCache(clock, ttl_ms=1, limit=1),
        health=CallHealth(clock, limit_seconds=1),
        retry=RetryPolicy(attempts=1, first_pause=0.001, max_pause=0.001, ids=ids),
    )
    with capture_logs() as log:
        watch.start()
        await answered.wait()
        await watch.stop()
    told = [(event["event"], event["failures"]) for event in log]
    failed = "waiting for notifications of commits failed"
    assert told == [*((failed, number) for number in (1, 2, 4, 8)), ("the catalog tells of commits again", 9)]
