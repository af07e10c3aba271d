"""Log entries of the commit notifier during an outage of the catalog."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.read.catalog_cache import BoundsCache
from agent.read.commit_notifier import CommitNotifier
from catalog.errors import CatalogUnavailableError
from core.outage import Outage

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


async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(clock: Clock, ids: Ids) -> None:
    works = asyncio.Event()
    notifier = CommitNotifier(
        _Notifications(asyncio.get_running_loop(), works),
        BoundsCache(clock, ttl_ms=1, limit=1),
        outage=Outage("notifications", clock=clock, ids=ids, first_pause_seconds=0, max_pause_seconds=0),
    )
    with capture_logs() as log:
        notifier.start()
        await works.wait()
        await notifier.stop()
    assert [(event["event"], event.get("failures")) for event in log] == [
        ("outage: notifications", None),
        ("outage ended: notifications", _FAILURES),
    ]
