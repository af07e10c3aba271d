"""DescribeTransactions (KIP-664): describes transactional ids, with the partitions of ongoing transactions.

Version 0. Any agent can describe any id. Groups whose offsets a transaction will commit are not listed: they
have no partition here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.transactions.requests import transaction_code_of
from agent.kafka.apis.transactions.states import STATE_NAMES
from agent.kafka.authorization import refusal, refused_names
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.security.rights import DESCRIBE_TOPIC, DESCRIBE_TRANSACTION
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.transactions.rules import TransactionalProducer

_NO_TIME = -1


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe each transactional id."""
    services = context.services
    hidden = await refused_names(context, DESCRIBE_TRANSACTION, request.transactional_ids)
    ids = [each for each in request.transactional_ids if each not in hidden]
    lookups = services.catalog.transaction_lookups
    try:
        found = await services.pools.catalog.run(partial(lookups.find, ids))
        producer_ids = [producer.producer_id for producer in found.values()]
        partitions = await services.pools.catalog.run(partial(lookups.partitions_of, producer_ids))
    except SiltstoneError as error:
        code = transaction_code_of(error, knows_fencing=True)
        return Struct(transaction_states=[_failed(each, code) for each in request.transactional_ids])
    names = {name for each in partitions.values() for name in each}
    hidden_topics = await refused_names(context, DESCRIBE_TOPIC, names, log_denied=False)
    denied = refusal(DESCRIBE_TRANSACTION).code
    return Struct(
        transaction_states=[
            _failed(each, denied) if each in hidden else _describe(each, found, partitions, hidden_topics)
            for each in request.transactional_ids
        ]
    )


def _describe(
    transactional_id: str,
    found: Mapping[str, TransactionalProducer],
    partitions: Mapping[int, Mapping[str, Sequence[int]]],
    hidden_topics: Collection[str],
) -> Struct:
    if not transactional_id:
        return _failed(transactional_id, ErrorCode.invalid_request)
    producer = found.get(transactional_id)
    if producer is None:
        return _failed(transactional_id, ErrorCode.transactional_id_not_found)
    return Struct(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[producer.state],
        transaction_timeout=producer.timeout_ms,
        transaction_start_time=_NO_TIME if producer.started_ms is None else producer.started_ms,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[
            Struct(topic=name, partitions=numbers)
            for name, numbers in partitions[producer.producer_id].items()
            if name not in hidden_topics
        ],
    )


def _failed(transactional_id: str, code: ErrorCode) -> Struct:
    return Struct(transactional_id=transactional_id, error_code=code, transaction_state="", topics=[])


API = Api(name="describe_transactions", min_version=0, max_version=0, handle=handle)
