"""Consumer groups while the catalog does not respond: members that send heartbeats stay."""

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
from catalog.model import Topic
from catalog.topics.repository import TopicList
from core.clock import ManualClock
from core.errors import RetryableError
from tests.agent.groups.coordinators import open_coordinator
from tests.agent.groups.test_delayed_event_loop import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from agent.groups.coordinator import GroupCoordinator
    from catalog.groups.repository import GroupRecord
    from catalog.groups.repository import Groups as CatalogGroups
    from catalog.open import Catalog
    from catalog.topics.changes import TopicVersion
    from core.ids import Ids

T = TypeVar("T")
_TEST_TIMEOUT_SECONDS = 60.0
_HEARTBEAT_SECONDS = 5


class BlockableList(Generic[T]):
    """A catalog table whose `list` blocks while `may_respond` is clear."""

    def __init__(self, inner: Callable[[], T]) -> None:
        self.inner = inner
        self.calls = 0
        self.may_respond = threading.Event()
        self.may_respond.set()

    def list(self) -> T:
        self.calls += 1
        assert self.may_respond.wait(_TEST_TIMEOUT_SECONDS)
        return self.inner()


class BlockableTopics(BlockableList[list[Topic]]):
    """The catalog's topics, which are listed in each look. A look blocks while `may_respond` is clear."""

    def changed_since(self, _known: TopicVersion | None) -> TopicList:
        return TopicList(frozenset(), self.list())


@dataclass
class Client:
    """A client that follows each response and lists its partitions in each heartbeat."""

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

    async def heartbeat(self, coordinator: GroupCoordinator) -> int:
        """Send a heartbeat; return the member epoch."""
        response = await coordinator.consumers.heartbeat("g", self.request())
        self.epoch = response.member_epoch
        self.owned = self.owned if response.assignment is None else response.assignment
        return self.epoch


def test_heartbeats_are_answered_while_lookups_hang(catalog: Catalog, ids: Ids) -> None:
    """No response takes longer than a heartbeat interval, and no session ends."""
    catalog.topics.create("granite", 6, {})
    clock, settings = ManualClock(), GroupSettings()
    topics, configs = BlockableTopics(catalog.topics.list), BlockableList(catalog.group_configs.list)

    async def scenario() -> None:
        async with open_coordinator(
            catalog, clock, ids, settings, topics=topics, configs=configs
        ) as coordinator:
            clients = [Client(f"m{number}") for number in range(6)]
            for _ in range(4):
                for each in clients:
                    await each.heartbeat(coordinator)
            epochs = [each.epoch for each in clients]
            assert [len(each.owned) for each in clients] == [1] * 6
            topics.may_respond.clear()
            configs.may_respond.clear()
            calls = topics.calls, configs.calls
            try:
                for _ in range(2 * settings.group_consumer_session_timeout_ms // 1000 // _HEARTBEAT_SECONDS):
                    sent = [asyncio.create_task(each.heartbeat(coordinator)) for each in clients]
                    for _ in range(_HEARTBEAT_SECONDS):
                        for _ in range(20):
                            await asyncio.sleep(0)
                        clock.advance(1)
                    assert [each.result() for each in sent if each.done()] == epochs
                assert topics.calls <= calls[0] + 1
                assert configs.calls <= calls[1] + 1
            finally:
                topics.may_respond.set()
                configs.may_respond.set()
            assert [await each.heartbeat(coordinator) for each in clients] == epochs

    run(scenario(), clock)


def test_member_that_waits_for_a_hanging_write_keeps_its_session(
    catalog: Catalog, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for its own changes and for those of others. A member without a request is fenced."""
    catalog.topics.create("granite", 3, {})
    clock, may_save, save = ManualClock(), threading.Event(), type(catalog.groups).save
    may_save.set()

    def blockable_save(groups: CatalogGroups, claim_id: UUID, record: GroupRecord) -> bool:
        assert may_save.wait(_TEST_TIMEOUT_SECONDS)
        return save(groups, claim_id, record)

    monkeypatch.setattr(type(catalog.groups), "save", blockable_save)

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids) as coordinator:
            clients = [Client(f"m{number}") for number in range(3)]
            for _ in range(4):
                for each in clients:
                    await each.heartbeat(coordinator)
            group = coordinator.cache.get("g")
            assert isinstance(group, ConsumerGroup)
            may_save.clear()
            try:
                changed = replace(clients[0].request(), topics=frozenset({"basalt", "granite"}))
                waiting = [
                    asyncio.create_task(coordinator.consumers.heartbeat("g", changed)),
                    asyncio.create_task(clients[1].heartbeat(coordinator)),
                ]
                for _ in range(2 * coordinator.settings.group_consumer_session_timeout_ms // 1000):
                    for _ in range(20):
                        await asyncio.sleep(0)
                    clock.advance(1)
                assert not any(each.done() for each in waiting)
                assert {each.member_id for each in group.describe().members} == {"m0", "m1"}
            finally:
                may_save.set()
            await asyncio.wait_for(asyncio.gather(*waiting), 10 * _TEST_TIMEOUT_SECONDS)

    run(scenario(), clock)


def test_heartbeat_that_changes_nothing_waits_for_no_write(catalog: Catalog, ids: Ids) -> None:
    """An offset commit holds the write lock of the group as long as the catalog takes."""
    catalog.topics.create("granite", 1, {})
    clock = ManualClock()

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids) as coordinator:
            client = Client()
            epoch = await client.heartbeat(coordinator)
            cached = await coordinator.cache.find("g")
            assert cached is not None
            async with cached.write_lock:
                assert await asyncio.wait_for(client.heartbeat(coordinator), _TEST_TIMEOUT_SECONDS) == epoch

    asyncio.run(scenario())


def test_session_is_extended_when_a_heartbeat_arrives(catalog: Catalog, ids: Ids) -> None:
    """Heartbeats of unknown members and with other epochs extend no session."""
    catalog.topics.create("granite", 1, {})
    clock = ManualClock()

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids) as coordinator:
            client = Client()
            epoch = await client.heartbeat(coordinator)
            group = coordinator.cache.get("g")
            assert isinstance(group, ConsumerGroup)
            session_seconds = coordinator.settings.group_consumer_session_timeout_ms / 1000
            clock.advance(session_seconds - 1)
            group.extend_session_on_arrival(client.request())
            group.extend_session_on_arrival(Client("unknown", epoch).request())
            clock.advance(2)
            group.expire()
            assert group.member_count == 1
            clock.advance(session_seconds - 3)
            for each in (epoch + 1, epoch - 1, -1):
                group.extend_session_on_arrival(client.request(each))
            clock.advance(2)
            group.expire()
            assert group.is_empty

    asyncio.run(scenario())


class FlakyCatalog:
    """A catalog whose lookups fail while `fails` is set."""

    def __init__(self) -> None:
        self.fails = True
        self.topics: Sequence[Topic] = ()
        self.configs: Mapping[str, GroupConfig] = {}

    def changed_since(self, _known: TopicVersion | None) -> TopicList:
        self._check()
        return TopicList(frozenset(), [*self.topics])

    async def look_up_configs(self) -> Mapping[str, GroupConfig]:
        self._check()
        return self.configs

    def _check(self) -> None:
        if self.fails:
            raise RetryableError("the catalog does not respond", remedy="wait")


async def run_now(work: Callable[[], T]) -> T:
    return work()


def test_last_known_values_are_used_while_lookups_fail(catalog: Catalog) -> None:
    """Before the first success the errors are raised. An unchanged list gives the same view."""
    clock, source = ManualClock(), FlakyCatalog()
    cache = TopicCache(source, call=run_now, clock=clock, refresh_ms=1000)
    configs = GroupConfigCache(source.look_up_configs, clock=clock, refresh_ms=1000)

    async def scenario() -> None:
        with pytest.raises(RetryableError):
            await cache.get()
        with pytest.raises(RetryableError):
            await configs.refresh()
        source.fails = False
        source.topics = [catalog.topics.create("granite", 3, {})]
        source.configs = {"g": GroupConfig.of({"consumer.session.timeout.ms": "50000"})}
        view = await cache.get()
        await configs.refresh()
        for source.fails in (True, False):
            clock.advance(1)
            assert await cache.get() is view
            await configs.refresh()
            assert view.by_name["granite"].partition_count == 3
            assert configs.of("g").session_timeout_ms == 50_000
        source.topics = []
        clock.advance(1)
        assert (await cache.get()).by_name == {}

    asyncio.run(scenario())
