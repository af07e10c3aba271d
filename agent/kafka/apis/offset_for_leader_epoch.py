"""OffsetForLeaderEpoch: where a leader's epoch ended.

Versions 2 to 4. Of a topic whose home is the object store there is one epoch, which ends where the log does;
of any other nothing is known. A local topic's log knows its epochs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.topics import LEADER_EPOCH, check_partition, find_topic
from agent.local_logs.local_topics import is_local
from bedrock.errors import SiltstoneError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from agent.kafka.api import Context


async def handle(request: Struct, context: Context) -> Struct:
    """Look up every partition that is asked for."""
    return Struct(
        topics=[
            Struct(
                topic=wanted.topic,
                partitions=[await _one(wanted.topic, each, context) for each in wanted.partitions],
            )
            for wanted in request.topics
        ]
    )


async def _one(name: str, wanted: Struct, context: Context) -> Struct:
    services = context.services
    try:
        topic = await find_topic(services.directory, name, None, by_id=False)
        check_partition(topic, wanted.partition, wanted.current_leader_epoch)
        if is_local(topic):
            end = await services.disks.end_of_epoch(topic, wanted.partition, wanted.leader_epoch)
            return Struct(partition=wanted.partition, leader_epoch=end.epoch, end_offset=end.start_offset)
        if wanted.leader_epoch != LEADER_EPOCH:
            return Struct(partition=wanted.partition)
        ids = [PartitionId(topic.topic_id, wanted.partition)]
        states = await services.pools.catalog.run(partial(services.catalog.topics.states, ids))
        if not states:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
    except SiltstoneError as error:
        return Struct(partition=wanted.partition, error_code=code_of(error))
    return Struct(partition=wanted.partition, leader_epoch=LEADER_EPOCH, end_offset=states[0].high_watermark)


API = Api(name="offset_for_leader_epoch", lowest=2, highest=4, handle=handle)
