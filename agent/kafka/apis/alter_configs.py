"""AlterConfigs: replaces all settings of a topic.

Versions 0 to 2. What is not named goes back to its default. Only topics have settings that can be changed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import code_of, message_of
from agent.kafka.resources import require_topic
from bedrock.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.kafka.api import Context
    from catalog.model import Topic


async def handle(request: Struct, context: Context) -> Struct:
    """Change each resource, or say why not."""
    responses = []
    for wanted in request.resources:
        answer = Struct(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        try:
            require_topic(wanted.resource_type)
            topic = await topic_of(wanted, context)
            changes = dict.fromkeys(topic.config.as_strings())
            changes.update({each.name: each.value for each in wanted.configs})
            await change(topic, changes, context, validate_only=request.validate_only)
        except SiltstoneError as error:
            answer.error_code, answer.error_message = code_of(error), message_of(error)
        responses.append(answer)
    return Struct(responses=responses)


async def topic_of(wanted: Struct, context: Context) -> Topic:
    """The topic that a resource names, as it is now."""
    get = partial(context.services.catalog.topics.get, wanted.resource_name)
    return await context.services.pools.catalog.run(get)


async def change(
    topic: Topic, changes: Mapping[str, str | None], context: Context, *, validate_only: bool
) -> None:
    """Make the changes, None taking a setting back to its default; or only see whether they are allowed."""
    topic.config.altered(changes)
    if not validate_only:
        alter = partial(context.services.catalog.topics.alter_config, topic.name, changes)
        await context.services.pools.catalog.run(alter)
        context.services.directory.forget(topic.name)


API = Api(name="alter_configs", lowest=0, highest=2, handle=handle)
