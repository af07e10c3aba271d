"""OffsetForLeaderEpoch: where a leader's epoch ended.

Versions 2 to 4. Of a topic whose home is the object store there is one epoch, which ends where the log does;
of any other nothing is known. A local topic's log knows its epochs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.topics.lookup import LEADER_EPOCH, check_partition, find_topics
from agent.kafka.topics.placement import learn_leaders
from agent.runtime.cooperative_yield import Turns
from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Look up every partition that is asked for."""
    topics = await find_topics(context.services.directory, (wanted.topic for wanted in request.topics))
    await learn_leaders(topics.values(), context)
    ids = []
    for wanted in request.topics:
        topic = topics[wanted.topic]
        if not isinstance(topic, SiltstoneError) and not topic.is_local:
            ids += [PartitionId(topic.topic_id, each.partition) for each in wanted.partitions]
    found = await context.services.pools.catalog.run(partial(context.services.catalog.topics.states, ids))
    ends = {PartitionId(state.topic_id, state.partition): state.high_watermark for state in found}
    turns, answers = Turns(), []
    for wanted in request.topics:
        parts = []
        for each in wanted.partitions:
            parts.append(await _one(topics[wanted.topic], each, ends, context))
            await turns.did()
        answers.append(Struct(topic=wanted.topic, partitions=parts))
    return Struct(topics=answers)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """The same code for every partition."""
    del context
    return Struct(
        topics=[
            Struct(
                topic=wanted.topic,
                partitions=[
                    Struct(partition=each.partition, error_code=code_of(error)) for each in wanted.partitions
                ],
            )
            for wanted in request.topics
        ]
    )


async def _one(
    topic: Topic | SiltstoneError, wanted: Struct, ends: Mapping[PartitionId, int], context: RequestContext
) -> Struct:
    try:
        if isinstance(topic, SiltstoneError):
            return Struct(partition=wanted.partition, error_code=code_of(topic))
        check_partition(topic, wanted.partition, wanted.current_leader_epoch)
        if topic.is_local:
            disks = context.services.disks
            found = await disks.end_of_epoch(topic, wanted.partition, wanted.leader_epoch)
            return Struct(partition=wanted.partition, leader_epoch=found.epoch, end_offset=found.start_offset)
        if wanted.leader_epoch != LEADER_EPOCH:
            return Struct(partition=wanted.partition)
        end = ends.get(PartitionId(topic.topic_id, wanted.partition))
        if end is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
    except SiltstoneError as error:
        return Struct(partition=wanted.partition, error_code=code_of(error))
    return Struct(partition=wanted.partition, leader_epoch=LEADER_EPOCH, end_offset=end)


API = Api(
    name="offset_for_leader_epoch", min_version=2, max_version=4, handle=handle, error_response=error_response
)
