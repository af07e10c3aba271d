"""Lookup of the topics that Metadata and DescribeTopicPartitions name, with automatic creation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import structlog

from agent.kafka.errors import ErrorCode
from agent.kafka.throttling import MutationCharges
from catalog.errors import InvalidTopicError
from catalog.topics.names import check_topic_name
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

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
    by_name = await _look_up(
        names, directory.get_many, directory.last_known, ErrorCode.unknown_topic_or_partition
    )
    by_id = await _look_up(
        ids, directory.get_many_by_id, directory.last_known_by_id, ErrorCode.unknown_topic_id
    )
    if request.allow_auto_topic_creation and context.services.settings.auto_create_topics:
        missing = [name for name, found in by_name.items() if found is ErrorCode.unknown_topic_or_partition]
        if missing:
            _create(missing, context)
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
    directory = context.services.directory
    missing = ErrorCode.unknown_topic_or_partition
    return found | await _look_up(valid, directory.get_many, directory.last_known, missing)


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
