"""DeleteTopics: deletes topics.

Versions 1 to 6. Version 5 added error messages (KIP-599), version 6 topic ids (KIP-516). From version 5 on, a
quota of mutations is strict.

The topic is deleted when the response is sent. A topic that was not processed within the request's timeout is
REQUEST_TIMED_OUT and is not deleted. The right is checked again before each one.

The agent looks up all topics before it deletes any. A topic that is named twice, or by its name and by its
id, is not deleted. As in Kafka, the response then has one entry for it.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from agent.kafka.api_definition import Api
from agent.kafka.apis.topics.request_deadline import RequestDeadline
from agent.kafka.authorization import current_acls, is_allowed, refusal, refused_names, require_again
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of, to_kafka_error
from agent.kafka.throttling import MutationCharges
from agent.security.rights import DELETE_IN_CLUSTER, DELETE_TOPIC, DESCRIBE_TOPIC
from catalog.errors import TopicNotFoundError
from core.errors import NotFoundError, SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from agent.kafka.api_definition import RequestContext
    from agent.security.acl_rules import AclIndex
    from catalog.model import Topic

Key: TypeAlias = "tuple[str | None, UUID | None]"
_STRICT_SINCE = 5
_TOPIC_IDS_SINCE = 6


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Delete each topic, or report why not."""
    if context.version < _TOPIC_IDS_SINCE:
        wanted: list[Key] = [(name, None) for name in request.topic_names]
    else:
        wanted = [(each.name, each.topic_id) for each in request.topics]
    deadline = RequestDeadline(request.timeout, context.services.clock)
    responses: list[Struct] = []
    named: dict[UUID, Topic] = {}
    times = Counter({topic_id: count for (name, topic_id), count in Counter(wanted).items() if name is None})
    found = await _find(Counter(wanted), context)
    acls = current_acls(context)
    refused = await _refused(found, context)
    for (name, topic_id), topic in found.items():
        if (refused_entry := refused.get((name, topic_id))) is not None:
            responses.append(refused_entry)
            continue
        if isinstance(topic, SiltstoneError):
            responses.append(_failed(name, topic_id, topic))
            continue
        named[topic.topic_id] = topic
        times[topic.topic_id] += name is not None
    charges = MutationCharges(context, strict_since=_STRICT_SINCE)
    for topic_id, topic in named.items():
        check = partial(_check_again, topic, deadline, acls, context)
        responses.append(await _delete(topic, times[topic_id], check, charges, context))
    return Struct(responses=responses, throttle_time=charges.throttle_ms)


async def _find(wanted: Mapping[Key, int], context: RequestContext) -> dict[Key, Topic | SiltstoneError]:
    """Return the topic or the error of each key. Names need one lookup in the catalog, and ids one."""
    topics, run = context.services.catalog.topics, context.services.pools.catalog.run
    found: dict[Key, Topic | SiltstoneError] = {}
    names: dict[str, Key] = {}
    ids: dict[UUID, Key] = {}
    for key, times in wanted.items():
        name, topic_id = key
        found[key] = KafkaError(ErrorCode.invalid_request, "name a topic by its name or by its id")
        if times > 1:
            found[key] = KafkaError(ErrorCode.invalid_request, "the topic is named twice")
        elif name is not None and topic_id is None:
            names[name] = key
            found[key] = TopicNotFoundError(f"there is no topic {name!r}")
        elif name is None and topic_id is not None:
            ids[topic_id] = key
            found[key] = TopicNotFoundError(f"there is no topic with id {topic_id}")
    try:
        if names:
            found |= {names[each.name]: each for each in await run(partial(topics.by_names, list(names)))}
        if ids:
            # The catalog returns current names. A name that the directory remembers may be another topic's.
            found |= {ids[each.topic_id]: each for each in await run(partial(topics.by_ids, list(ids)))}
    except SiltstoneError as error:
        return found | dict.fromkeys([*names.values(), *ids.values()], to_kafka_error(error))
    return found


async def _refused(found: Mapping[Key, Topic | SiltstoneError], context: RequestContext) -> dict[Key, Struct]:
    """Return the responses for topics that the client may not delete (Kafka's ControllerApis.deleteTopics).

    An id that the client may not describe gets no name, and a name never gets an id. A name that the client
    may not describe gets the same response whether the topic exists or not.
    """
    if is_allowed(context, DELETE_IN_CLUSTER, log_denied=False):
        return {}
    names = {key: name for key, topic in found.items() if (name := _name_of(key, topic)) is not None}
    undeletable = await refused_names(context, DELETE_TOPIC, names.values())
    hidden = await refused_names(context, DESCRIBE_TOPIC, undeletable, log_denied=False)
    responses: dict[Key, Struct] = {}
    for (given, topic_id), name in names.items():
        exists = not isinstance(found[given, topic_id], SiltstoneError)
        if name in hidden or (name in undeletable and exists):
            shown = name if given is not None or name not in hidden else None
            code, message = refusal(DELETE_TOPIC).code, refusal(DELETE_TOPIC).message
            responses[given, topic_id] = Struct(
                name=shown, topic_id=topic_id, error_code=code, error_message=message
            )
    return responses


def _name_of(key: Key, topic: Topic | SiltstoneError) -> str | None:
    """Return the name of the topic of an entry; None if the entry is invalid or its id unknown."""
    if isinstance(topic, KafkaError):
        return None
    name, _ = key
    return name if isinstance(topic, SiltstoneError) else topic.name


def _check_again(
    topic: Topic, deadline: RequestDeadline, acls: AclIndex | None, context: RequestContext
) -> None:
    """Raise if it is too late to delete the topic, or if the right was revoked since the first check."""
    deadline.check()
    if not is_allowed(context, DELETE_IN_CLUSTER, log_denied=False):
        require_again(context, acls, DELETE_TOPIC, topic.name)


async def _delete(
    topic: Topic,
    times: int,
    check: Callable[[], None],
    charges: MutationCharges,
    context: RequestContext,
) -> Struct:
    services = context.services
    try:
        if times > 1:
            raise KafkaError(ErrorCode.invalid_request, "the topic is named by its name and by its id")
        check()
        charges.require(topic.partition_count)
        await services.pools.catalog.run(partial(services.catalog.topics.delete, topic.name, topic.topic_id))
        services.directory.invalidate(topic.name)
    except SiltstoneError as error:
        return _failed(topic.name, topic.topic_id, error)
    return Struct(name=topic.name, topic_id=topic.topic_id)


def _failed(name: str | None, topic_id: UUID | None, error: SiltstoneError) -> Struct:
    is_unknown_id = topic_id is not None and isinstance(error, NotFoundError)
    return Struct(
        name=name,
        topic_id=topic_id,
        error_code=ErrorCode.unknown_topic_id if is_unknown_id else code_of(error),
        error_message=message_of(error),
    )


API = Api(name="delete_topics", min_version=1, max_version=6, handle=handle)
