"""DescribeTopicPartitions (KIP-966): describes topics page by page.

Version 0. Topics are sorted by name, and partitions by index. The cursor of a response names the first
partition of the next page. An empty list requests all topics. A cursor with a negative partition, or with a
topic that the request does not name, is INVALID_REQUEST.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.topics.metadata_lookup import find_topics_by_name, visible_topics
from agent.kafka.authorization import authorized_operations
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.placement import placements_of
from agent.runtime.cooperative_yield import CooperativeYield
from catalog.security.acl_bindings import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.placement import Placement
    from catalog.model import Topic

_MAX_PARTITIONS = 2000


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe topics from the cursor on, up to the limit of partitions."""
    _check_cursor(request)
    brokers = await context.services.brokers.live_on(context.client.listener)
    page = _page(request, await _found(request, context))
    topics = [each.topic for each in page.parts if not isinstance(each.topic, ErrorCode)]
    placements = iter(await placements_of(topics, brokers, context))
    yielding, described = CooperativeYield(), []
    for part in page.parts:
        if isinstance(part.topic, ErrorCode):
            described.append(Struct(name=part.name, error_code=part.topic))
            await yielding.step()
        else:
            described.append(await _describe(next(placements), part, context, yielding))
            await yielding.step()
    return Struct(topics=described, next_cursor=page.cursor)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every requested topic."""
    del context
    code = code_of(error)
    return Struct(topics=[Struct(name=wanted.name, error_code=code) for wanted in request.topics])


def _check_cursor(request: Struct) -> None:
    cursor = request.cursor
    if cursor is None:
        return
    if request.topics and cursor.topic_name not in {wanted.name for wanted in request.topics}:
        raise KafkaError(ErrorCode.invalid_request, "the cursor names a topic that the request does not name")
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.invalid_request, "the partition of the cursor is negative")


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of one topic that is on a page."""

    name: str
    topic: Topic | ErrorCode
    partitions: range = range(0)


@dataclass(frozen=True, slots=True)
class _Page:
    parts: list[_Part]
    cursor: Struct | None


def _page(request: Struct, found: Mapping[str, Topic | ErrorCode]) -> _Page:
    """Return the page that begins at the cursor, and the cursor of the next page."""
    remaining = max(1, min(request.response_partition_limit, _MAX_PARTITIONS))
    start = request.cursor
    parts: list[_Part] = []
    for name, topic in sorted(found.items()):
        first = start.partition_index if start is not None and name == start.topic_name else 0
        if remaining == 0:
            return _Page(parts, Struct(topic_name=name, partition_index=first))
        if isinstance(topic, ErrorCode):
            parts.append(_Part(name, topic))
            continue
        last = min(topic.partition_count, first + remaining)
        parts.append(_Part(name, topic, range(first, last)))
        remaining -= len(parts[-1].partitions)
        if last < topic.partition_count:
            return _Page(parts, Struct(topic_name=name, partition_index=last))
    return _Page(parts, None)


async def _describe(
    placement: Placement, part: _Part, context: RequestContext, yielding: CooperativeYield
) -> Struct:
    partitions = []
    for partition in part.partitions:
        steps = placement.steps_of(partition)
        described = placement.describe(partition)
        # The schema allows null. Kafka never sends it, and its own client does not expect it.
        described.eligible_leader_replicas = described.last_known_elr = []
        partitions.append(described)
        await yielding.step(steps)
    return Struct(
        name=part.name,
        topic_id=placement.topic.topic_id,
        partitions=partitions,
        topic_authorized_operations=authorized_operations(
            context, ResourceType.TOPIC, part.name, requested=True
        ),
    )


async def _found(request: Struct, context: RequestContext) -> Mapping[str, Topic | ErrorCode]:
    """Return the requested topics from the cursor on, by name."""
    first = "" if request.cursor is None else request.cursor.topic_name
    if request.topics:
        return await find_topics_by_name(
            {each.name for each in request.topics if each.name >= first}, context
        )
    return {topic.name: topic for topic in await visible_topics(context) if topic.name >= first}


API = Api(
    name="describe_topic_partitions",
    min_version=0,
    max_version=0,
    handle=handle,
    error_response=error_response,
)
