"""The commit notifier: whom it wakes, which partitions it wants, and its log entries during an outage."""

from __future__ import annotations

import asyncio
import queue
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from agent.read.caches.catalog_cache import BoundsCache
from agent.read.commit_notifier import CommitNotifier
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from core.outage import Outage

if TYPE_CHECKING:
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

    def wait(self, timeout: float, wanted: frozenset[PartitionId] | None, /) -> frozenset[PartitionId]:
        del timeout, wanted
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


class _Script:
    """Notifications that return what the test gives them, and record which partitions were wanted."""

    def __init__(self) -> None:
        self.changes: queue.SimpleQueue[frozenset[PartitionId] | None] = queue.SimpleQueue()
        self.wanted: list[frozenset[PartitionId] | None] = []

    def wait(self, timeout: float, wanted: frozenset[PartitionId] | None, /) -> frozenset[PartitionId] | None:
        del timeout
        self.wanted.append(wanted)
        try:
            return self.changes.get(timeout=0.001)
        except queue.Empty:
            return frozenset()

    def close(self) -> None:
        pass

    async def until_wanted(self, *partitions: PartitionId) -> None:
        while not self.wanted or self.wanted[-1] != frozenset(partitions):  # noqa: ASYNC110  # a thread appends
            await asyncio.sleep(0.001)

    async def until_all_are_wanted(self) -> None:
        while not self.wanted or self.wanted[-1] is not None:  # noqa: ASYNC110  # a thread appends
            await asyncio.sleep(0.001)


async def test_changed_partitions_wake_the_fetches_that_wait_for_them(clock: Clock, ids: Ids) -> None:
    script = _Script()
    notifier = CommitNotifier(
        script,
        BoundsCache(clock, ttl_ms=1, limit=1),
        outage=Outage("notifications", clock=clock, ids=ids),
        keep_seconds=0.05,
    )
    notifier.start()
    await script.until_wanted()
    one, other = PartitionId(UUID(int=0), 1), PartitionId(UUID(int=0), 2)
    with notifier.waiter([one]) as first, notifier.waiter([other]) as second:
        await script.until_wanted(one, other)
        script.changes.put(frozenset({one}))
        assert await first.wait(240)
        assert not await second.wait(0)
        script.changes.put(frozenset({other}))
        assert await second.wait(240)
        assert not await first.wait(0)
        script.changes.put(None)
        assert await first.wait(240)
        assert await second.wait(240)
    await script.until_wanted()  # nothing was read for a while
    await notifier.stop()


async def test_the_partitions_that_are_remembered_are_bounded(clock: Clock, ids: Ids) -> None:
    """Readers of a million partitions would cost memory, and time of the event loop for each copy."""
    script = _Script()
    notifier = CommitNotifier(
        script,
        BoundsCache(clock, ttl_ms=1, limit=1),
        outage=Outage("notifications", clock=clock, ids=ids),
        keep_seconds=0.05,
        max_wanted=3,
    )
    notifier.start()
    partitions = [PartitionId(UUID(int=0), number) for number in range(6)]
    with notifier.waiter(partitions[:3]):
        await script.until_wanted(*partitions[:3])
        with notifier.waiter(partitions[3:]) as waiter:
            await script.until_all_are_wanted()
            script.changes.put(frozenset({partitions[5]}))
            assert await waiter.wait(240)
            assert notifier._wanted is None
        await script.until_wanted(*partitions[:3])
    await script.until_wanted()
    await notifier.stop()
