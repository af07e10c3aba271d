"""DescribeTopicPartitions (KIP-966): topics page by page.

Version 0. Topics come by name, partitions in order; a cursor says where the next page begins. An empty list
asks for all topics. A cursor that names no partition, or a topic that was not asked for, is INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.permitted import ON_TOPIC
from agent.kafka.placement import placement_of
from agent.kafka.topics import find_topic
from bedrock.errors import SiltstoneError

if TYPE_CHECKING:
    from agent.kafka.api import Context
    from agent.kafka.placement import Placement

_MOST_PARTITIONS = 2000


async def handle(request: Struct, context: Context) -> Struct:
    """Describe topics from the cursor on, as many partitions as are allowed."""
    brokers = await context.services.brokers.live()
    left = max(1, min(request.response_partition_limit, _MOST_PARTITIONS))
    start = request.cursor
    _check_cursor(request)
    described: list[Struct] = []
    for name in await _names(request, context):
        if start is not None and name < start.topic_name:
            continue
        first = start.partition_index if start is not None and name == start.topic_name else 0
        if left == 0:
            return Struct(topics=described, next_cursor=Struct(topic_name=name, partition_index=first))
        try:
            topic = await find_topic(context.services.directory, name, None, by_id=False)
        except SiltstoneError as error:
            described.append(Struct(name=name, error_code=code_of(error)))
            continue
        last = min(topic.partition_count, first + left)
        placement = await placement_of(topic, brokers, context)
        parts = [_describe(placement, partition) for partition in range(first, last)]
        described.append(
            Struct(
                name=name,
                topic_id=topic.topic_id,
                partitions=parts,
                topic_authorized_operations=ON_TOPIC,
            )
        )
        left -= len(parts)
        if last < topic.partition_count:
            return Struct(topics=described, next_cursor=Struct(topic_name=name, partition_index=last))
    return Struct(topics=described)


def refuse(request: Struct, context: Context, error: Exception) -> Struct:
    """The same code for every topic that was named."""
    del context
    code = code_of(error)
    return Struct(topics=[Struct(name=wanted.name, error_code=code) for wanted in request.topics])


def _check_cursor(request: Struct) -> None:
    cursor = request.cursor
    if cursor is None:
        return
    if request.topics and cursor.topic_name not in {wanted.name for wanted in request.topics}:
        raise KafkaError(ErrorCode.invalid_request, "the cursor's topic is none of those that are asked for")
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.invalid_request, "the cursor names no partition")


def _describe(placement: Placement, partition: int) -> Struct:
    found = placement.describe(partition)
    # Kafka never leaves these null, and its own client does not expect it.
    found.eligible_leader_replicas = found.last_known_elr = []
    return found


async def _names(request: Struct, context: Context) -> list[str]:
    if request.topics:
        return sorted({wanted.name for wanted in request.topics})
    topics = await context.services.pools.catalog.run(context.services.catalog.topics.list)
    return sorted(topic.name for topic in topics)


API = Api(name="describe_topic_partitions", lowest=0, highest=0, handle=handle, refuse=refuse)
