"""DeleteRecords: moves the start of a log forward.

Versions 0 to 2. Offset -1 stands for the high watermark. The bytes go later, by garbage collection.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.topics import check_partition, find_topics
from agent.local_logs.local_topics import is_local
from bedrock.errors import SiltstoneError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from agent.kafka.api import Context
    from catalog.model import Topic


async def handle(request: Struct, context: Context) -> Struct:
    """Move each log start, or say why not."""
    topics = await find_topics(context.services.directory, (wanted.name for wanted in request.topics))
    return Struct(
        topics=[
            Struct(
                name=wanted.name,
                partitions=[await _one(topics[wanted.name], each, context) for each in wanted.partitions],
            )
            for wanted in request.topics
        ]
    )


async def _one(topic: Topic | SiltstoneError, wanted: Struct, context: Context) -> Struct:
    services, index = context.services, wanted.partition_index
    catalog, run = services.catalog, services.pools.catalog.run
    try:
        if isinstance(topic, SiltstoneError):
            return Struct(partition_index=index, low_watermark=-1, error_code=code_of(topic))
        check_partition(topic, index)
        if topic.config.compacts and not topic.config.deletes:
            raise KafkaError(
                ErrorCode.policy_violation, f"topic {topic.name!r} is compacted and never deletes"
            )
        if is_local(topic):
            low = await services.disks.delete_records(topic, index, wanted.offset)
            return Struct(partition_index=index, low_watermark=low)
        states = await run(partial(catalog.topics.states, [PartitionId(topic.topic_id, index)]))
        if not states:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        end = states[0].high_watermark
        offset = end if wanted.offset == -1 else wanted.offset
        if not 0 <= offset <= end:
            raise KafkaError(ErrorCode.offset_out_of_range, f"{topic.name}-{index} ends at {end}")
        start = await run(partial(catalog.retention.advance_log_start, topic.topic_id, index, offset))
    except SiltstoneError as error:
        return Struct(partition_index=index, low_watermark=-1, error_code=code_of(error))
    return Struct(partition_index=index, low_watermark=start)


API = Api(name="delete_records", lowest=0, highest=2, handle=handle)
