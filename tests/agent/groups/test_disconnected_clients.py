"""Clients that disconnect while their request is written: the write precedes later ones."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from agent.groups.classic.messages import MemberIdentity
from catalog.groups.offsets import CommittedOffset
from catalog.model import PartitionId
from tests.agent.groups.coordinators import open_coordinator

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_TEST_TIMEOUT_SECONDS = 120.0


class _BlockedCall:
    """A call that waits for `may_continue` before it runs."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.has_started, self.may_continue = threading.Event(), threading.Event()

    def __call__(self, *args: object, **options: object) -> Any:  # noqa: ANN401  # the type of the call
        self.has_started.set()
        assert self.may_continue.wait(_TEST_TIMEOUT_SECONDS)
        return self._call(*args, **options)


def test_commit_does_not_overtake_a_commit_of_a_disconnected_client(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """The thread that writes the first commit cannot be cancelled."""
    topic_id = catalog.topics.create("granite", 1, {}).topic_id

    def at(offset: int) -> list[CommittedOffset]:
        return [CommittedOffset(topic_id=topic_id, partition=0, offset=offset)]

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids) as coordinator:
            await coordinator.offsets.commit("g", MemberIdentity(), at(1))
            blocked = _BlockedCall(catalog.group_offsets.commit)
            catalog.group_offsets.commit = blocked  # type: ignore[method-assign]  # restored below
            disconnected = asyncio.create_task(coordinator.offsets.commit("g", MemberIdentity(), at(100)))
            assert await asyncio.to_thread(blocked.has_started.wait, _TEST_TIMEOUT_SECONDS)
            del catalog.group_offsets.commit
            disconnected.cancel()
            await asyncio.gather(disconnected, return_exceptions=True)
            assert disconnected.cancelled()
            following = asyncio.create_task(coordinator.offsets.commit("g", MemberIdentity(), at(200)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert coordinator.cache.store._pool.pending == 1
            blocked.may_continue.set()
            await asyncio.wait_for(following, _TEST_TIMEOUT_SECONDS)
            found = await coordinator.offsets.fetch([("g", PartitionId(topic_id, 0))])
            assert [each.offset for each in found.values()] == [200]

    asyncio.run(scenario())


def test_stop_waits_for_writes_of_disconnected_clients(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    async def scenario() -> None:
        blocked = _BlockedCall(catalog.groups.delete)
        async with open_coordinator(catalog, clock, ids) as coordinator:
            await coordinator.offsets.commit("g", MemberIdentity(), [])
            catalog.groups.delete = blocked  # type: ignore[method-assign]  # restored below
            disconnected = asyncio.create_task(coordinator.delete("g"))
            assert await asyncio.to_thread(blocked.has_started.wait, _TEST_TIMEOUT_SECONDS)
            del catalog.groups.delete
            disconnected.cancel()
            stopping = asyncio.create_task(coordinator.stop())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not stopping.done()
            blocked.may_continue.set()
            await asyncio.wait_for(stopping, _TEST_TIMEOUT_SECONDS)
            assert catalog.groups.page() == []

    asyncio.run(scenario())
