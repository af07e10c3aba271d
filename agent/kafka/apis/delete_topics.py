"""DeleteTopics.

Versions 1 to 6; version 6 takes identifiers as well as names. The topic is gone when the answer comes.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from bedrock.errors import NotFoundError, SiltstoneError

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
    named = Counter(wanted)
    return Struct(
        responses=[await _delete(name, topic_id, named[name, topic_id], context) for name, topic_id in named]
    )


async def _delete(name: str | None, topic_id: UUID | None, times: int, context: Context) -> Struct:
    services = context.services
    topics, run = services.catalog.topics, services.pools.catalog.run
    try:
        if (name is None) == (topic_id is None):
            raise KafkaError(ErrorCode.invalid_request, "a topic is named by its name or its identifier")
        if times > 1:
            raise KafkaError(ErrorCode.invalid_request, "the topic is named twice")
        if topic_id is not None:
            # The name that it has now, and not a moment ago: another topic may have that.
            name = (await run(partial(topics.by_id, topic_id))).name
        deleted = await run(partial(topics.delete, name or "", topic_id))
        services.directory.forget(name or "")
    except SiltstoneError as error:
        is_unknown_id = topic_id is not None and isinstance(error, NotFoundError)
        return Struct(
            name=name,
            topic_id=topic_id,
            error_code=ErrorCode.unknown_topic_id if is_unknown_id else code_of(error),
            error_message=message_of(error),
        )
    return Struct(name=name, topic_id=deleted)


API = Api(name="delete_topics", lowest=1, highest=6, handle=handle)
