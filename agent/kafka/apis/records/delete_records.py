"""DeleteRecords: moves the log start offset of partitions forward.

Versions 0 to 2. Version 2 is the first flexible one. Offset -1 stands for the high watermark.

The response reports the new log start offset. Garbage collection deletes the bytes later. Another agent may
serve deleted records until it learns of the new log start offset.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.records.by_partition import respond_by_partition
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.topic_lookup import check_partition
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import DELETE_TOPIC
from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.apis.records.by_partition import RequestedPartition

# One transaction locks the partitions of a chunk, and producers of these partitions wait for it.
_CHUNK_SIZE = 1_000


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Move each log start offset, or report why it did not move."""
    requested = [(wanted.name, wanted.partitions) for wanted in request.topics]
    responses = await respond_by_partition(
        requested, _delete_chunk, context, right=DELETE_TOPIC, chunk_size=_CHUNK_SIZE
    )
    return Struct(topics=[Struct(name=name, partitions=partitions) for name, partitions in responses])


async def _delete_chunk(chunk: Sequence[RequestedPartition[Struct]], context: RequestContext) -> list[Struct]:
    """Move log starts in the object store together, and so those of local topics.

    If a partition is named twice, its last offset counts.
    """
    yielding = CooperativeYield()
    starts = await _advance_log_starts(
        {
            PartitionId(topic.topic_id, each.wanted.partition_index): each.wanted.offset
            for each in chunk
            if (topic := each.object_topic) is not None
            and 0 <= each.wanted.partition_index < topic.partition_count
            and topic.config.deletes
        },
        context,
    )
    starts |= await _advance_local_log_starts(chunk, context)
    responses = []
    for each in chunk:
        index, start = each.wanted.partition_index, _log_start(each, starts)
        if isinstance(start, SiltstoneError):
            responses.append(Struct(partition_index=index, low_watermark=-1, error_code=code_of(start)))
        else:
            responses.append(Struct(partition_index=index, low_watermark=start))
        await yielding.step()
    return responses


async def _advance_local_log_starts(
    chunk: Sequence[RequestedPartition[Struct]], context: RequestContext
) -> dict[PartitionId, int | SiltstoneError]:
    """Return the new log start offset or the error of each partition of a local topic that may delete."""
    wanted = {
        PartitionId(topic.topic_id, each.wanted.partition_index): (
            topic,
            each.wanted.partition_index,
            each.wanted.offset,
        )
        for each in chunk
        if not isinstance(topic := each.topic, SiltstoneError)
        and topic.is_local
        and 0 <= each.wanted.partition_index < topic.partition_count
        and topic.config.deletes
    }
    if not wanted:
        return {}
    results = await context.services.local_logs.delete_records(list(wanted.values()))
    return dict(zip(wanted, results, strict=True))


def _log_start(
    requested: RequestedPartition[Struct], starts: Mapping[PartitionId, int | SiltstoneError]
) -> int | SiltstoneError:
    """Return the partition's new log start offset, or the error that kept it where it was."""
    topic, index = requested.topic, requested.wanted.partition_index
    try:
        if isinstance(topic, SiltstoneError):
            return topic
        check_partition(topic, index)
        if not topic.config.deletes:  # as in Kafka's Partition.deleteRecordsOnLeader
            message = f"the cleanup.policy of topic {topic.name!r} does not delete"
            return KafkaError(ErrorCode.policy_violation, message)
    except SiltstoneError as error:
        return error
    unknown = KafkaError(ErrorCode.unknown_topic_or_partition)
    return starts.get(PartitionId(topic.topic_id, index), unknown)


async def _advance_log_starts(
    wanted: Mapping[PartitionId, int], context: RequestContext
) -> dict[PartitionId, int | SiltstoneError]:
    """Return the new log start offset or the error of each partition that exists in the object store."""
    if not wanted:
        return {}
    catalog, run = context.services.catalog, context.services.pools.catalog.run
    starts: dict[PartitionId, int | SiltstoneError] = {}
    try:
        offsets = {}
        for state in await run(partial(catalog.topics.states, list(wanted))):
            key, end = PartitionId(state.topic_id, state.partition), state.high_watermark
            offset = end if wanted[key] == -1 else wanted[key]
            if 0 <= offset <= end:
                offsets[key] = offset
            else:
                starts[key] = KafkaError(ErrorCode.offset_out_of_range, f"the partition ends at {end}")
        if offsets:
            starts |= await run(partial(catalog.retention.advance_log_starts, offsets))
    except SiltstoneError as error:
        return dict.fromkeys(wanted, error)
    return starts


API = Api(name="delete_records", min_version=0, max_version=2, handle=handle)
