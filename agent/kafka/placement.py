"""The leader and replicas that clients see for each partition.

Any agent can serve a topic in the object store. Its leader is a hint, chosen by the client's zone. The leader
of a local topic is the node that has the log; while that node is down, the partition has no leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.cluster.brokers import partition_subject, replicas, zone_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Broker, Topic
    from catalog.topics.local_leaders import LocalLeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Leaders and replicas of one topic, as one client sees them.

    `epoch` is the leader epoch of partitions in the object store.
    """

    topic: Topic
    epoch: int
    brokers: Sequence[Broker]
    zone: str | None
    leaders: Mapping[int, LocalLeader]

    def describe(self, partition: int) -> Struct:
        """Return a partition for the responses of Metadata and DescribeTopicPartitions."""
        if self.topic.is_local:
            return self._describe_local(partition)
        subject = partition_subject(self.topic.topic_id, partition)
        nodes = [each.node_id for each in replicas(self.brokers, subject, self.zone)]
        return Struct(
            partition_index=partition,
            leader_id=nodes[0],
            leader_epoch=self.epoch,
            replica_nodes=nodes,
            isr_nodes=nodes,
        )

    def _describe_local(self, partition: int) -> Struct:
        leader = self.leaders.get(partition)
        nodes = [] if leader is None else [leader.node_id]
        epoch = -1 if leader is None else leader.leader_epoch
        if leader is None or all(broker.node_id != leader.node_id for broker in self.brokers):
            return Struct(
                error_code=ErrorCode.leader_not_available,
                partition_index=partition,
                leader_id=-1,
                leader_epoch=epoch,
                replica_nodes=nodes,
                isr_nodes=nodes,
                offline_replicas=nodes,
            )
        return Struct(
            partition_index=partition,
            leader_id=leader.node_id,
            leader_epoch=epoch,
            replica_nodes=nodes,
            isr_nodes=nodes,
        )


async def placements_of(
    topics: Sequence[Topic], brokers: Sequence[Broker], context: RequestContext
) -> list[Placement]:
    """Return the placement of each topic for the client. Leaders of local topics may be as last known."""
    local = [topic for topic in topics if topic.is_local]
    leaders = await context.services.leaders.of_many(local, brokers) if local else {}
    zone, epoch = zone_of(context.client_id), context.services.epoch.current
    return [
        Placement(
            topic=topic, epoch=epoch, brokers=brokers, zone=zone, leaders=leaders.get(topic.topic_id, {})
        )
        for topic in topics
    ]


async def prefetch_leaders(topics: Iterable[Topic | SiltstoneError], context: RequestContext) -> None:
    """Look up the leaders of local topics together, which saves a lookup for each later."""
    local = [topic for topic in topics if not isinstance(topic, SiltstoneError) and topic.is_local]
    if len(local) > 1:
        services = context.services
        await services.leaders.of_many(local, await services.brokers.live())
