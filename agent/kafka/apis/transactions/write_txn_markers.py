"""WriteTxnMarkers: aborts a transaction for an administrator (`kafka-transactions.sh abort`, KIP-664).

Versions 1 to 2. Between Kafka's brokers it ends transactions in single partitions. Here a transaction ends in
all partitions at once, so the whole transaction is aborted, and its producer is fenced. A commit is
INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.transactions.requests import transaction_code_of
from agent.kafka.authorization import is_allowed, refusal
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.security.rights import ALTER_CLUSTER, CLUSTER_ACTION
from catalog.transactions.rules import ProducerIdentity
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Abort the transaction of each marker."""
    return Struct(markers=[await _result(marker, context) for marker in request.markers])


async def _result(marker: Struct, context: RequestContext) -> Struct:
    code = await _abort(marker, context)
    return Struct(
        producer_id=marker.producer_id,
        topics=[
            Struct(
                name=topic.name,
                partitions=[
                    Struct(partition_index=each, error_code=code) for each in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )


async def _abort(marker: Struct, context: RequestContext) -> ErrorCode:
    if not is_allowed(context, ALTER_CLUSTER, log_denied=False) and not is_allowed(context, CLUSTER_ACTION):
        return refusal(CLUSTER_ACTION).code
    if marker.transaction_result:
        return ErrorCode.invalid_request
    producer = ProducerIdentity(marker.producer_id, marker.producer_epoch)
    try:
        was_aborted = await context.services.transactions.abort(producer)
    except SiltstoneError as error:
        return transaction_code_of(error, knows_fencing=True)
    return ErrorCode.none if was_aborted else ErrorCode.invalid_producer_epoch


API = Api(name="write_txn_markers", min_version=1, max_version=2, handle=handle)
