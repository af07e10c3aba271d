"""OffsetDelete (KIP-496): deletes the committed offsets of a group in some partitions.

Version 0. As in Kafka, offsets of a topic that a member subscribes to are not deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import error_response
from agent.kafka.authorization import refusal, require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.offset_requests import topics_of
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import DELETE_GROUP, READ_TOPIC
from catalog.model import PartitionId

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Delete the offsets, and return an error code for each partition."""
    require(context, DELETE_GROUP, request.group_id)
    codes: dict[tuple[str, int], ErrorCode] = {}
    known: list[tuple[str, PartitionId]] = []
    yielding = CooperativeYield()
    topics = await topics_of(request.topics, context, READ_TOPIC, by_id=False)
    for wanted, (topic, is_refused) in zip(request.topics, topics, strict=True):
        for partition in wanted.partitions:
            index = partition.partition_index
            codes[wanted.name, index] = ErrorCode.unknown_topic_or_partition
            if is_refused:
                codes[wanted.name, index] = refusal(READ_TOPIC).code
            elif topic is not None and 0 <= index < topic.partition_count:
                known.append((wanted.name, PartitionId(topic.topic_id, index)))
        await yielding.step(len(wanted.partitions))
    results = await context.services.groups.offsets.delete(request.group_id, known)
    for (name, partition_id), code in zip(known, results, strict=True):
        codes[name, partition_id.partition] = code
    responses = []
    for wanted in request.topics:
        indexes = [partition.partition_index for partition in wanted.partitions]
        parts = [Struct(partition_index=index, error_code=codes[wanted.name, index]) for index in indexes]
        responses.append(Struct(name=wanted.name, partitions=parts))
        await yielding.step(len(parts))
    return Struct(topics=responses)


API = Api(name="offset_delete", min_version=0, max_version=0, handle=handle, error_response=error_response)
