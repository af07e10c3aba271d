"""Kafka's error codes for what goes wrong here, chosen by what a client then does.

What is refused before anything was written is NOT_ENOUGH_REPLICAS, what may have been written is
NOT_ENOUGH_REPLICAS_AFTER_APPEND: clients repeat both, and only the second one leaves them in doubt.
"""

from __future__ import annotations

import structlog
from kio.schema.errors import ErrorCode

from agent.cluster.client_messages import is_client_safe, plain_cause
from agent.cluster.errors import AppendFailedError, NotLeaderError, ReadFailedError
from agent.runtime.errors import BusyError, StoppingError
from catalog.errors import (
    InvalidConfigError,
    InvalidGroupError,
    InvalidTopicError,
    TopicCollisionError,
    TopicExistsError,
)
from catalog.model import RunRefusal
from core.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    OffsetOutOfRangeError,
    RetryableError,
    SiltstoneError,
    StaleStateError,
)
from local_tier.errors import LogDirectoryOfflineError
from object_format.errors import InvalidRecordError

__all__ = ["ErrorCode", "KafkaError", "code_of", "code_of_refusal", "message_of", "to_kafka_error"]


_log = structlog.get_logger(__name__)


class KafkaError(SiltstoneError):
    """What a client is told by one of Kafka's codes."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


# The first that fits decides.
_CODES: tuple[tuple[type[SiltstoneError], ErrorCode], ...] = (
    (OffsetOutOfRangeError, ErrorCode.offset_out_of_range),
    (TopicCollisionError, ErrorCode.invalid_topic_exception),
    (TopicExistsError, ErrorCode.topic_already_exists),
    (InvalidTopicError, ErrorCode.invalid_topic_exception),
    (InvalidGroupError, ErrorCode.invalid_group_id),
    (InvalidConfigError, ErrorCode.invalid_config),
    (NotFoundError, ErrorCode.unknown_topic_or_partition),
    (InvalidInputError, ErrorCode.invalid_request),
    (BusyError, ErrorCode.not_enough_replicas),
    (StoppingError, ErrorCode.not_leader_or_follower),
    (NotLeaderError, ErrorCode.not_leader_or_follower),
    (LogDirectoryOfflineError, ErrorCode.kafka_storage_error),
    (AppendFailedError, ErrorCode.not_enough_replicas_after_append),
    (ReadFailedError, ErrorCode.kafka_storage_error),
    (RetryableError, ErrorCode.request_timed_out),
    (StaleStateError, ErrorCode.request_timed_out),
    (CorruptDataError, ErrorCode.corrupt_message),
)

_REFUSALS = {
    RunRefusal.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.unknown_topic_or_partition,
    RunRefusal.OUT_OF_ORDER_SEQUENCE: ErrorCode.out_of_order_sequence_number,
    RunRefusal.INVALID_PRODUCER_EPOCH: ErrorCode.invalid_producer_epoch,
    RunRefusal.UNKNOWN_PRODUCER_ID: ErrorCode.unknown_producer_id,
}


def code_of(error: BaseException) -> ErrorCode:
    """What a client is told about `error`; UNKNOWN_SERVER_ERROR for what nobody expected."""
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, InvalidRecordError):
        return ErrorCode[error.reason.lower()]
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.unknown_server_error)


def message_of(error: BaseException) -> str | None:
    """The words for a client; of our own errors only. What is not for clients is logged instead."""
    if not isinstance(error, SiltstoneError):
        return None
    if isinstance(error, KafkaError) or is_client_safe(error):
        return str(error)
    _log.warning("a client is told no more than that it failed", reason=str(error))
    return plain_cause(error)


def to_kafka_error(error: SiltstoneError) -> KafkaError:
    """What a client is told of `error`, for all items that it came in the way of; logged once at the most."""
    return KafkaError(code_of(error), message_of(error) or "")


def code_of_refusal(refusal: RunRefusal) -> ErrorCode:
    """What a producer is told whose batch the catalog refused."""
    return _REFUSALS[refusal]
