"""OffsetForLeaderEpoch: returns the end offset of a leader epoch.

Versions 2 to 4. Version 3 added the replica id, version 4 is the first flexible one.

The catalog knows where the leader epochs of a topic in the object store begin (KIP-320). A failover or a
restore begins a new one. The log of a local topic knows its own leader epochs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.cluster.errors import ReadFailedError
from agent.kafka.api_definition import Api
from agent.kafka.apis.records.by_partition import epoch_histories, respond_by_partition
from agent.kafka.authorization import is_allowed
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.topic_lookup import check_partition
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import CLUSTER_ACTION, DESCRIBE_TOPIC
from catalog.model import PartitionId
from catalog.topics.leader_epochs import NO_HISTORY
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.apis.records.by_partition import RequestedPartition
    from catalog.model import PartitionState, Topic
    from catalog.topics.leader_epochs import EpochHistory


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Look up every requested partition."""
    requested = [(wanted.topic, wanted.partitions) for wanted in request.topics]
    right = None if is_allowed(context, CLUSTER_ACTION, log_denied=False) else DESCRIBE_TOPIC
    responses = await respond_by_partition(requested, _look_up, context, right=right)
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
    found = await services.pools.catalog.run(partial(services.catalog.topics.states, ids))
    services.epoch.observe_states(found)
    histories = await epoch_histories(ids, context)
    states = {PartitionId(state.topic_id, state.partition): state for state in found}
    yielding, responses = CooperativeYield(), []
    for each in requested:
        responses.append(await _end_of_epoch(each.topic, each.wanted, states, histories, context))
        await yielding.step()
    return responses


async def _end_of_epoch(
    topic: Topic | SiltstoneError,
    wanted: Struct,
    states: Mapping[PartitionId, PartitionState],
    histories: Mapping[PartitionId, EpochHistory],
    context: RequestContext,
) -> Struct:
    current = context.services.epoch.current
    try:
        if isinstance(topic, SiltstoneError):
            return Struct(partition=wanted.partition, error_code=code_of(topic))
        check_partition(topic, wanted.partition, current, wanted.current_leader_epoch)
        if topic.is_local:
            logs = context.services.local_logs
            found = await logs.end_of_epoch(topic, wanted.partition, wanted.leader_epoch)
            return Struct(partition=wanted.partition, leader_epoch=found.epoch, end_offset=found.start_offset)
        key = PartitionId(topic.topic_id, wanted.partition)
        if (state := states.get(key)) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if state.leader_epoch != current:  # its end may be that of a log whose last records are lost
            raise ReadFailedError(
                f"epoch {current} began during the lookup of {topic.name}-{wanted.partition}",
                remedy="retry the lookup",
            )
    except SiltstoneError as error:
        return Struct(partition=wanted.partition, error_code=code_of(error))
    history = histories.get(key, NO_HISTORY)
    epoch, end = history.end_of(wanted.leader_epoch, current=current, log_end_offset=state.high_watermark)
    return Struct(partition=wanted.partition, leader_epoch=epoch, end_offset=end)


API = Api(
    name="offset_for_leader_epoch", min_version=2, max_version=4, handle=handle, error_response=error_response
)
