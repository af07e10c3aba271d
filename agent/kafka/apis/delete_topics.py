"""DeleteTopics.

Versions 1 to 6; version 6 takes identifiers as well as names. The topic is gone when the answer comes.

Topics are looked up before any is deleted: one that is named by its name and by its identifier stays, as one
that is named twice. As in Kafka, there is one answer for both then.
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
    from catalog.model import Topic

_IDENTIFIERS_SINCE = 6


async def handle(request: Struct, context: Context) -> Struct:
    """Delete each topic, or say why not."""
    if context.version < _IDENTIFIERS_SINCE:
        wanted: list[tuple[str | None, UUID | None]] = [(name, None) for name in request.topic_names]
    else:
        wanted = [(each.name, each.topic_id) for each in request.topics]
    answers: list[Struct] = []
    found: list[Topic] = []
    times = Counter({topic_id: count for (name, topic_id), count in Counter(wanted).items() if name is None})
    for (name, topic_id), count in Counter(wanted).items():
        try:
            topic = await _find(name, topic_id, count, context)
        except SiltstoneError as error:
            answers.append(_refused(name, topic_id, error))
            continue
        found.append(topic)
        times[topic.topic_id] += name is not None
    named = {topic.topic_id: topic for topic in found}
    done = [await _delete(topic, times[topic_id], context) for topic_id, topic in named.items()]
    return Struct(responses=answers + done)


async def _find(name: str | None, topic_id: UUID | None, times: int, context: Context) -> Topic:
    topics, run = context.services.catalog.topics, context.services.pools.catalog.run
    if times > 1:
        raise KafkaError(ErrorCode.invalid_request, "the topic is named twice")
    if name is not None and topic_id is None:
        return await run(partial(topics.get, name))
    if name is None and topic_id is not None:
        # The name that it has now, and not a moment ago: another topic may have that.
        return await run(partial(topics.by_id, topic_id))
    raise KafkaError(ErrorCode.invalid_request, "a topic is named by its name or its identifier")


async def _delete(topic: Topic, times: int, context: Context) -> Struct:
    services = context.services
    try:
        if times > 1:
            raise KafkaError(ErrorCode.invalid_request, "the topic is named by its name and its identifier")
        await services.pools.catalog.run(partial(services.catalog.topics.delete, topic.name, topic.topic_id))
        services.directory.forget(topic.name)
    except SiltstoneError as error:
        return _refused(topic.name, topic.topic_id, error)
    return Struct(name=topic.name, topic_id=topic.topic_id)


def _refused(name: str | None, topic_id: UUID | None, error: SiltstoneError) -> Struct:
    is_unknown_id = topic_id is not None and isinstance(error, NotFoundError)
    return Struct(
        name=name,
        topic_id=topic_id,
        error_code=ErrorCode.unknown_topic_id if is_unknown_id else code_of(error),
        error_message=message_of(error),
    )


API = Api(name="delete_topics", lowest=1, highest=6, handle=handle)
