"""DeleteRecords: moves the start of a log forward.

Versions 0 to 2. Offset -1 stands for the high watermark. The bytes go later, by garbage collection.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.topics.lookup import check_partition, find_topics
from agent.kafka.topics.placement import learn_leaders
from agent.runtime.cooperative_yield import Turns
from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic

_AT_ONCE = 1_000  # whose partitions are locked together: others write to them meanwhile


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Move each log start, or say why not."""
    topics = await find_topics(context.services.directory, (wanted.name for wanted in request.topics))
    await learn_leaders(topics.values(), context)
    asked = [(topics[wanted.name], each) for wanted in request.topics for each in wanted.partitions]
    answers: list[Struct] = []
    for start in range(0, len(asked), _AT_ONCE):
        answers += await _some(asked[start : start + _AT_ONCE], context)
    found = iter(answers)
    return Struct(
        topics=[
            Struct(name=wanted.name, partitions=list(islice(found, len(wanted.partitions))))
            for wanted in request.topics
        ]
    )


async def _some(
    asked: Sequence[tuple[Topic | SiltstoneError, Struct]], context: RequestContext
) -> list[Struct]:
    """Those in the object store together; of a partition that is named twice, the last offset counts."""
    turns = Turns()
    starts = await _move(
        {
            PartitionId(topic.topic_id, wanted.partition_index): wanted.offset
            for topic, wanted in asked
            if not isinstance(topic, SiltstoneError)
            and 0 <= wanted.partition_index < topic.partition_count
            and topic.config.deletes
            and not topic.is_local
        },
        context,
    )
    answers = []
    for topic, wanted in asked:
        index, low = wanted.partition_index, await _one(topic, wanted, starts, context)
        if isinstance(low, SiltstoneError):
            answers.append(Struct(partition_index=index, low_watermark=-1, error_code=code_of(low)))
        else:
            answers.append(Struct(partition_index=index, low_watermark=low))
        await turns.did()
    return answers


async def _one(
    topic: Topic | SiltstoneError,
    wanted: Struct,
    starts: Mapping[PartitionId, int | SiltstoneError],
    context: RequestContext,
) -> int | SiltstoneError:
    """Where the partition begins now, or what is in the way."""
    index = wanted.partition_index
    try:
        if isinstance(topic, SiltstoneError):
            return topic
        check_partition(topic, index)
        if not topic.config.deletes:  # as in Kafka's Partition.deleteRecordsOnLeader
            words = f"the cleanup.policy of topic {topic.name!r} does not delete"
            return KafkaError(ErrorCode.policy_violation, words)
        if topic.is_local:
            return await context.services.disks.delete_records(topic, index, wanted.offset)
    except SiltstoneError as error:
        return error
    unknown = KafkaError(ErrorCode.unknown_topic_or_partition)
    return starts.get(PartitionId(topic.topic_id, index), unknown)


async def _move(
    wanted: Mapping[PartitionId, int], context: RequestContext
) -> dict[PartitionId, int | SiltstoneError]:
    """Where partitions in the object store begin then, or why not; those that do not exist are left out."""
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
