"""AddPartitionsToTxn: adds partitions to the transaction of a producer.

Versions 0 to 3. Version 2 added PRODUCER_FENCED. Later versions are for requests between brokers, of which
there are none here. As in Kafka, either all partitions of a request are added or none. Partitions of local
topics are rejected, because their records and those of the object store would not become visible together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.transactions.requests import transaction_code_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from agent.kafka.topic_lookup import find_topics
from catalog.model import PartitionId
from catalog.transactions.rules import ProducerIdentity
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic

_FENCING_SINCE = 2


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Add all partitions, or none of them."""
    topics = request.v3_and_below_topics
    found = await find_topics(context.services.directory, (topic.name for topic in topics))
    codes = {
        (topic.name, partition): _check(found[topic.name], partition)
        for topic in topics
        for partition in topic.partitions
    }
    if any(code is not ErrorCode.none for code in codes.values()):
        codes = {
            key: ErrorCode.operation_not_attempted if code is ErrorCode.none else code
            for key, code in codes.items()
        }
    else:
        ids = [
            PartitionId(topic.topic_id, partition)
            for (name, partition) in codes
            if not isinstance(topic := found[name], SiltstoneError)
        ]
        codes = dict.fromkeys(codes, await _add(request, ids, context))
    return Struct(
        results_by_topic_v3_and_below=[
            Struct(
                name=topic.name,
                results_by_partition=[
                    Struct(partition_index=each, partition_error_code=codes[topic.name, each])
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


def _check(topic: Topic | SiltstoneError, partition: int) -> ErrorCode:
    if isinstance(topic, SiltstoneError) or not 0 <= partition < topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.invalid_request if topic.is_local else ErrorCode.none


async def _add(request: Struct, partitions: list[PartitionId], context: RequestContext) -> ErrorCode:
    transactional_id = request.v3_and_below_transactional_id
    producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    try:
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
        await context.services.transactions.add_partitions(transactional_id, producer, partitions)
    except SiltstoneError as error:
        return transaction_code_of(error, knows_fencing=context.version >= _FENCING_SINCE)
    return ErrorCode.none


API = Api(name="add_partitions_to_txn", min_version=0, max_version=3, handle=handle)
