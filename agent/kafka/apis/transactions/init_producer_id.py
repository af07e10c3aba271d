"""InitProducerId: assigns producer ids to idempotent and transactional producers.

Versions 0 to 5. Version 3 added the current id and epoch of the producer (KIP-360), version 4 the error
PRODUCER_FENCED.

As in Kafka, each request without a transactional id receives a new producer id with epoch 0. An earlier id of
the producer does not matter. With a transactional id, the producer gets the id's next epoch, which fences all
earlier producers. An ongoing transaction of the id is aborted in the same step, so that no client has to
retry.

An unavailable catalog is COORDINATOR_LOAD_IN_PROGRESS for a producer without a transactional id, as in Kafka.
Java clients before 3.5 and aiokafka end after other errors, or look for a coordinator that does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.transactions.requests import transaction_code_of
from agent.kafka.authorization import is_allowed, is_allowed_on_any, refusal, require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from agent.security.rights import IDEMPOTENT_WRITE, WRITE_TOPIC, WRITE_TRANSACTION
from catalog.transactions.rules import ProducerIdentity
from core.errors import RetryableError, SiltstoneError, StaleStateError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_FENCING_SINCE = 4


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Assign a new producer id."""
    if request.transactional_id == "":
        return Struct(error_code=ErrorCode.invalid_request, producer_epoch=-1)
    if request.transactional_id is not None:
        try:
            producer = await _initialize(request, context)
        except SiltstoneError as error:
            code = transaction_code_of(error, knows_fencing=context.version >= _FENCING_SINCE)
            return Struct(error_code=code, producer_epoch=-1)
        return Struct(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)
    if not is_allowed(context, IDEMPOTENT_WRITE, log_denied=False) and not is_allowed_on_any(
        context, WRITE_TOPIC
    ):
        return Struct(error_code=refusal(IDEMPOTENT_WRITE).code, producer_epoch=-1)
    services = context.services
    try:
        producer_id = await services.pools.catalog.run(services.catalog.producers.new_id)
    except (RetryableError, StaleStateError):
        return Struct(error_code=ErrorCode.coordinator_load_in_progress, producer_epoch=-1)
    return Struct(producer_id=producer_id, producer_epoch=0)


async def _initialize(request: Struct, context: RequestContext) -> ProducerIdentity:
    require(context, WRITE_TRANSACTION, request.transactional_id)
    timeout_ms = request.transaction_timeout
    max_timeout_ms = context.services.settings.transaction_max_timeout_ms
    if not 0 < timeout_ms <= max_timeout_ms:
        raise KafkaError(
            ErrorCode.invalid_transaction_timeout,
            f"transaction.timeout.ms is {timeout_ms}, and may be at most {max_timeout_ms}",
        )
    expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    if (expected.producer_id < 0) != (expected.producer_epoch < 0):
        raise KafkaError(ErrorCode.invalid_request, "only one of producer id and epoch is given")
    return await context.services.transactions.initialize(
        request.transactional_id, timeout_ms, expected if expected.producer_id >= 0 else None
    )


API = Api(name="init_producer_id", min_version=0, max_version=5, handle=handle)
