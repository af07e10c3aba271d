"""ListOffsets: returns the bounds of a partition, or its first offset at or after a timestamp.

Versions 1 to 11. Negative timestamps have special meanings:

- -1 latest: the high watermark, or the last stable offset with isolation level READ_COMMITTED.
- -2 earliest: the log start offset.
- -3 largest timestamp: the first record that has it (version 7, KIP-734).
- -4 earliest local: the log start offset, because no records are tiered (version 8).
- -5 latest tiered (version 9) and -6 earliest pending upload (version 11): always -1, as in a Kafka cluster
  without remote storage.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.records.by_partition import epoch_histories, respond_by_partition
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.fetch_response import READ_COMMITTED
from agent.kafka.topic_lookup import check_partition
from agent.read.timestamp_lookup import TimedOffset
from agent.runtime.cooperative_yield import map_bounded
from agent.security.rights import DESCRIBE_TOPIC
from catalog.model import PartitionId
from catalog.topics.leader_epochs import NO_HISTORY
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.apis.records.by_partition import RequestedPartition
    from catalog.model import PartitionState, Topic
    from catalog.topics.leader_epochs import EpochHistory

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL = -1, -2, -3, -4
_TIERED = frozenset({-5, -6})
# The first version of each special timestamp (Kafka's ReplicaManager).
_SINCE = {_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, -5: 9, -6: 11}
_NO_OFFSET = TimedOffset(-1, -1)
# Concurrent lookups of one request in the catalog and in objects. The pools must also serve other requests.
_MAX_CONCURRENT = 8


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Look up every requested partition."""
    requested = [(wanted.name, wanted.partitions) for wanted in request.topics]
    look_up = partial(_look_up, committed_only=request.isolation_level == READ_COMMITTED)
    responses = await respond_by_partition(requested, look_up, context, right=DESCRIBE_TOPIC)
    return Struct(topics=[Struct(name=name, partitions=partitions) for name, partitions in responses])


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every partition."""
    del context
    return Struct(
        topics=[
            Struct(
                name=wanted.name,
                partitions=[
                    Struct(partition_index=each.partition_index, error_code=code_of(error))
                    for each in wanted.partitions
                ],
            )
            for wanted in request.topics
        ]
    )


async def _look_up(
    requested: Sequence[RequestedPartition[Struct]], context: RequestContext, *, committed_only: bool
) -> list[Struct]:
    counts = Counter((each.topic_name, each.wanted.partition_index) for each in requested)
    states = await _states(requested, context)
    context.services.epoch.observe_states(states.values())
    histories = await epoch_histories(states, context)
    duplicate = KafkaError(ErrorCode.invalid_request, "a partition is requested twice")

    async def respond(each: RequestedPartition[Struct]) -> Struct:
        is_duplicate = counts[each.topic_name, each.wanted.partition_index] > 1
        return await _respond(
            duplicate if is_duplicate else each.topic,
            each.wanted,
            states,
            histories,
            context,
            committed_only=committed_only,
        )

    return await map_bounded(respond, requested, limit=_MAX_CONCURRENT)


async def _states(
    requested: Sequence[RequestedPartition[Struct]], context: RequestContext
) -> dict[PartitionId, PartitionState]:
    """Return the bounds of the partitions in the object store."""
    ids = {
        PartitionId(topic.topic_id, each.wanted.partition_index): None
        for each in requested
        if (topic := each.object_topic) is not None
    }
    found = await context.services.pools.catalog.run(
        partial(context.services.catalog.topics.states, list(ids))
    )
    return {PartitionId(state.topic_id, state.partition): state for state in found}


async def _respond(
    topic: Topic | SiltstoneError,
    wanted: Struct,
    states: Mapping[PartitionId, PartitionState],
    histories: Mapping[PartitionId, EpochHistory],
    context: RequestContext,
    *,
    committed_only: bool,
) -> Struct:
    index = wanted.partition_index
    try:
        if isinstance(topic, SiltstoneError):
            return Struct(partition_index=index, error_code=code_of(topic))
        check_partition(topic, index, context.services.epoch.current, wanted.current_leader_epoch)
        key = PartitionId(topic.topic_id, index)
        state = states.get(key)
        if topic.is_local:
            state = await context.services.local_logs.state(topic, index)
        if state is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        end = state.last_stable_offset if committed_only else state.high_watermark
        found = await _find(topic, state, wanted.timestamp, end, context)
    except SiltstoneError as failure:
        return Struct(partition_index=index, error_code=code_of(failure))
    epoch = -1 if found.offset < 0 else state.leader_epoch
    if epoch > 0 and not topic.is_local:
        history = histories.get(key, NO_HISTORY)
        epoch = history.at(found.offset, current=epoch, log_end_offset=state.log_end_offset)
    return Struct(partition_index=index, timestamp=found.timestamp, offset=found.offset, leader_epoch=epoch)


async def _find(
    topic: Topic, state: PartitionState, timestamp: int, end: int, context: RequestContext
) -> TimedOffset:
    """Return the offset for a timestamp, of those before `end` that the client may read."""
    if context.version < _SINCE.get(timestamp, 0):
        raise KafkaError(
            ErrorCode.unsupported_version, f"timestamp {timestamp} needs version {_SINCE[timestamp]}"
        )
    if timestamp == _LATEST:
        return TimedOffset(end, -1)
    if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
        return TimedOffset(state.log_start_offset, -1)
    if timestamp in _TIERED:
        return _NO_OFFSET
    if timestamp == _MAX_TIMESTAMP:
        largest = await _largest_timestamp(topic, state, context)
        is_hidden = state.high_watermark > largest.offset >= end
        return _NO_OFFSET if is_hidden else largest
    if timestamp < 0:
        raise KafkaError(ErrorCode.unsupported_version, f"timestamp {timestamp} has no meaning")
    found = await _at_or_after(topic, state, timestamp, context)
    return _NO_OFFSET if found is None or found.offset >= end else found


async def _largest_timestamp(topic: Topic, state: PartitionState, context: RequestContext) -> TimedOffset:
    """Return the first record with the largest timestamp."""
    services = context.services
    if topic.is_local:
        newest = await services.local_logs.newest(topic, state.partition)
        return _NO_OFFSET if newest is None else TimedOffset(newest.offset, newest.timestamp)
    found = await services.timestamps.find_largest(
        topic,
        state.partition,
        log_start_offset=state.log_start_offset,
        budget=services.read_path.budget,
    )
    return _NO_OFFSET if found is None else found


async def _at_or_after(
    topic: Topic, state: PartitionState, timestamp: int, context: RequestContext
) -> TimedOffset | None:
    services = context.services
    if topic.is_local:
        found = await services.local_logs.offset_by_time(topic, state.partition, timestamp)
        return None if found is None else TimedOffset(found.offset, found.timestamp)
    return await services.timestamps.find(
        topic,
        state.partition,
        timestamp,
        log_start_offset=state.log_start_offset,
        budget=services.read_path.budget,
    )


API = Api(name="list_offsets", min_version=1, max_version=11, handle=handle, error_response=error_response)
