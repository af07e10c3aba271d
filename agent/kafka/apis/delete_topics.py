"""DeleteTopics.

Versions 1 to 6; version 6 takes identifiers as well as names. The topic is gone when the answer comes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from agent.kafka.topics import find_topic
from bedrock.errors import SiltstoneError

if TYPE_CHECKING:
    from uuid import UUID

    from agent.kafka.api import Context

_IDENTIFIERS_SINCE = 6


async def handle(request: Struct, context: Context) -> Struct:
    """Delete each topic, or say why not."""
    if context.version < _IDENTIFIERS_SINCE:
        wanted: list[tuple[str | None, UUID | None]] = [(name, None) for name in request.topic_names]
    else:
        wanted = [(each.name, each.topic_id) for each in request.topics]
    return Struct(responses=[await _delete(name, topic_id, context) for name, topic_id in wanted])


async def _delete(name: str | None, topic_id: UUID | None, context: Context) -> Struct:
    services = context.services
    try:
        if (name is None) == (topic_id is None):
            raise KafkaError(ErrorCode.invalid_request, "a topic is named by its name or its identifier")
        topic = await find_topic(services.directory, name or "", topic_id, by_id=name is None)
        await services.pools.catalog.run(partial(services.catalog.topics.delete, topic.name))
        services.directory.forget(topic.name)
    except SiltstoneError as error:
        return Struct(
            name=name, topic_id=topic_id, error_code=code_of(error), error_message=message_of(error)
        )
    return Struct(name=topic.name, topic_id=topic.topic_id)


API = Api(name="delete_topics", lowest=1, highest=6, handle=handle)
