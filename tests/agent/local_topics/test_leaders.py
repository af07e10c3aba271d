"""Cached leaders of local partitions: one row a second confirms all of them, and no change is missed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.local_topics.leaders import LeaderDirectory
from agent.runtime.work_pool import WorkPool
from catalog.database.pool import Database
from catalog.model import Broker, PartitionId
from catalog.topics.local_leaders import LocalLeaders
from core.clock import ManualClock
from core.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from catalog.model import Topic
    from catalog.open import Catalog
    from catalog.topics.local_leaders import LocalLeader

_BROKERS = [Broker(node_id=number, host="h", port=number, has_local_logs=True) for number in (1, 2)]
_LOCAL = {"storage.mode": "local"}


@pytest.fixture
def pool() -> Iterator[WorkPool]:
    pool = WorkPool("catalog", threads=4, max_waiting=1000)
    yield pool
    pool.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the statements that read something, by purpose; they fail while "fails" is not 0."""
    counts, read = Counter[str](), Database.read

    def count(database: Database, purpose: str, *args: Any) -> Any:  # noqa: ANN401
        if counts["fails"]:
            raise RetryableError("the catalog does not respond", remedy="wait")
        counts[purpose] += 1
        return read(database, purpose, *args)

    monkeypatch.setattr(Database, "read", count)
    return counts


def test_leaders_without_a_change_cost_one_statement_a_second(
    catalog: Catalog, pool: WorkPool, reads: Counter[str]
) -> None:
    """However many topics are in use, alone or together."""
    clock = ManualClock()
    topics = [catalog.topics.create(f"t-{number}", 3, _LOCAL) for number in range(100)]

    async def scenario() -> None:
        directory = LeaderDirectory(catalog.local_leaders, pool=pool, clock=clock)
        for _ in range(2):  # the first look claims the partitions
            await directory.of_many(topics, _BROKERS)
            clock.advance(2)
        reads.clear()
        for _ in range(10):
            await asyncio.gather(*(directory.of(topic, _BROKERS) for topic in topics))
            assert len(await directory.of_many(topics, _BROKERS)) == 100
            clock.advance(1)
        assert reads == {"topics.changes": 10}

    asyncio.run(scenario())


def test_a_failure_hides_no_change(catalog: Catalog, pool: WorkPool, reads: Counter[str]) -> None:
    """Leaders of many topics are as last known until the catalog responds."""
    clock, topic = ManualClock(), catalog.topics.create("t", 1, _LOCAL)

    async def scenario() -> None:
        directory = LeaderDirectory(catalog.local_leaders, pool=pool, clock=clock)
        known = dict(await directory.of(topic, _BROKERS))
        catalog.local_leaders.begin_epochs(known[0].node_id)
        clock.advance(2)
        reads["fails"] = 1
        with pytest.raises(RetryableError):
            await directory.of(topic, _BROKERS)
        assert await directory.of_many([topic], _BROKERS) == {topic.topic_id: known}
        reads["fails"] = 0
        assert (await directory.of(topic, _BROKERS))[0].leader_epoch == known[0].leader_epoch + 1

    asyncio.run(scenario())


def test_new_partitions_get_leaders_although_an_old_topic_was_in_use(
    catalog: Catalog, pool: WorkPool
) -> None:
    """A request may know the topic from before it grew, and look its leaders up afterwards."""
    clock, old = ManualClock(), catalog.topics.create("t", 1, _LOCAL)

    async def scenario() -> None:
        directory = LeaderDirectory(catalog.local_leaders, pool=pool, clock=clock)
        new = catalog.topics.add_partitions("t", 2)
        for _ in range(2):
            assert (await directory.of(old, _BROKERS)).keys() == {0}
            clock.advance(2)
        assert (await directory.of(new, _BROKERS)).keys() == {0, 1}

    asyncio.run(scenario())


def test_a_change_during_a_lookup_is_found(
    catalog: Catalog, pool: WorkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another topic's request may read the new version before the lookup ends."""
    clock = ManualClock()
    slow, other = (catalog.topics.create(name, 1, _LOCAL) for name in ("slow", "other"))
    table, has_read, may_respond = catalog.local_leaders, threading.Event(), threading.Event()
    may_respond.set()
    of_topics = LocalLeaders.of_topics

    def slow_lookup(self: LocalLeaders, topic_ids: Sequence[UUID]) -> dict[UUID, dict[int, LocalLeader]]:
        found = of_topics(self, topic_ids)
        if slow.topic_id in topic_ids:
            has_read.set()
            assert may_respond.wait(60)
        return found

    monkeypatch.setattr(LocalLeaders, "of_topics", slow_lookup)

    async def scenario() -> None:
        directory = LeaderDirectory(table, pool=pool, clock=clock)
        await directory.of_many([slow, other], _BROKERS)
        table.begin_epochs(1)
        table.begin_epochs(2)
        clock.advance(2)
        may_respond.clear()
        has_read.clear()
        lookup = asyncio.create_task(directory.of(slow, _BROKERS))
        await asyncio.to_thread(has_read.wait, 60)
        table.begin_epochs(1)
        table.begin_epochs(2)
        clock.advance(2)
        assert (await directory.of(other, _BROKERS))[0].leader_epoch == 2
        may_respond.set()
        assert (await lookup)[0].leader_epoch == 1  # it began before the change
        clock.advance(1)
        assert (await directory.of(slow, _BROKERS))[0].leader_epoch == 2

    asyncio.run(scenario())


def test_a_lookup_of_an_earlier_epoch_is_not_kept(
    catalog: Catalog, pool: WorkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began before the epoch, and ends in it."""
    clock, topic = ManualClock(), catalog.topics.create("t", 1, _LOCAL)
    table, has_read, may_respond = catalog.local_leaders, threading.Event(), threading.Event()
    table.claim({PartitionId(topic.topic_id, 0): 1})
    of_topics = LocalLeaders.of_topics

    def slow_lookup(self: LocalLeaders, topic_ids: Sequence[UUID]) -> dict[UUID, dict[int, LocalLeader]]:
        found = of_topics(self, topic_ids)
        if not has_read.is_set():
            has_read.set()
            assert may_respond.wait(60)
        return found

    monkeypatch.setattr(LocalLeaders, "of_topics", slow_lookup)

    async def scenario() -> None:
        directory = LeaderDirectory(table, pool=pool, clock=clock)
        lookup = asyncio.create_task(directory.of(topic, _BROKERS))
        await asyncio.to_thread(has_read.wait, 60)
        table.begin_epochs(1)
        directory.clear()
        joined = asyncio.create_task(directory.of(topic, _BROKERS))
        assert (await joined)[0].leader_epoch == 1
        may_respond.set()
        assert (await lookup)[0].leader_epoch == 0
        assert (await directory.of(topic, _BROKERS))[0].leader_epoch == 1

    asyncio.run(scenario())


class Leaders:
    """Leaders that change, and those that the catalog has had in the last second."""

    def __init__(self, catalog: Catalog, clock: ManualClock) -> None:
        self.catalog = catalog
        self._clock = clock
        self._history: list[tuple[float, Mapping[int, LocalLeader]]] = []
        name = f"t-{len(catalog.topics.list())}-{len(catalog.topics.deleted.list())}"
        self.topic: Topic = catalog.topics.create(name, 2, _LOCAL)
        self._name = name
        self._directories = 100

    def change(self, kind: str) -> None:
        """Make a change, if it is possible now."""
        table, key = self.catalog.local_leaders, PartitionId(self.topic.topic_id, 0)
        exists = any(each.topic_id == self.topic.topic_id for each in self.catalog.topics.list())
        if kind == "epochs":
            table.begin_epochs(1)
        elif kind == "directory":
            self._directories += 1
            table.assign(1, {key: UUID(int=self._directories)}, source=UUID(int=self._directories - 1))
            table.assign(1, {key: UUID(int=self._directories)})
        elif kind == "deletion" and exists:
            self.catalog.topics.delete(self._name)
        elif kind == "undeletion" and not exists:
            self.catalog.topics.deleted.undelete(self._name)
        elif kind == "growth" and exists:
            count = self.topic.partition_count + 1
            self.topic = self.catalog.topics.add_partitions(self._name, count)
        elif kind == "claims" and exists:
            numbers = range(self.topic.partition_count)
            table.claim({PartitionId(self.topic.topic_id, number): 2 for number in numbers})

    def note(self) -> None:
        """Note the leaders that the catalog has now."""
        found = self.catalog.local_leaders.of_topic(self.topic.topic_id)
        self._history.append((self._clock.monotonic(), found))

    def recent(self) -> list[Mapping[int, LocalLeader]]:
        """Return the leaders of the last second, with those at its begin."""
        now = self._clock.monotonic()
        ends = [at for at, _ in self._history[1:]] + [now]
        return [leaders for (_, leaders), end in zip(self._history, ends, strict=True) if end >= now - 1]


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["epochs", "directory", "deletion", "undeletion", "growth", "claims", "none"]),
        st.sampled_from([0.0, 0.3, 0.6, 1.1]),
        st.sampled_from(["of", "of_many", "refresh", "none"]),
    ),
    max_size=15,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_STEPS)
def test_leaders_are_at_most_a_second_old(
    catalog: Catalog, pool: WorkPool, steps: list[tuple[str, float, str]]
) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        leaders = Leaders(catalog, clock)
        directory = LeaderDirectory(catalog.local_leaders, pool=pool, clock=clock)
        leaders.note()
        for change, seconds, look in steps:
            leaders.change(change)
            leaders.note()
            clock.advance(seconds)
            topic = leaders.topic
            if look == "of":
                found = await directory.of(topic, _BROKERS)
            elif look == "of_many":
                found = (await directory.of_many([topic], _BROKERS))[topic.topic_id]
            elif look == "refresh":
                found = await directory.refresh(topic, _BROKERS)
            else:
                continue
            leaders.note()  # the look may have claimed partitions
            assert found in leaders.recent()

    asyncio.run(scenario())
