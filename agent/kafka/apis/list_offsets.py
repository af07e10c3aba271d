"""ListOffsets: where a partition begins and ends, and offsets by time.

Versions 1 to 11. Special timestamps: latest (-1), earliest (-2), the record with the largest timestamp (-3,
KIP-734), earliest local (-4): the log start, as nothing is tiered away; latest tiered (-5) and earliest
pending upload (-6): none, as in a Kafka without remote storage.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.topics.lookup import check_partition, find_topics
from agent.kafka.topics.placement import learn_leaders
from agent.read.timestamp_lookup import TimedOffset
from agent.runtime.cooperative_yield import some_at_a_time
from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.kafka.api_definition import RequestContext
    from catalog.model import PartitionState, Topic

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL = -1, -2, -3, -4
_TIERED = frozenset({-5, -6})
# The versions that brought the special timestamps (Kafka's ReplicaManager); the lowest is 1 in any case.
_SINCE = {_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, -5: 9, -6: 11}
_NONE = TimedOffset(-1, -1)
# Of one request, that wait for the catalog or read objects: others have their share of the pools.
_AT_ONCE = 8


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Look up every partition that is asked for."""
    topics = await find_topics(context.services.directory, (wanted.name for wanted in request.topics))
    await learn_leaders(topics.values(), context)
    counts = Counter(
        (wanted.name, each.partition_index) for wanted in request.topics for each in wanted.partitions
    )
    states = await _states(counts, topics, context)
    twice = KafkaError(ErrorCode.invalid_request, "a partition is asked for twice")
    asked = [
        (twice if counts[wanted.name, each.partition_index] > 1 else topics[wanted.name], each)
        for wanted in request.topics
        for each in wanted.partitions
    ]
    answers = iter(await some_at_a_time(lambda one: _answer(*one, states, context), asked, at_once=_AT_ONCE))
    return Struct(
        topics=[
            Struct(name=wanted.name, partitions=list(islice(answers, len(wanted.partitions))))
            for wanted in request.topics
        ]
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """The same code for every partition."""
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


async def _states(
    asked: Iterable[tuple[str, int]], topics: Mapping[str, Topic | SiltstoneError], context: RequestContext
) -> dict[PartitionId, PartitionState]:
    """The bounds of the partitions whose home is the object store."""
    ids = []
    for name, partition in asked:
        topic = topics[name]
        if not isinstance(topic, SiltstoneError) and not topic.is_local:
            ids.append(PartitionId(topic.topic_id, partition))
    found = await context.services.pools.catalog.run(partial(context.services.catalog.topics.states, ids))
    return {PartitionId(state.topic_id, state.partition): state for state in found}


async def _answer(
    topic: Topic | SiltstoneError,
    wanted: Struct,
    states: Mapping[PartitionId, PartitionState],
    context: RequestContext,
) -> Struct:
    index = wanted.partition_index
    try:
        if isinstance(topic, SiltstoneError):
            return Struct(partition_index=index, error_code=code_of(topic))
        check_partition(topic, index, wanted.current_leader_epoch)
        state = states.get(PartitionId(topic.topic_id, index))
        if topic.is_local:
            state = await context.services.disks.state(topic, index)
        if state is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        found = await _find(topic, state, wanted.timestamp, context)
    except SiltstoneError as failure:
        return Struct(partition_index=index, error_code=code_of(failure))
    epoch = state.leader_epoch if found.offset >= 0 else -1
    return Struct(partition_index=index, timestamp=found.timestamp, offset=found.offset, leader_epoch=epoch)


async def _find(topic: Topic, state: PartitionState, timestamp: int, context: RequestContext) -> TimedOffset:
    if context.version < _SINCE.get(timestamp, 0):
        raise KafkaError(
            ErrorCode.unsupported_version, f"timestamp {timestamp} needs version {_SINCE[timestamp]}"
        )
    if timestamp == _LATEST:
        return TimedOffset(state.last_stable_offset, -1)
    if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
        return TimedOffset(state.log_start_offset, -1)
    if timestamp in _TIERED:
        return _NONE
    if timestamp == _MAX_TIMESTAMP:
        return await _find_latest(topic, state, context)
    if timestamp < 0:
        raise KafkaError(ErrorCode.unsupported_version, f"timestamp {timestamp} has no meaning here")
    found = await _at_or_after(topic, state, timestamp, context)
    return _NONE if found is None else found


async def _find_latest(topic: Topic, state: PartitionState, context: RequestContext) -> TimedOffset:
    """The first record with the largest timestamp; the cheap way first, which may name one that is gone."""
    services = context.services
    if topic.is_local:
        newest = await services.disks.newest(topic, state.partition)
        return _NONE if newest is None else TimedOffset(newest.offset, newest.timestamp)
    latest = services.catalog.log.latest_timestamp
    for live in (False, True):
        timestamp = await services.pools.catalog.run(
            partial(latest, topic.topic_id, state.partition, live=live)
        )
        if timestamp < 0:
            return _NONE
        found = await _at_or_after(topic, state, timestamp, context)
        if found is not None:
            return found
    return _NONE


async def _at_or_after(
    topic: Topic, state: PartitionState, timestamp: int, context: RequestContext
) -> TimedOffset | None:
    services = context.services
    if topic.is_local:
        found = await services.disks.offset_by_time(topic, state.partition, timestamp)
        return None if found is None else TimedOffset(found.offset, found.timestamp)
    return await services.timestamps.find(
        topic,
        state.partition,
        timestamp,
        log_start_offset=state.log_start_offset,
        budget=services.read_path.budget,
    )


API = Api(name="list_offsets", min_version=1, max_version=11, handle=handle, error_response=error_response)
