"""Rules that the APIs of transactions share: error codes, and the producer of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.authorization import require
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.security.rights import WRITE_TRANSACTION
from catalog.errors import TransactionRefusedError
from catalog.transactions.rules import ProducerIdentity
from core.errors import RetryableError, StaleStateError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct


def producer_of(request: Struct, context: RequestContext) -> ProducerIdentity:
    """Return the producer that a request names.

    Raises KafkaError for an empty transactional id, and for a client that may not write with this one.
    """
    if not request.transactional_id:
        raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
    require(context, WRITE_TRANSACTION, request.transactional_id)
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def transaction_code_of(error: BaseException, *, knows_fencing: bool) -> ErrorCode:
    """Return the error code that an API of transactions reports for `error`.

    A request that had no effect, or whose effect is unknown, is COORDINATOR_NOT_AVAILABLE: clients repeat it,
    and a repetition is harmless. Clients of versions before PRODUCER_FENCED get INVALID_PRODUCER_EPOCH.
    """
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, TransactionRefusedError):
        code = code_of(error)
        is_fenced = code is ErrorCode.producer_fenced
        return ErrorCode.invalid_producer_epoch if is_fenced and not knows_fencing else code
    if isinstance(error, RetryableError | StaleStateError):
        return ErrorCode.coordinator_not_available
    return code_of(error)
