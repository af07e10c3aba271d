"""Clients that hang up while their request is written: it comes before what is asked next."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from agent.groups.classic.messages import MemberIdentity
from catalog.groups.offsets import CommittedOffset
from catalog.model import PartitionId
from tests.agent.groups.coordinators import coordinating

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_PATIENCE_SECONDS = 120.0  # of the test: without an answer it fails


class _Slow:
    """A call that begins its work when it may."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, *args: object, **options: object) -> Any:  # noqa: ANN401  # whatever the call gives
        self.has_begun.set()
        assert self.may_go_on.wait(_PATIENCE_SECONDS)
        return self._call(*args, **options)


def test_a_commit_does_not_overtake_one_whose_client_has_hung_up(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """The thread that writes the first cannot be called back."""
    topic_id = catalog.topics.create("granite", 1, {}).topic_id

    def at(offset: int) -> list[CommittedOffset]:
        return [CommittedOffset(topic_id=topic_id, partition=0, offset=offset)]

    async def story() -> None:
        async with coordinating(catalog, clock, ids) as coordinator:
            await coordinator.offsets.commit("g", MemberIdentity(), at(1))
            slow = _Slow(catalog.group_offsets.commit)
            catalog.group_offsets.commit = slow  # type: ignore[method-assign]  # for a moment
            gone = asyncio.create_task(coordinator.offsets.commit("g", MemberIdentity(), at(100)))
            assert await asyncio.to_thread(slow.has_begun.wait, _PATIENCE_SECONDS)
            del catalog.group_offsets.commit
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            assert gone.cancelled()
            following = asyncio.create_task(coordinator.offsets.commit("g", MemberIdentity(), at(200)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert coordinator.cache.store._pool.pending == 1
            slow.may_go_on.set()
            await asyncio.wait_for(following, _PATIENCE_SECONDS)
            found = await coordinator.offsets.fetch([("g", PartitionId(topic_id, 0))])
            assert [each.offset for each in found.values()] == [200]

    asyncio.run(story())


def test_a_coordinator_that_stops_waits_for_what_is_written(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """Also for those who are gone: its threads may end then."""

    async def story() -> None:
        slow = _Slow(catalog.groups.delete)
        async with coordinating(catalog, clock, ids) as coordinator:
            await coordinator.offsets.commit("g", MemberIdentity(), [])
            catalog.groups.delete = slow  # type: ignore[method-assign]  # until the end
            gone = asyncio.create_task(coordinator.delete("g"))
            assert await asyncio.to_thread(slow.has_begun.wait, _PATIENCE_SECONDS)
            del catalog.groups.delete
            gone.cancel()
            stopping = asyncio.create_task(coordinator.stop())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not stopping.done()
            slow.may_go_on.set()
            await asyncio.wait_for(stopping, _PATIENCE_SECONDS)
            assert catalog.groups.page() == []

    asyncio.run(story())
