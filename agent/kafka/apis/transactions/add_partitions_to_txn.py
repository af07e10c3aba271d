"""AddPartitionsToTxn: adds partitions to the transaction of a producer.

Versions 0 to 5. Version 2 added PRODUCER_FENCED. From version 4 on, which Kafka's brokers send, a request has
many transactions, and may only verify that partitions were added. As in Kafka, either all partitions of a
transaction are added or none.

A partition of a local topic is CONCURRENT_TRANSACTIONS until its leader has written the marker of the
producer's last transaction there. Clients retry this.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from agent.kafka.api_definition import Api
from agent.kafka.apis.transactions.requests import transaction_code_of
from agent.kafka.authorization import is_allowed, refusal, refused_names, require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from agent.kafka.topic_lookup import find_topics
from agent.security.rights import CLUSTER_ACTION, WRITE_TOPIC, WRITE_TRANSACTION
from catalog.model import PartitionId
from catalog.transactions.rules import ProducerIdentity
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic

_FENCING_SINCE, _MANY_SINCE = 2, 4


class _Transaction(NamedTuple):
    """One transaction of a request."""

    transactional_id: str
    producer: ProducerIdentity
    topics: Sequence[Struct]
    verify_only: bool = False


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Add all partitions of each transaction, or none of them."""
    if context.version < _MANY_SINCE:
        producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        topics = request.v3_and_below_topics
        transactional_id = request.v3_and_below_transactional_id
        transaction = _Transaction(transactional_id, producer, topics)
        return Struct(results_by_topic_v3_and_below=await _results(transaction, context))
    require(context, CLUSTER_ACTION)
    results = []
    for each in request.transactions:
        producer = ProducerIdentity(each.producer_id, each.producer_epoch)
        transaction = _Transaction(each.transactional_id, producer, each.topics, each.verify_only)
        results.append(
            Struct(transactional_id=each.transactional_id, topic_results=await _results(transaction, context))
        )
    return Struct(results_by_transaction=results)


async def _results(transaction: _Transaction, context: RequestContext) -> list[Struct]:
    topics = transaction.topics
    if context.version < _MANY_SINCE and not is_allowed(
        context, WRITE_TRANSACTION, transaction.transactional_id
    ):
        return _rendered(topics, lambda _: refusal(WRITE_TRANSACTION).code)
    refused: frozenset[str] = frozenset()
    if context.version < _MANY_SINCE:
        refused = await refused_names(context, WRITE_TOPIC, (topic.name for topic in topics))
    names = (topic.name for topic in topics if topic.name not in refused)
    found = await find_topics(context.services.directory, names)
    codes = {
        (topic.name, partition): refusal(WRITE_TOPIC).code
        if topic.name in refused
        else _check(found[topic.name], partition)
        for topic in topics
        for partition in topic.partitions
    }
    if any(code is not ErrorCode.none for code in codes.values()):
        codes = {
            key: ErrorCode.operation_not_attempted if code is ErrorCode.none else code
            for key, code in codes.items()
        }
    else:
        ids = {
            key: PartitionId(topic.topic_id, key[1])
            for key in codes
            if not isinstance(topic := found[key[0]], SiltstoneError)
        }
        local = {
            topic.topic_id
            for topic in found.values()
            if not isinstance(topic, SiltstoneError) and topic.is_local
        }
        codes = await _add_or_verify(transaction, ids, local, context)
    return _rendered(topics, codes.__getitem__)


def _rendered(topics: Sequence[Struct], code_of: Callable[[tuple[str, int]], ErrorCode]) -> list[Struct]:
    return [
        Struct(
            name=topic.name,
            results_by_partition=[
                Struct(partition_index=each, partition_error_code=code_of((topic.name, each)))
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def _check(topic: Topic | SiltstoneError, partition: int) -> ErrorCode:
    if isinstance(topic, SiltstoneError) or not 0 <= partition < topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


async def _add_or_verify(
    transaction: _Transaction,
    ids: Mapping[tuple[str, int], PartitionId],
    local_topic_ids: Collection[UUID],
    context: RequestContext,
) -> dict[tuple[str, int], ErrorCode]:
    services = context.services
    try:
        if not transaction.transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
        if transaction.verify_only:
            look_up = services.catalog.transaction_lookups.added_partitions
            added = await services.pools.catalog.run(
                partial(look_up, transaction.transactional_id, transaction.producer)
            )
            return {
                key: ErrorCode.none if each in added else ErrorCode.transaction_abortable
                for key, each in ids.items()
            }
        await services.transactions.add_partitions(
            transaction.transactional_id,
            transaction.producer,
            [each for each in ids.values() if each.topic_id not in local_topic_ids],
            [each for each in ids.values() if each.topic_id in local_topic_ids],
        )
    except SiltstoneError as error:
        knows_fencing = context.version >= _FENCING_SINCE
        return dict.fromkeys(ids, transaction_code_of(error, knows_fencing=knows_fencing))
    return dict.fromkeys(ids, ErrorCode.none)


API = Api(name="add_partitions_to_txn", min_version=0, max_version=5, handle=handle)
