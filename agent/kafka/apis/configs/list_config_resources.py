"""ListConfigResources (KIP-1142): lists the resources that have settings.

Versions 0 and 1. Version 0 lists only subscriptions to client metrics, and an agent has none. Version 1 added
resource types. Groups are listed if a setting of theirs was changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.configs.resources import ResourceType
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from agent.security.rights import DESCRIBE_CLUSTER_CONFIGS

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_TYPES_SINCE = 1


async def handle(request: Struct, context: RequestContext) -> Struct:
    """List the resources of the requested types, or of all types."""
    require(context, DESCRIBE_CLUSTER_CONFIGS)
    known = set(ResourceType) if context.version >= _TYPES_SINCE else {ResourceType.CLIENT_METRICS}
    requested = set(request.resource_types) or known
    if not requested <= known:
        raise KafkaError(ErrorCode.unsupported_version)
    return Struct(
        config_resources=[
            Struct(resource_name=name, resource_type=kind)
            for kind in sorted(ResourceType(each) for each in requested)
            for name in await _names(kind, context)
        ]
    )


async def _names(kind: ResourceType, context: RequestContext) -> list[str]:
    services = context.services
    if kind is ResourceType.TOPIC:
        return [each.name for each in await services.directory.all()]
    if kind is ResourceType.GROUP:
        return list(await services.pools.catalog.run(services.catalog.group_configs.list))
    if kind is ResourceType.CLIENT_METRICS:
        return []
    return [str(each.node_id) for each in await services.brokers.live()]


API = Api(name="list_config_resources", min_version=0, max_version=1, handle=handle)
