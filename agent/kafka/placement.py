"""The leader and replicas that clients see for each partition.

Any agent can serve a topic in the object store. Its leader is a hint, chosen by the client's zone. The leader
of a local topic is the node that has the log; while that node is down, the partition has no leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.cluster.brokers import zone_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from agent.cluster.replica_cache import ReplicaTable
    from agent.kafka.api_definition import RequestContext
    from catalog.model import Broker, Topic
    from catalog.topics.local_leaders import LocalLeader


_LISTENER_NOT_FOUND_VERSION: Final = 6  # of Metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Leaders and replicas of one topic, as one client sees them.

    `epoch` and `replicas` are those of partitions in the object store. `brokers` are those on the client's
    listener, and `live_nodes` has the node ids of all. `no_listener` is the error for a leader that is not on
    the listener.
    """

    topic: Topic
    epoch: int
    brokers: Sequence[Broker]
    live_nodes: AbstractSet[int]
    no_listener: ErrorCode
    replicas: ReplicaTable
    leaders: Mapping[int, LocalLeader]

    def steps_of(self, partition: int) -> int:
        """Return the steps of work (see `CooperativeYield`) that `describe` takes."""
        return 1 if self.topic.is_local else 1 + self.replicas.steps_of(self.topic.topic_id, partition)

    def describe(self, partition: int) -> Struct:
        """Return a partition for the responses of Metadata and DescribeTopicPartitions."""
        if self.topic.is_local:
            return self._describe_local(partition)
        nodes = self.replicas.of(self.topic.topic_id, partition)
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
            is_live = leader is not None and leader.node_id in self.live_nodes
            return Struct(
                error_code=self.no_listener if is_live else ErrorCode.leader_not_available,
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
    """Return the placement of each topic for the client. Leaders of local topics may be as last known.

    `brokers` are those on the client's listener.
    """
    local = [topic for topic in topics if topic.is_local]
    live = await context.services.brokers.live()
    leaders = await context.services.leaders.of_many(local, live) if local else {}
    # As in Kafka's Metadata. The only version of DescribeTopicPartitions is 0.
    has_error = context.version >= _LISTENER_NOT_FOUND_VERSION
    no_listener = ErrorCode.listener_not_found if has_error else ErrorCode.leader_not_available
    replicas = context.services.replicas.among(brokers, zone_of(context.client_id))
    epoch = context.services.epoch.current
    live_nodes = frozenset(broker.node_id for broker in live)
    return [
        Placement(
            topic=topic,
            epoch=epoch,
            brokers=brokers,
            live_nodes=live_nodes,
            no_listener=no_listener,
            replicas=replicas,
            leaders=leaders.get(topic.topic_id, {}),
        )
        for topic in topics
    ]


async def prefetch_leaders(topics: Iterable[Topic | SiltstoneError], context: RequestContext) -> None:
    """Look up the leaders of local topics together, which saves a lookup for each later."""
    local = [topic for topic in topics if not isinstance(topic, SiltstoneError) and topic.is_local]
    if len(local) > 1:
        services = context.services
        await services.leaders.of_many(local, await services.brokers.live())
