"""DescribeProducers (KIP-664): the idempotent producers that partitions remember.

Version 0. At most a thousand for a partition, the latest first; none has a transaction.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import code_of, message_of
from agent.kafka.topics.lookup import check_partition, find_topics
from agent.kafka.topics.placement import learn_leaders
from agent.runtime.cooperative_yield import Turns
from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.model import KnownProducer, Topic

_LOOK_UP = 100  # partitions with one query; each may have a thousand producers


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe each partition, or say why not."""
    topics = await find_topics(context.services.directory, (wanted.name for wanted in request.topics))
    await learn_leaders(topics.values(), context)
    asked = [(topics[wanted.name], index) for wanted in request.topics for index in wanted.partition_indexes]
    answers: list[Struct] = []
    for start in range(0, len(asked), _LOOK_UP):
        answers += await _some(asked[start : start + _LOOK_UP], context)
    found = iter(answers)
    return Struct(
        topics=[
            Struct(name=wanted.name, partitions=list(islice(found, len(wanted.partition_indexes))))
            for wanted in request.topics
        ]
    )


async def _some(asked: Sequence[tuple[Topic | SiltstoneError, int]], context: RequestContext) -> list[Struct]:
    services = context.services
    in_store = {
        PartitionId(topic.topic_id, index)
        for topic, index in asked
        if not isinstance(topic, SiltstoneError) and not topic.is_local
    }
    known: Mapping[PartitionId, Sequence[KnownProducer]] | SiltstoneError = {}
    if in_store:
        try:
            known = await services.pools.catalog.run(
                partial(services.catalog.producers.of_partitions, in_store)
            )
        except SiltstoneError as error:
            known = error
    turns, answers = Turns(), []
    for topic, index in asked:
        answers.append(await _one(topic, index, known, context))
        await turns.did(1 + len(answers[-1].active_producers))
    return answers


async def _one(
    topic: Topic | SiltstoneError,
    index: int,
    known: Mapping[PartitionId, Sequence[KnownProducer]] | SiltstoneError,
    context: RequestContext,
) -> Struct:
    try:
        if isinstance(topic, SiltstoneError):
            return _failed(index, topic)
        check_partition(topic, index)
        if topic.is_local:
            return await _of_local(topic, index, context)
    except SiltstoneError as error:
        return _failed(index, error)
    if isinstance(known, SiltstoneError):
        return _failed(index, known)
    return Struct(
        partition_index=index,
        active_producers=[
            Struct(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.updated_ms,
                coordinator_epoch=-1,
            )
            for producer in known[PartitionId(topic.topic_id, index)]
        ],
    )


def _failed(index: int, error: SiltstoneError) -> Struct:
    return Struct(
        partition_index=index, error_code=code_of(error), error_message=message_of(error), active_producers=[]
    )


async def _of_local(topic: Topic, index: int, context: RequestContext) -> Struct:
    producers = await context.services.disks.producers(topic, index)
    return Struct(
        partition_index=index,
        active_producers=[
            Struct(
                producer_id=producer_id,
                producer_epoch=state.producer_epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=-1 if state.transaction_start is None else state.transaction_start,
            )
            for producer_id, state in sorted(producers.items())
        ],
    )


API = Api(name="describe_producers", min_version=0, max_version=0, handle=handle)
