"""OffsetForLeaderEpoch: returns the end offset of a leader epoch.

Versions 2 to 4. Version 3 added the replica id, version 4 is the first flexible one.

A topic in the object store has one leader epoch, 0, which ends at the high watermark. The response for any
other epoch is undefined (-1). The log of a local topic knows its own leader epochs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.records.by_partition import respond_by_partition
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.topic_lookup import LEADER_EPOCH, check_partition
from agent.runtime.cooperative_yield import CooperativeYield
from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.apis.records.by_partition import RequestedPartition
    from catalog.model import Topic


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Look up every requested partition."""
    requested = [(wanted.topic, wanted.partitions) for wanted in request.topics]
    responses = await respond_by_partition(requested, _look_up, context)
    return Struct(topics=[Struct(topic=name, partitions=partitions) for name, partitions in responses])


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every partition."""
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


async def _look_up(requested: Sequence[RequestedPartition[Struct]], context: RequestContext) -> list[Struct]:
    services = context.services
    ids = [
        PartitionId(topic.topic_id, each.wanted.partition)
        for each in requested
        if (topic := each.object_topic) is not None
    ]
    states = await services.pools.catalog.run(partial(services.catalog.topics.states, ids))
    ends = {PartitionId(state.topic_id, state.partition): state.high_watermark for state in states}
    yielding, responses = CooperativeYield(), []
    for each in requested:
        responses.append(await _end_of_epoch(each.topic, each.wanted, ends, context))
        await yielding.step()
    return responses


async def _end_of_epoch(
    topic: Topic | SiltstoneError, wanted: Struct, ends: Mapping[PartitionId, int], context: RequestContext
) -> Struct:
    try:
        if isinstance(topic, SiltstoneError):
            return Struct(partition=wanted.partition, error_code=code_of(topic))
        check_partition(topic, wanted.partition, wanted.current_leader_epoch)
        if topic.is_local:
            logs = context.services.local_logs
            found = await logs.end_of_epoch(topic, wanted.partition, wanted.leader_epoch)
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
