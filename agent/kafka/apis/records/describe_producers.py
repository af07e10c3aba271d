"""DescribeProducers (KIP-664): lists the idempotent producers of partitions.

Version 0. A partition in the object store lists at most a thousand producers, the most recent first.
A partition of a local topic lists all producers in the state of its log.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.records.by_partition import respond_by_partition
from agent.kafka.codec import Struct
from agent.kafka.errors import code_of, message_of
from agent.kafka.topic_lookup import check_partition
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import READ_TOPIC
from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.apis.records.by_partition import RequestedPartition
    from catalog.model import KnownProducer, Topic

_CHUNK_SIZE = 100  # partitions of one catalog query; each may have a thousand producers


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe each partition, or report why it cannot be described."""
    requested = [(wanted.name, wanted.partition_indexes) for wanted in request.topics]
    responses = await respond_by_partition(
        requested, _describe_chunk, context, right=READ_TOPIC, chunk_size=_CHUNK_SIZE
    )
    return Struct(topics=[Struct(name=name, partitions=partitions) for name, partitions in responses])


async def _describe_chunk(chunk: Sequence[RequestedPartition[int]], context: RequestContext) -> list[Struct]:
    services = context.services
    in_store = {
        PartitionId(topic.topic_id, each.wanted) for each in chunk if (topic := each.object_topic) is not None
    }
    known: Mapping[PartitionId, Sequence[KnownProducer]] | SiltstoneError = {}
    open_offsets: Mapping[tuple[PartitionId, int], int] = {}
    if in_store:
        try:
            known = await services.pools.catalog.run(
                partial(services.catalog.producers.of_partitions, in_store)
            )
            open_offsets = await services.pools.catalog.run(
                partial(services.catalog.transaction_lookups.open_in, in_store)
            )
        except SiltstoneError as error:
            known = error
    yielding, responses = CooperativeYield(), []
    for each in chunk:
        responses.append(await _describe(each.topic, each.wanted, known, open_offsets, context))
        await yielding.step(1 + len(responses[-1].active_producers))
    return responses


async def _describe(
    topic: Topic | SiltstoneError,
    index: int,
    known: Mapping[PartitionId, Sequence[KnownProducer]] | SiltstoneError,
    open_offsets: Mapping[tuple[PartitionId, int], int],
    context: RequestContext,
) -> Struct:
    try:
        if isinstance(topic, SiltstoneError):
            return _failed(index, topic)
        check_partition(topic, index)
        if topic.is_local:
            return await _describe_local(topic, index, context)
    except SiltstoneError as error:
        return _failed(index, error)
    if isinstance(known, SiltstoneError):
        return _failed(index, known)
    key = PartitionId(topic.topic_id, index)
    return Struct(
        partition_index=index,
        active_producers=[
            Struct(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.updated_ms,
                coordinator_epoch=-1,
                current_txn_start_offset=open_offsets.get((key, producer.producer_id), -1),
            )
            for producer in known[key]
        ],
    )


def _failed(index: int, error: SiltstoneError) -> Struct:
    return Struct(
        partition_index=index, error_code=code_of(error), error_message=message_of(error), active_producers=[]
    )


async def _describe_local(topic: Topic, index: int, context: RequestContext) -> Struct:
    producers = await context.services.local_logs.producers(topic, index)
    return Struct(
        partition_index=index,
        active_producers=[
            Struct(
                producer_id=producer_id,
                producer_epoch=state.producer_epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=-1
                if state.current_txn_first_offset is None
                else state.current_txn_first_offset,
            )
            for producer_id, state in sorted(producers.items())
        ],
    )


API = Api(name="describe_producers", min_version=0, max_version=0, handle=handle)
