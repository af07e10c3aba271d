"""Expiry of offsets, over a real catalog with a manual clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import MemberIdentity
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.metrics import GroupCollector
from catalog.groups.offsets import CommittedOffset
from tests.agent.groups.coordinators import open_coordinator
from tests.agent.groups.test_delayed_event_loop import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.groups.coordinator import GroupCoordinator
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_HOURS = 3600
_NO_MEMBER = MemberIdentity()
_SETTINGS = GroupSettings(offsets_retention_minutes=24 * 60, topics_refresh_ms=1)


def heartbeat(epoch: int = 0) -> ConsumerHeartbeat:
    joins = {"rebalance_timeout_ms": 1_000, "topics": frozenset({"granite"}), "owned": EMPTY_ASSIGNMENT}
    return ConsumerHeartbeat(member_id="m", member_epoch=epoch, **(joins if epoch == 0 else {}))  # type: ignore[arg-type]  # as the keys say


class Expiry:
    """A coordinator whose offsets expire after a day."""

    def __init__(self, coordinator: GroupCoordinator, catalog: Catalog, clock: ManualClock) -> None:
        self.clock = clock
        self.topics = [catalog.topics.create(name, 1, {}) for name in ("granite", "basalt")]
        self.coordinator = coordinator

    async def commit(self, group_id: str, identity: MemberIdentity = _NO_MEMBER, *topics: Topic) -> None:
        offsets = [
            CommittedOffset(topic_id=topic.topic_id, partition=0, offset=5) for topic in topics or self.topics
        ]
        await self.coordinator.offsets.commit(group_id, identity, offsets)

    async def topics_with_offsets(self, group_id: str) -> list[str]:
        """Return the topics that the group still has offsets of."""
        return [name for name, _ in (await self.coordinator.offsets.fetch_all([group_id]))[group_id]]

    async def run_after(self, hours: float) -> None:
        self.clock.advance(hours * _HOURS)
        await self.coordinator._expiry.run_once()

    async def groups(self) -> list[str]:
        return [each.group_id for each in await self.coordinator.list()]


@pytest.fixture
def run_scenario(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> Callable[[Callable[[Expiry], Awaitable[None]]], None]:
    """Return a function that runs a scenario in a separate event loop."""

    async def run(scenario: Callable[[Expiry], Awaitable[None]]) -> None:
        async with open_coordinator(catalog, clock, ids, _SETTINGS) as coordinator:
            await scenario(Expiry(coordinator, catalog, clock))

    return lambda scenario: asyncio.run(run(scenario))


def test_offsets_of_a_group_without_members_expire_a_day_after_their_commit(
    run_scenario: Callable[[Callable[[Expiry], Awaitable[None]]], None],
) -> None:
    """The group is deleted with its last offset, also from memory."""

    async def scenario(expiry: Expiry) -> None:
        granite, basalt = expiry.topics
        await expiry.commit("masons", _NO_MEMBER, granite)
        await expiry.run_after(23)
        await expiry.commit("masons", _NO_MEMBER, basalt)
        await expiry.run_after(1.5)
        assert await expiry.topics_with_offsets("masons") == ["basalt"]
        await expiry.run_after(23)
        assert await expiry.topics_with_offsets("masons") == []
        assert await expiry.groups() == []
        assert len(expiry.coordinator.cache) == 0
        assert expiry.coordinator.cache.counters.groups_expired == 1

    run_scenario(scenario)


def test_offsets_of_subscribed_topics_do_not_expire(
    run_scenario: Callable[[Callable[[Expiry], Awaitable[None]]], None],
) -> None:
    """Offsets of other topics expire, and all do when the members have left."""

    async def scenario(expiry: Expiry) -> None:
        epoch = (await expiry.coordinator.consumers.heartbeat("masons", heartbeat())).member_epoch
        await expiry.commit("masons", MemberIdentity(member_id="m", generation=epoch))
        await expiry.run_after(25)
        assert await expiry.topics_with_offsets("masons") == ["granite"]
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in GroupCollector(expiry.coordinator.cache).collect()
            for sample in family.samples
        }
        assert samples["siltstone_groups", "consumer", "Stable"] == 1
        assert samples["siltstone_group_members", "consumer"] == 1
        assert samples[("siltstone_group_offset_commits_total",)] == 1
        assert samples[("siltstone_group_rebalances_total",)] == 1
        await expiry.coordinator.consumers.heartbeat("masons", heartbeat(-1))
        await expiry.run_after(0.1)
        assert await expiry.topics_with_offsets("masons") == []

    run_scenario(scenario)


def test_offsets_of_a_group_whose_members_died_with_its_coordinator_expire(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """No request names the group again. The next coordinator still ends the sessions of its members."""

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, _SETTINGS) as first:
            expiry = Expiry(first, catalog, clock)
            epoch = (await first.consumers.heartbeat("masons", heartbeat())).member_epoch
            await expiry.commit("masons", MemberIdentity(member_id="m", generation=epoch))
        async with open_coordinator(catalog, clock, ids, _SETTINGS) as second:
            expiry.coordinator = second
            await expiry.run_after(1)
            for _ in range(20):  # the timer of the group allows for a late event loop
                clock.advance(5)
                for _ in range(5):
                    await asyncio.sleep(0)
            await second.cache.store.wait_for_writes()
            await expiry.run_after(25)
            assert await expiry.topics_with_offsets("masons") == []
            assert await expiry.groups() == []

    run(scenario(), clock)


def test_groups_with_dead_members_are_loaded_within_the_memory_for_groups(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, _SETTINGS) as first:
            for group_id in ("masons", "potters", "tanners"):
                await first.consumers.heartbeat(group_id, heartbeat())
            size = first.cache.memory.budget.used
        small = replace(_SETTINGS, groups_max_bytes=size)
        async with open_coordinator(catalog, clock, ids, small) as second:
            await second._expiry.run_once()
            assert len(second.cache) == 2

    asyncio.run(scenario())
