"""Log entries of the commit notifier during an outage of the catalog."""

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


class _Notifications:
    """Notifications that fail several times and then work again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, works: asyncio.Event) -> None:
        self._loop = loop
        self._worked = works
        self.failures = 0

    def wait(self, timeout: float, /) -> frozenset[PartitionId]:
        del timeout
        if self.failures < _FAILURES:
            self.failures += 1
            raise CatalogUnavailableError("the catalog is away")
        self._loop.call_soon_threadsafe(self._worked.set)
        return frozenset()

    def close(self) -> None:
        pass


async def test_an_outage_is_logged_at_growing_intervals_and_its_end_once(clock: Clock, ids: Ids) -> None:
    """Of nine failures, the first, second, fourth and eighth are logged."""
    works = asyncio.Event()
    notifier = CommitNotifier(
        _Notifications(asyncio.get_running_loop(), works),
        BoundsCache(clock, ttl_ms=1, limit=1),
        health=CallHealth(clock, limit_seconds=1),
        retry=RetryPolicy(attempts=1, first_pause=0.001, max_pause=0.001, ids=ids),
    )
    with capture_logs() as log:
        notifier.start()
        await works.wait()
        await notifier.stop()
    logged = [(event["event"], event["failures"]) for event in log]
    failed = "waiting for notifications of commits failed"
    assert logged == [
        *((failed, number) for number in (1, 2, 4, 8)),
        ("notifications of commits work again", 9),
    ]
