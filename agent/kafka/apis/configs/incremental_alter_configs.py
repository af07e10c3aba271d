"""IncrementalAlterConfigs (KIP-339): changes single settings of a topic, of a consumer group or of a broker.

Versions 0 and 1. Version 1 is the first flexible one. Of a broker, only the settings in
`catalog.config.broker_definitions` can be set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.configs.changes import alter_resources
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from catalog.config.schema import split_list

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from agent.kafka.apis.configs.changes import Changes, ChangesOf
    from catalog.config.values import ResourceConfig

_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Change each resource, or report why not."""
    return Struct(responses=await alter_resources(request, context, _change_some, nullable=(_DELETE,)))


def _change_some(wanted: Struct) -> ChangesOf:
    def changes(config: ResourceConfig) -> Changes:
        # As in Kafka, the deletion of an unknown setting is not an error.
        return {
            each.name: _new_value(config, each)
            for each in wanted.configs
            if each.config_operation != _DELETE or each.name in config.schema
        }

    return changes


def _new_value(config: ResourceConfig, wanted: Struct) -> str | None:
    operation, name = wanted.config_operation, wanted.name
    if operation == _DELETE:
        return None
    text = str(wanted.value)
    if operation == _SET:
        return text
    if operation not in {_APPEND, _SUBTRACT}:
        raise KafkaError(ErrorCode.invalid_request, f"there is no operation {operation}")
    if name not in config.schema or not config.schema[name].is_list:
        raise KafkaError(ErrorCode.invalid_config, f"setting {name} is not a list")
    current, changed = split_list(config.text(name)), split_list(text)
    if operation == _SUBTRACT:
        return ",".join(item for item in current if item not in changed)
    return ",".join([*current, *(item for item in changed if item not in current)])


API = Api(name="incremental_alter_configs", min_version=0, max_version=1, handle=handle)
