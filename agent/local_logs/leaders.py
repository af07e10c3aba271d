"""Which node leads the partitions of a local topic: looked up, remembered for a moment, and settled when new.

A partition that nobody leads yet is given to a live agent that has disks, by rendezvous hashing; whoever asks
the catalog first decides for all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.brokers import choose, partition_subject
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from agent.work_pool import WorkPool
    from bedrock.clock import Clock
    from catalog.local_leaders import LocalLeader, LocalLeaders
    from catalog.model import Broker, Topic

_KEEP_SECONDS = 1.0
_MOST_REMEMBERED = 100_000


class LeaderDirectory:
    """Leaders by partition. Belongs to the event loop."""

    def __init__(self, table: LocalLeaders, *, pool: WorkPool, clock: Clock) -> None:
        self._table = table
        self._pool = pool
        self._clock = clock
        self._known: dict[UUID, tuple[float, Mapping[int, LocalLeader]]] = {}

    async def of(self, topic: Topic, brokers: Sequence[Broker]) -> Mapping[int, LocalLeader]:
        """The leader of each partition of a local topic; without live agents that have disks, of some."""
        known = self._known.get(topic.topic_id)
        if known is not None and known[0] > self._clock.monotonic():
            return known[1]
        found = await self._pool.run(partial(self._table.of_topic, topic.topic_id))
        candidates = [broker for broker in brokers if broker.has_local_logs]
        missing = [number for number in range(topic.partition_count) if number not in found]
        if missing and candidates:
            wanted = {
                PartitionId(topic.topic_id, number): choose(
                    candidates, partition_subject(topic.topic_id, number)
                ).node_id
                for number in missing
            }
            await self._pool.run(partial(self._table.claim, wanted))
            found = await self._pool.run(partial(self._table.of_topic, topic.topic_id))
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        if len(found) == topic.partition_count:
            self._known[topic.topic_id] = (self._clock.monotonic() + _KEEP_SECONDS, found)
        return found
