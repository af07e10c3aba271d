"""Lookup of the topics that Metadata and DescribeTopicPartitions name, with automatic creation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import structlog

from agent.kafka.authorization import is_allowed, listed_names, refusal, refused_names
from agent.kafka.errors import ErrorCode
from agent.kafka.throttling import MutationCharges
from agent.security.rights import CREATE_IN_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC
from catalog.errors import InvalidTopicError
from catalog.topics.names import check_topic_name
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct
    from catalog.model import Topic

Key = TypeVar("Key", str, UUID)
_log = structlog.get_logger(__name__)
# A catalog call may hang longer than clients wait for a response, which is 30 s.
_LOOKUP_TIMEOUT_SECONDS = 10.0


async def find_requested_topics(request: Struct, context: RequestContext) -> list[Topic | ErrorCode]:
    """Return the topic, or the error code, for each topic that a Metadata request names."""
    keys = [_key(wanted, context) for wanted in request.topics]
    directory = context.services.directory
    names = [key for key in keys if isinstance(key, str)]
    ids = [key for key in keys if isinstance(key, UUID)]
    by_name = await _find_by_name(names, context)
    by_id = await _look_up(
        ids, directory.get_many_by_id, directory.last_known_by_id, ErrorCode.unknown_topic_id
    )
    described = {topic.name for topic in by_id.values() if not isinstance(topic, ErrorCode)}
    refused = await refused_names(context, DESCRIBE_TOPIC, described)
    for topic_id, topic in by_id.items():
        if not isinstance(topic, ErrorCode) and topic.name in refused:
            by_id[topic_id] = refusal(DESCRIBE_TOPIC).code
    if request.allow_auto_topic_creation and context.services.settings.auto_create_topics:
        await _create_missing(by_name, context)
    return [
        by_name[key] if isinstance(key, str) else by_id[key] if isinstance(key, UUID) else key for key in keys
    ]


def _create(names: Iterable[str], context: RequestContext) -> None:
    """Begin to create topics, as far as the client's quota of mutations allows. The client asks again."""
    topics = context.services.automatic_topics
    charges = MutationCharges(context, strict_since=0)
    for name in names:
        if topics.can_create(name) and charges.charge(name, topics.partitions):
            topics.create(name)


async def find_topics_by_name(names: Iterable[str], context: RequestContext) -> dict[str, Topic | ErrorCode]:
    """Return the topic or the error code for each name. No topic is created."""
    found: dict[str, Topic | ErrorCode] = {}
    valid = []
    for name in names:
        if _is_valid(name):
            valid.append(name)
        else:
            found[name] = ErrorCode.invalid_topic_exception
    return found | await _find_by_name(valid, context)


async def visible_topics(context: RequestContext) -> list[Topic]:
    """Return all topics that the client may describe."""
    every = await context.services.directory.all()
    visible = await listed_names(context, DESCRIBE_TOPIC, (topic.name for topic in every))
    return [topic for topic in every if visible is None or topic.name in visible]


async def _find_by_name(names: Sequence[str], context: RequestContext) -> dict[str, Topic | ErrorCode]:
    """Return the topic or the error code for each name. Names that the client may not describe are refused.

    They are not looked up, so that the response cannot tell whether the topic exists.
    """
    directory = context.services.directory
    refused = await refused_names(context, DESCRIBE_TOPIC, names)
    found: dict[str, Topic | ErrorCode] = dict.fromkeys(refused, refusal(DESCRIBE_TOPIC).code)
    return found | await _look_up(
        (name for name in names if name not in refused),
        directory.get_many,
        directory.last_known,
        ErrorCode.unknown_topic_or_partition,
    )


async def _create_missing(by_name: dict[str, Topic | ErrorCode], context: RequestContext) -> None:
    """Begin to create missing topics. A topic that the client may not create is refused."""
    missing = [name for name, found in by_name.items() if found is ErrorCode.unknown_topic_or_partition]
    refused: frozenset[str] = frozenset()
    if missing and not is_allowed(context, CREATE_IN_CLUSTER, log_denied=False):
        refused = await refused_names(context, CREATE_TOPIC, missing)
    by_name |= dict.fromkeys(refused, refusal(CREATE_TOPIC).code)
    allowed = [name for name in missing if name not in refused]
    if allowed:
        _create(allowed, context)


def _key(wanted: Struct, context: RequestContext) -> str | UUID | ErrorCode:
    """Return the name or id to look a topic up by, or the error code if the request names it wrongly."""
    if context.version < 12 and (wanted.name is None or wanted.topic_id is not None):
        # These versions have a field for the id, but do not support it.
        return ErrorCode.invalid_request
    if context.version >= 12 and wanted.topic_id is not None:
        topic_id: UUID = wanted.topic_id
        return topic_id
    if wanted.name is None:
        return ErrorCode.unknown_topic_id
    return str(wanted.name) if _is_valid(wanted.name) else ErrorCode.invalid_topic_exception


def _is_valid(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return False
    return True


async def _look_up(
    keys: Iterable[Key],
    find: Callable[[Iterable[Key]], Awaitable[dict[Key, Topic]]],
    last_known: Callable[[Key], Topic | None],
    missing: ErrorCode,
) -> dict[Key, Topic | ErrorCode]:
    """Look up topics together; return `missing` for those that do not exist.

    If the catalog fails, return topics as last known, or LEADER_NOT_AVAILABLE, so that the client retries.
    """
    wanted = list(dict.fromkeys(keys))
    if not wanted:
        return {}
    try:
        async with asyncio.timeout(_LOOKUP_TIMEOUT_SECONDS):
            found = await find(wanted)
    except (SiltstoneError, TimeoutError) as error:
        _log.warning("topics could not be looked up", count=len(wanted), reason=str(error))
        return {key: last_known(key) or ErrorCode.leader_not_available for key in wanted}
    return {key: found.get(key, missing) for key in wanted}
