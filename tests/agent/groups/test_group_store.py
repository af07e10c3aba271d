"""Writes of large consumer groups: outside the event loop, and shared by many members."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from agent.groups.cache import group_store
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.consumer.snapshot import decode_consumer_group, encode_consumer_group
from tests.agent.groups.coordinators import open_coordinator

if TYPE_CHECKING:
    import pytest

    from agent.groups.consumer.snapshot import ConsumerGroupSnapshot
    from catalog.groups.repository import GroupRecord
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_TEST_TIMEOUT_SECONDS = 20.0


def join(member_id: str) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        topics=frozenset({"granite"}),
        owned=EMPTY_ASSIGNMENT,
    )


def test_members_that_join_during_a_write_share_the_next_one(
    catalog: Catalog, clock: ManualClock, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No group is encoded on the event loop."""
    catalog.topics.create("granite", 40, {})
    loop_thread, may_write = threading.get_ident(), threading.Event()
    threads: list[int] = []
    counts: list[int] = []

    def record(group_id: str, snapshot: ConsumerGroupSnapshot) -> GroupRecord:
        threads.append(threading.get_ident())
        counts.append(len(snapshot.members))
        if threading.get_ident() != loop_thread:
            assert may_write.wait(_TEST_TIMEOUT_SECONDS)
        return encode_consumer_group(group_id, snapshot)

    monkeypatch.setattr(group_store, "encode_consumer_group", record)

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids) as coordinator:

            async def joined(number: int) -> int:
                return (await coordinator.consumers.heartbeat("g", join(f"m{number}"))).member_epoch

            async def all_have_joined() -> bool:
                await asyncio.sleep(0)
                group = coordinator.cache.get("g")
                return group is not None and group.member_count == 20

            async with asyncio.timeout(_TEST_TIMEOUT_SECONDS):
                joins = [asyncio.create_task(joined(number)) for number in range(20)]
                while not await all_have_joined():
                    pass
                may_write.set()
                epochs = await asyncio.gather(*joins)
            assert sorted(epochs) == list(range(1, 21))

    asyncio.run(scenario())
    assert len(counts) <= 2
    assert counts[-1] == 20
    assert loop_thread not in threads
    stored = catalog.groups.claim("g", ids.new_uuid(), create=False)
    assert stored is not None
    assert len(decode_consumer_group(stored).members) == 20
