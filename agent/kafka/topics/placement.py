"""Which agents a client is told to send a partition's requests to.

Of a topic whose home is the object store the leader is a hint, by zone. Of a local topic it is the node that
has the log; while that one is away, there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.cluster.brokers import partition_subject, replicas, zone_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.topics.lookup import LEADER_EPOCH
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Broker, Topic
    from catalog.topics.local_leaders import LocalLeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the partitions of one topic are, as one client sees them."""

    topic: Topic
    brokers: Sequence[Broker]
    zone: str | None
    leaders: Mapping[int, LocalLeader]

    def describe(self, partition: int) -> Struct:
        """A partition as Metadata and DescribeTopicPartitions show it."""
        if self.topic.is_local:
            return self._describe_local(partition)
        subject = partition_subject(self.topic.topic_id, partition)
        nodes = [each.node_id for each in replicas(self.brokers, subject, self.zone)]
        return Struct(
            partition_index=partition,
            leader_id=nodes[0],
            leader_epoch=LEADER_EPOCH,
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
    """Where topics' partitions are for the client that asks; of local ones as last known, at the worst."""
    local = [topic for topic in topics if topic.is_local]
    leaders = await context.services.leaders.of_many(local, brokers) if local else {}
    zone = zone_of(context.client_id)
    return [
        Placement(topic=topic, brokers=brokers, zone=zone, leaders=leaders.get(topic.topic_id, {}))
        for topic in topics
    ]


async def learn_leaders(topics: Iterable[Topic | SiltstoneError], context: RequestContext) -> None:
    """Look up together who leads the local ones: otherwise each would be, when its log is asked."""
    local = [topic for topic in topics if not isinstance(topic, SiltstoneError) and topic.is_local]
    if len(local) > 1:
        services = context.services
        await services.leaders.of_many(local, await services.brokers.live())
