"""Consumer groups while the catalog hangs: whoever sends heartbeats is heard, and stays."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import pytest

from agent.group_settings import GroupSettings
from agent.groups.consumer.cached_lookups import GroupConfigCache, TopicCache
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, Assignment, ConsumerHeartbeat
from catalog.config.values import GroupConfig
from core.clock import ManualClock
from core.errors import RetryableError
from tests.agent.groups.coordinators import coordinating
from tests.agent.groups.test_late_loop import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from agent.groups.coordinator import GroupCoordinator
    from catalog.groups.repository import GroupRecord
    from catalog.groups.repository import Groups as CatalogGroups
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.ids import Ids

T = TypeVar("T")
_PATIENCE_SECONDS = 60.0  # of the test: without an answer it fails
_INTERVAL_SECONDS = 5


class Gated(Generic[T]):
    """A list of the catalog's that answers when it may."""

    def __init__(self, inner: Callable[[], T]) -> None:
        self.inner = inner
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def list(self) -> T:
        self.asked += 1
        assert self.may_answer.wait(_PATIENCE_SECONDS)
        return self.inner()


@dataclass
class Member:
    """A client that does what it is told, and says what it has with each heartbeat."""

    member_id: str = "m"
    epoch: int = 0
    owned: Assignment = EMPTY_ASSIGNMENT

    def request(self, epoch: int | None = None) -> ConsumerHeartbeat:
        joins = self.epoch == 0
        return ConsumerHeartbeat(
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            rebalance_timeout_ms=60_000 if joins else -1,
            topics=frozenset({"granite"}) if joins else None,
            owned=self.owned,
        )

    async def beat(self, coordinator: GroupCoordinator) -> int:
        """Its epoch, as it is told."""
        answer = await coordinator.consumers.heartbeat("g", self.request())
        self.epoch = answer.member_epoch
        self.owned = self.owned if answer.assignment is None else answer.assignment
        return self.epoch


def test_members_that_send_heartbeats_outlive_a_catalog_that_hangs(catalog: Catalog, ids: Ids) -> None:
    """All are answered within an interval, however long topics and settings cannot be looked up."""
    catalog.topics.create("granite", 6, {})
    clock, settings = ManualClock(), GroupSettings()
    topics, configs = Gated(catalog.topics.list), Gated(catalog.group_configs.list)

    async def story() -> None:
        async with coordinating(catalog, clock, ids, settings, topics=topics, configs=configs) as coordinator:
            members = [Member(f"m{number}") for number in range(6)]
            for _ in range(4):
                for each in members:
                    await each.beat(coordinator)
            epochs = [each.epoch for each in members]
            assert [len(each.owned) for each in members] == [1] * 6
            topics.may_answer.clear()
            configs.may_answer.clear()
            asked = topics.asked, configs.asked
            try:
                for _ in range(2 * settings.group_consumer_session_timeout_ms // 1000 // _INTERVAL_SECONDS):
                    sent = [asyncio.create_task(each.beat(coordinator)) for each in members]
                    for _ in range(_INTERVAL_SECONDS):
                        for _ in range(20):
                            await asyncio.sleep(0)
                        clock.advance(1)
                    assert [each.result() for each in sent if each.done()] == epochs
                assert topics.asked <= asked[0] + 1
                assert configs.asked <= asked[1] + 1
            finally:
                topics.may_answer.set()
                configs.may_answer.set()
            assert [await each.beat(coordinator) for each in members] == epochs

    run(story(), clock)


def test_a_member_that_waits_for_its_answer_outlives_a_catalog_that_hangs(
    catalog: Catalog, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the change that cannot be stored is its own or another's; one that says nothing is out."""
    catalog.topics.create("granite", 3, {})
    clock, may_save, save = ManualClock(), threading.Event(), type(catalog.groups).save
    may_save.set()

    def gated(groups: CatalogGroups, claim_id: UUID, record: GroupRecord) -> bool:
        assert may_save.wait(_PATIENCE_SECONDS)
        return save(groups, claim_id, record)

    monkeypatch.setattr(type(catalog.groups), "save", gated)

    async def story() -> None:
        async with coordinating(catalog, clock, ids) as coordinator:
            members = [Member(f"m{number}") for number in range(3)]
            for _ in range(4):
                for each in members:
                    await each.beat(coordinator)
            group = coordinator.cache.get("g")
            assert isinstance(group, ConsumerGroup)
            may_save.clear()
            try:
                changed = replace(members[0].request(), topics=frozenset({"basalt", "granite"}))
                waiting = [
                    asyncio.create_task(coordinator.consumers.heartbeat("g", changed)),
                    asyncio.create_task(members[1].beat(coordinator)),
                ]
                for _ in range(2 * coordinator.settings.group_consumer_session_timeout_ms // 1000):
                    for _ in range(20):
                        await asyncio.sleep(0)
                    clock.advance(1)
                assert not any(each.done() for each in waiting)
                assert {each.member_id for each in group.describe().members} == {"m0", "m1"}
            finally:
                may_save.set()
            await asyncio.wait_for(asyncio.gather(*waiting), 10 * _PATIENCE_SECONDS)

    run(story(), clock)


def test_a_heartbeat_that_changes_nothing_waits_for_no_write(catalog: Catalog, ids: Ids) -> None:
    """Commits of a group hold its turn to write for as long as the catalog takes."""
    catalog.topics.create("granite", 1, {})
    clock = ManualClock()

    async def story() -> None:
        async with coordinating(catalog, clock, ids) as coordinator:
            member = Member()
            epoch = await member.beat(coordinator)
            held = await coordinator.cache.find("g")
            assert held is not None
            async with held.write_lock:
                assert await asyncio.wait_for(member.beat(coordinator), _PATIENCE_SECONDS) == epoch

    asyncio.run(story())


def test_a_member_that_waits_to_be_heard_is_not_silent(catalog: Catalog, ids: Ids) -> None:
    """Its session begins anew when its heartbeat comes; strangers and other epochs change nothing."""
    catalog.topics.create("granite", 1, {})
    clock = ManualClock()

    async def story() -> None:
        async with coordinating(catalog, clock, ids) as coordinator:
            member = Member()
            epoch = await member.beat(coordinator)
            group = coordinator.cache.get("g")
            assert isinstance(group, ConsumerGroup)
            session_seconds = coordinator.settings.group_consumer_session_timeout_ms / 1000
            clock.advance(session_seconds - 1)
            group.extend_session_on_arrival(member.request())
            group.extend_session_on_arrival(Member("stranger", epoch).request())
            clock.advance(2)
            group.expire()
            assert group.member_count == 1
            clock.advance(session_seconds - 3)
            for each in (epoch + 1, epoch - 1, -1):
                group.extend_session_on_arrival(member.request(each))
            clock.advance(2)
            group.expire()
            assert group.is_empty

    asyncio.run(story())


class Unsteady:
    """Look-ups that fail as long as they are told to."""

    def __init__(self) -> None:
        self.fails = True
        self.topics: Sequence[Topic] = ()
        self.configs: Mapping[str, GroupConfig] = {}

    def look_up_topics(self) -> Sequence[Topic]:
        self._may_fail()
        return self.topics

    async def look_up_configs(self) -> Mapping[str, GroupConfig]:
        self._may_fail()
        return self.configs

    def _may_fail(self) -> None:
        if self.fails:
            raise RetryableError("the catalog does not answer", remedy="wait")


async def at_once(work: Callable[[], T]) -> T:
    return work()


def test_what_was_known_lasts_while_look_ups_fail(catalog: Catalog) -> None:
    """Before the first answer their errors are told; the same answer again makes no new view."""
    clock, source = ManualClock(), Unsteady()
    views = TopicCache(source.look_up_topics, call=at_once, clock=clock, refresh_ms=1000)
    configs = GroupConfigCache(source.look_up_configs, clock=clock, refresh_ms=1000)

    async def story() -> None:
        with pytest.raises(RetryableError):
            await views.get()
        with pytest.raises(RetryableError):
            await configs.refresh()
        source.fails = False
        source.topics = [catalog.topics.create("granite", 3, {})]
        source.configs = {"g": GroupConfig.of({"consumer.session.timeout.ms": "50000"})}
        view = await views.get()
        await configs.refresh()
        for source.fails in (True, False):
            clock.advance(1)
            assert await views.get() is view
            await configs.refresh()
            assert view.by_name["granite"].partition_count == 3
            assert configs.of("g").session_timeout_ms == 50_000
        source.topics = []
        clock.advance(1)
        assert (await views.get()).by_name == {}

    asyncio.run(story())
