"""DescribeCluster (KIP-700): lists the live brokers.

Versions 0 to 2. Version 1 added the endpoint type (KIP-919), version 2 fenced brokers (KIP-1073).

Agents have no controller endpoint, and fenced agents are never listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import cluster_operations
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_BROKERS, _CONTROLLERS = 1, 2


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe the live brokers."""
    if request.endpoint_type == _CONTROLLERS:
        raise KafkaError(ErrorCode.mismatched_endpoint_type, "this endpoint is a broker, not a controller")
    if request.endpoint_type != _BROKERS:
        raise KafkaError(
            ErrorCode.unsupported_endpoint_type, f"there are no endpoints of type {request.endpoint_type}"
        )
    brokers = await context.services.brokers.live_on(context.client.listener)
    return Struct(
        cluster_id=context.services.brokers.cluster_id,
        controller_id=brokers[0].node_id,  # any broker could serve its requests
        brokers=[
            Struct(broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in brokers
        ],
        cluster_authorized_operations=cluster_operations(
            context, requested=request.include_cluster_authorized_operations
        ),
    )


API = Api(name="describe_cluster", min_version=0, max_version=2, handle=handle)
