"""Leaders of the partitions of local topics: looked up, cached for a moment, and assigned if there is none.

A lookup is good for a second. After that it is confirmed by the version of all leaders, which one row of the
catalog has, and repeated only if some leader has changed since. A new epoch of the catalog ends it at once.

A partition without a leader is assigned to a live agent with disks, by rendezvous hashing. The first agent
whose claim reaches the catalog decides for all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.cluster.brokers import choose, partition_subject
from catalog.model import PartitionId
from catalog.topics.local_leaders import UNASSIGNED
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence
    from uuid import UUID

    from agent.runtime.work_pool import WorkPool
    from catalog.model import Broker, Topic
    from catalog.topics.changes import TopicVersion
    from catalog.topics.local_leaders import LocalLeader, LocalLeaders
    from core.clock import Clock
    from local_tier.manager.log_manager import LogManager

_CACHE_SECONDS = 1.0
_MAX_PARTITIONS_PER_CALL = 1_000
_MAX_CACHED_TOPICS = 100_000
_MAX_TOPICS_PER_QUERY = 1_000  # each topic has several partitions
_UNKNOWN: tuple[float, MutableMapping[int, LocalLeader]] = (float("-inf"), {})
_log = structlog.get_logger(__name__)


def record_directories(table: LocalLeaders, node_id: int, manager: LogManager) -> frozenset[UUID]:
    """Record the directories of the logs that a node has found. Return all that are recorded for the node.

    A log without a recorded directory was created just before a crash, or by an earlier release.
    """
    found = {
        PartitionId(log.topic_id, log.topic_partition.partition): directory_id
        for log in manager.logs()
        if log.topic_id is not None
        and (directory_id := manager.directory_id(log.directory.parent)) is not None
    }
    ordered = sorted(found.items())
    for start in range(0, len(ordered), _MAX_PARTITIONS_PER_CALL):
        table.assign(node_id, dict(ordered[start : start + _MAX_PARTITIONS_PER_CALL]))
    if not manager.may_miss_logs:
        table.declare_unassigned(node_id)
    present = {None, UNASSIGNED, *manager.directory_ids}
    recorded = table.directories_of(node_id).values()
    away = Counter(each for each in recorded if each not in present)
    for directory_id, count in away.items():
        _log.error(
            "a log directory is away, and its partitions are offline",
            directory_id=str(directory_id),
            partitions=count,
            remedy="repair or mount its disk, then start the agent again",
        )
    return frozenset(each for each in recorded if each is not None and each != UNASSIGNED)


class LeaderDirectory:
    """Leaders by partition. Belongs to the event loop."""

    def __init__(self, table: LocalLeaders, *, pool: WorkPool, clock: Clock) -> None:
        self._table = table
        self._pool = pool
        self._clock = clock
        self._cache: dict[UUID, tuple[float, MutableMapping[int, LocalLeader]]] = {}
        self._versions: dict[UUID, TopicVersion] = {}  # that the cached leaders had, or an earlier one
        self._version: TopicVersion | None = None
        self._version_until = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._clears = 0
        self._lookups: dict[tuple[UUID, int], asyncio.Task[Mapping[UUID, Mapping[int, LocalLeader]]]] = {}

    def clear(self) -> None:
        """Forget all leaders, because the catalog has begun an epoch: it may have lost assignments."""
        self._clears += 1
        self._cache.clear()
        self._versions.clear()
        self._lookups.clear()
        self._version, self._version_until = None, float("-inf")

    async def of(self, topic: Topic, brokers: Sequence[Broker]) -> Mapping[int, LocalLeader]:
        """Return the leader of each partition of a local topic. Callers at the same time share a lookup.

        Some partitions have none while no live agent has disks.
        """
        now = self._clock.monotonic()
        if self._version_until > now:
            self._confirm(topic)
        until, leaders = self._cache.get(topic.topic_id, _UNKNOWN)
        if until > now:
            return leaders
        key = topic.topic_id, topic.partition_count
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(
                self._find([topic], brokers), name="leaders of a local topic"
            )
            self._lookups[key] = lookup
            lookup.add_done_callback(partial(self._looked_up, key))
        return (await asyncio.shield(lookup))[topic.topic_id]

    def _looked_up(
        self, key: tuple[UUID, int], lookup: asyncio.Task[Mapping[UUID, Mapping[int, LocalLeader]]]
    ) -> None:
        if self._lookups.get(key) is lookup:
            del self._lookups[key]
        if not lookup.cancelled():
            lookup.exception()  # all callers may have been cancelled

    async def refresh(self, topic: Topic, brokers: Sequence[Broker]) -> Mapping[int, LocalLeader]:
        """Return the leader of each partition, as the catalog has it now: a deleted topic has none."""
        return (await self._look_up([topic], brokers))[topic.topic_id]

    async def of_many(
        self, topics: Sequence[Topic], brokers: Sequence[Broker]
    ) -> Mapping[UUID, Mapping[int, LocalLeader]]:
        """Return the leaders of many topics with a few queries.

        If the catalog does not respond, it returns the leaders that were last known.
        """
        found: dict[UUID, Mapping[int, LocalLeader]]
        found = {topic.topic_id: self._cache.get(topic.topic_id, _UNKNOWN)[1] for topic in topics}
        try:
            for start in range(0, len(topics), _MAX_TOPICS_PER_QUERY):
                found.update(await self._find(topics[start : start + _MAX_TOPICS_PER_QUERY], brokers))
        except SiltstoneError as error:
            _log.warning("leaders of local topics could not be looked up", reason=str(error))
        return found

    async def assign(
        self, partition: PartitionId, node_id: int, directory_id: UUID, *, source: UUID = UNASSIGNED
    ) -> UUID | None:
        """Record the directory of a log that is new or was in the directory `source`.

        Return the recorded one, or None if another node leads the partition.
        """
        assign = partial(self._table.assign, node_id, {partition: directory_id}, source=source)
        try:
            recorded = (await self._pool.run(assign)).get(partition)
        except BaseException:
            self._cache.pop(partition.topic_id, None)  # it is not known what is recorded
            raise
        self._note(partition, node_id, recorded)
        return recorded

    def _note(self, partition: PartitionId, node_id: int, recorded: UUID | None) -> None:
        """Note the recorded directory of a partition. A lookup would read the leaders of the whole topic."""
        _, leaders = self._cache.get(partition.topic_id, _UNKNOWN)
        leader = leaders.get(partition.partition)
        if recorded is None or leader is None or leader.node_id != node_id:
            self._cache.pop(partition.topic_id, None)
        else:
            leaders[partition.partition] = replace(leader, directory_id=recorded)

    async def _find(
        self, topics: Sequence[Topic], brokers: Sequence[Broker]
    ) -> Mapping[UUID, Mapping[int, LocalLeader]]:
        """Return the leaders of topics. Look up those that are neither cached nor confirmed."""
        if self._missing(topics):
            await self._read_version()
            for topic in topics:
                self._confirm(topic)
        found: dict[UUID, Mapping[int, LocalLeader]]
        found = {topic.topic_id: self._cache.get(topic.topic_id, _UNKNOWN)[1] for topic in topics}
        missing = self._missing(topics)
        if missing:
            found.update(await self._look_up(missing, brokers))
        return found

    def _missing(self, topics: Sequence[Topic]) -> list[Topic]:
        now = self._clock.monotonic()
        return [topic for topic in topics if self._cache.get(topic.topic_id, _UNKNOWN)[0] <= now]

    def _confirm(self, topic: Topic) -> None:
        """Let the cached leaders of a topic count for as long as the version, if none has changed since."""
        until, leaders = self._cache.get(topic.topic_id, _UNKNOWN)
        if (
            until < self._version_until
            and self._versions.get(topic.topic_id) == self._version
            and len(leaders) == topic.partition_count
        ):
            self._cache[topic.topic_id] = (self._version_until, leaders)

    async def _read_version(self) -> None:
        """Read the version of all leaders unless it is known. Callers at the same time share a statement."""
        if self._version_until > self._clock.monotonic():
            return
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(
                self._read_version_now(), name="version of the leaders of local topics"
            )
            self._reading.add_done_callback(self._read)
        await asyncio.shield(self._reading)

    async def _read_version_now(self) -> None:
        clears = self._clears
        version = await self._pool.run(self._table.version)
        if clears == self._clears:
            self._version, self._version_until = version, self._clock.monotonic() + _CACHE_SECONDS

    def _read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # all callers may have been cancelled

    async def _look_up(
        self, topics: Sequence[Topic], brokers: Sequence[Broker]
    ) -> Mapping[UUID, Mapping[int, LocalLeader]]:
        version, clears = self._version, self._clears  # read before the leaders
        of_topics = partial(self._table.of_topics, [topic.topic_id for topic in topics])
        found = await self._pool.run(of_topics)
        candidates = [broker for broker in brokers if broker.has_local_logs]
        wanted = {
            PartitionId(topic.topic_id, number): choose(
                candidates, partition_subject(topic.topic_id, number)
            ).node_id
            for topic in (topics if candidates else ())
            for number in range(topic.partition_count)
            if number not in found[topic.topic_id]
        }
        if wanted:
            await self._pool.run(partial(self._table.claim, wanted))
            found = await self._pool.run(of_topics)
        if clears != self._clears:
            return found
        if len(self._cache) + len(topics) > _MAX_CACHED_TOPICS:
            self._cache.clear()
            self._versions.clear()
        until = self._clock.monotonic() + _CACHE_SECONDS
        for topic in topics:
            if len(found[topic.topic_id]) == topic.partition_count:
                self._cache[topic.topic_id] = (until, found[topic.topic_id])
                if version is not None:
                    self._versions[topic.topic_id] = version
        return found
