"""AlterPartitionReassignments (KIP-455): accepts the replicas that a partition has, and refuses others.

Versions 0 and 1. Version 1 added `allow_replication_factor_change`, which has no meaning here: a partition
has one replica. `kafka-reassign-partitions` sends the present replicas together with new log directories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.placement import placements_of
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import ALTER_CLUSTER

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from agent.kafka.placement import Placement

_REFUSED = "a partition in the object store has nothing to move, and a local one stays on its agent"


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Compare the wanted replicas of each partition with the present ones."""
    require(context, ALTER_CLUSTER)
    services = context.services
    known = await services.directory.get_many(topic.name for topic in request.topics)
    brokers = await services.brokers.live_on(context.client.listener)
    placements = {
        each.topic.name: each for each in await placements_of(list(known.values()), brokers, context)
    }
    responses, yielding = [], CooperativeYield()
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            partitions.append(_compare(wanted, placements.get(topic.name)))
            await yielding.step()
        responses.append(Struct(name=topic.name, partitions=partitions))
    return Struct(responses=responses)


def _compare(wanted: Struct, placement: Placement | None) -> Struct:
    result = Struct(partition_index=wanted.partition_index)
    if placement is None or not 0 <= wanted.partition_index < placement.topic.partition_count:
        result.error_code = ErrorCode.unknown_topic_or_partition
    elif wanted.replicas is None:
        result.error_code = ErrorCode.no_reassignment_in_progress
    elif list(wanted.replicas) != list(placement.describe(wanted.partition_index).replica_nodes):
        result.error_code, result.error_message = ErrorCode.invalid_replica_assignment, _REFUSED
    return result


API = Api(name="alter_partition_reassignments", min_version=0, max_version=1, handle=handle)
