"""AlterConfigs: replaces all settings of a topic, of a consumer group or of a broker.

Versions 0 to 2. Version 2 is the first flexible one. A setting that the request does not name gets its
default. The exception is `storage.mode` of a topic, which Kafka clients do not know and which cannot change.
Of a broker, only those in `catalog.config.broker_definitions` can be set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.configs.changes import alter_resources
from agent.kafka.codec import Struct

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from agent.kafka.apis.configs.changes import Changes, ChangesOf
    from catalog.config.values import ResourceConfig

_IMMUTABLE = "storage.mode"


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Change each resource, or report why not."""
    return Struct(responses=await alter_resources(request, context, _replace_all, nullable=()))


def _replace_all(wanted: Struct) -> ChangesOf:
    def changes(config: ResourceConfig) -> Changes:
        removed = dict.fromkeys(name for name in config.as_strings() if name != _IMMUTABLE)
        return {**removed, **{each.name: each.value for each in wanted.configs}}

    return changes


API = Api(name="alter_configs", min_version=0, max_version=2, handle=handle)
