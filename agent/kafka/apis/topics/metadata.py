"""Metadata: describes the brokers, and topics with their partitions.

Versions 0 to 13. Version 0 requests all topics by an empty list, later versions by null. Version 8 added the
authorized operations (KIP-430), version 10 topic ids in responses, version 12 requests by topic id (KIP-516).

A topic that does not exist is created if the client and the configuration allow it. As in Kafka, the response
still says UNKNOWN_TOPIC_OR_PARTITION, and the client asks again (`agent.kafka.automatic_topics`).

Every agent can serve every partition in the object store, so its leader is a hint: an agent of the zone that
the client id names, if there is one. The other replicas are the leaders for clients of other zones. A
partition of a local topic is led by the agent that has its log.

While the catalog is unavailable, named topics are described as last seen, as by a Kafka broker without a
controller. A topic that this agent has not seen is LEADER_NOT_AVAILABLE, so that clients retry. A request for
all topics gets a response without brokers, which clients ignore; they would believe a list of fewer topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.topics.metadata_lookup import find_requested_topics, visible_topics
from agent.kafka.authorization import authorized_operations, cluster_operations
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.placement import placements_of
from agent.runtime.cooperative_yield import CooperativeYield
from catalog.security.acl_bindings import ResourceType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.placement import Placement
    from catalog.model import Broker, Topic


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe the brokers and the requested topics."""
    services = context.services
    brokers = await services.brokers.live_on(context.client.listener)
    if request.topics is None or (context.version == 0 and not request.topics):
        topics = await _describe_all(await visible_topics(context), request, brokers, context)
    else:
        found = await find_requested_topics(request, context)
        described = iter(
            await _describe_all(
                [each for each in found if not isinstance(each, ErrorCode)], request, brokers, context
            )
        )
        topics = [
            _missing(each, wanted, context) if isinstance(each, ErrorCode) else next(described)
            for wanted, each in zip(request.topics, found, strict=True)
        ]
    return Struct(
        brokers=describe_brokers(brokers),
        cluster_id=services.brokers.cluster_id,
        controller_id=brokers[0].node_id,  # any broker could serve its requests
        topics=topics,
        cluster_authorized_operations=cluster_operations(
            context, requested=request.include_cluster_authorized_operations
        ),
    )


def describe_brokers(brokers: Sequence[Broker]) -> list[Struct]:
    """Return the brokers as Metadata lists them."""
    return [
        Struct(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
        for broker in brokers
    ]


def _missing(code: ErrorCode, wanted: Struct, context: RequestContext) -> Struct:
    """Return the error entry of a topic. Before version 12 its name cannot be null."""
    is_named = wanted.name is not None and (context.version < 12 or wanted.topic_id is None)
    name = wanted.name if is_named else None if context.version >= 12 else ""
    return Struct(error_code=code, name=name, topic_id=wanted.topic_id)


async def _describe_all(
    topics: Sequence[Topic], request: Struct, brokers: Sequence[Broker], context: RequestContext
) -> list[Struct]:
    """Describe topics with all their partitions."""
    with_operations = request.include_topic_authorized_operations
    yielding, described = CooperativeYield(), []
    for placement in await placements_of(topics, brokers, context):
        described.append(
            Struct(
                name=placement.topic.name,
                topic_id=placement.topic.topic_id,
                partitions=await _partitions(placement, yielding),
                topic_authorized_operations=authorized_operations(
                    context, ResourceType.TOPIC, placement.topic.name, requested=with_operations
                ),
            )
        )
        await yielding.step()
    return described


async def _partitions(placement: Placement, yielding: CooperativeYield) -> list[Struct]:
    parts = []
    for partition in range(placement.topic.partition_count):
        steps = placement.steps_of(partition)
        parts.append(placement.describe(partition))
        await yielding.step(steps)
    return parts


API = Api(name="metadata", min_version=0, max_version=13, handle=handle)
