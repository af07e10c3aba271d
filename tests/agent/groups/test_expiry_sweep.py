"""The sweep for expired offsets, over a real catalog, on a clock that tests move."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import MemberIdentity
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.metrics import GroupCollector
from catalog.groups.offsets import CommittedOffset
from tests.agent.groups.coordinators import coordinating

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.groups.coordinator import GroupCoordinator
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_HOURS = 3600
_LOOSE = MemberIdentity()
_SETTINGS = GroupSettings(offsets_retention_minutes=24 * 60, topics_refresh_ms=1)


def heartbeat(epoch: int = 0) -> ConsumerHeartbeat:
    joins = {"rebalance_timeout_ms": 1_000, "topics": frozenset({"granite"}), "owned": EMPTY_ASSIGNMENT}
    return ConsumerHeartbeat(member_id="m", member_epoch=epoch, **(joins if epoch == 0 else {}))  # type: ignore[arg-type]  # as the keys say


class Sweep:
    """A coordinator whose offsets last for a day."""

    def __init__(self, coordinator: GroupCoordinator, catalog: Catalog, clock: ManualClock) -> None:
        self.clock = clock
        self.topics = [catalog.topics.create(name, 1, {}) for name in ("granite", "basalt")]
        self.coordinator = coordinator

    async def commit(self, group_id: str, stamp: MemberIdentity = _LOOSE, *topics: Topic) -> None:
        offsets = [
            CommittedOffset(topic_id=topic.topic_id, partition=0, offset=5) for topic in topics or self.topics
        ]
        await self.coordinator.offsets.commit(group_id, stamp, offsets)

    async def left(self, group_id: str) -> list[str]:
        """The topics that the group still has offsets of."""
        return [name for name, _ in (await self.coordinator.offsets.fetch_all([group_id]))[group_id]]

    async def after(self, hours: float) -> None:
        self.clock.advance(hours * _HOURS)
        await self.coordinator._expiry.run_once()

    async def groups(self) -> list[str]:
        return [each.group_id for each in await self.coordinator.list()]


@pytest.fixture
def swept(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> Callable[[Callable[[Sweep], Awaitable[None]]], None]:
    """Runs a story in an event loop of its own."""

    async def run(story: Callable[[Sweep], Awaitable[None]]) -> None:
        async with coordinating(catalog, clock, ids, _SETTINGS) as coordinator:
            await story(Sweep(coordinator, catalog, clock))

    return lambda story: asyncio.run(run(story))


def test_offsets_without_members_go_a_day_after_their_commit(
    swept: Callable[[Callable[[Sweep], Awaitable[None]]], None],
) -> None:
    """Each commit counts for itself; with the last offset the group goes, from memory too."""

    async def story(sweep: Sweep) -> None:
        granite, basalt = sweep.topics
        await sweep.commit("masons", _LOOSE, granite)
        await sweep.after(23)
        await sweep.commit("masons", _LOOSE, basalt)
        await sweep.after(1.5)
        assert await sweep.left("masons") == ["basalt"]
        await sweep.after(23)
        assert await sweep.left("masons") == []
        assert await sweep.groups() == []
        assert len(sweep.coordinator.cache) == 0
        assert sweep.coordinator.cache.counters.groups_expired == 1

    swept(story)


def test_members_keep_what_they_are_subscribed_to(
    swept: Callable[[Callable[[Sweep], Awaitable[None]]], None],
) -> None:
    """Offsets of other topics go; when the members are gone, the rest goes by its commits."""

    async def story(sweep: Sweep) -> None:
        epoch = (await sweep.coordinator.consumers.heartbeat("masons", heartbeat())).member_epoch
        await sweep.commit("masons", MemberIdentity(member_id="m", generation=epoch))
        await sweep.after(25)
        assert await sweep.left("masons") == ["granite"]
        shown = {
            (sample.name, *sample.labels.values()): sample.value
            for family in GroupCollector(sweep.coordinator.cache).collect()
            for sample in family.samples
        }
        assert shown["siltstone_groups", "consumer", "Stable"] == 1
        assert shown["siltstone_group_members", "consumer"] == 1
        assert shown[("siltstone_group_offset_commits_total",)] == 1
        assert shown[("siltstone_group_rebalances_total",)] == 1
        await sweep.coordinator.consumers.heartbeat("masons", heartbeat(-1))
        await sweep.after(0.1)
        assert await sweep.left("masons") == []

    swept(story)
