"""IncrementalAlterConfigs (KIP-339): changes single settings of a topic.

Versions 0 and 1. Only topics have settings that can be changed. Items are appended to, and taken from, lists
as they are when the request comes; two such requests at the same moment may miss each other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.apis.alter_configs import change, topic_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from agent.kafka.resources import require_topic
from bedrock.errors import SiltstoneError
from catalog.topic_config import SETTINGS

if TYPE_CHECKING:
    from agent.kafka.api import Context
    from catalog.topic_config import TopicConfig

_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


async def handle(request: Struct, context: Context) -> Struct:
    """Change each resource, or say why not."""
    responses = []
    for wanted in request.resources:
        answer = Struct(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        try:
            require_topic(wanted.resource_type)
            topic = await topic_of(wanted, context)
            names = Counter(each.name for each in wanted.configs)
            if names and max(names.values()) > 1:
                raise KafkaError(ErrorCode.invalid_request, "a setting is named twice")
            changes = {each.name: _new_value(topic.config, each) for each in wanted.configs}
            await change(topic, changes, context, validate_only=request.validate_only)
        except SiltstoneError as error:
            answer.error_code, answer.error_message = code_of(error), message_of(error)
        responses.append(answer)
    return Struct(responses=responses)


def _new_value(config: TopicConfig, wanted: Struct) -> str | None:
    operation, name, value = wanted.config_operation, wanted.name, wanted.value
    if operation == _DELETE:
        return None
    if value is None:
        raise KafkaError(ErrorCode.invalid_request, f"setting {name} is given no value")
    text = str(value)
    if operation == _SET:
        return text
    if operation not in {_APPEND, _SUBTRACT}:
        raise KafkaError(ErrorCode.invalid_request, f"there is no operation {operation}")
    if name not in SETTINGS or SETTINGS[name].kind != "list":
        raise KafkaError(ErrorCode.invalid_config, f"setting {name} is not a list")
    named = [item.strip() for item in text.split(",")]
    kept = [item for item in config.text(name).split(",") if item not in named]
    return ",".join([*kept, *named] if operation == _APPEND else kept)


API = Api(name="incremental_alter_configs", lowest=0, highest=1, handle=handle)
