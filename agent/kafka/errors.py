"""Kafka's error codes for our errors, chosen by how clients react to each code.

An append that failed before anything was written is NOT_ENOUGH_REPLICAS. An append that may have been written
is NOT_ENOUGH_REPLICAS_AFTER_APPEND. Clients retry both. Only the second means that a retry may write
duplicates.
"""

from __future__ import annotations

import structlog
from kio.schema.errors import ErrorCode

from agent.cluster.client_messages import is_client_safe, public_cause
from agent.cluster.errors import AppendFailedError, NotLeaderError, ReadFailedError
from agent.groups.errors import GroupError
from agent.runtime.errors import BusyError, StoppingError
from catalog.errors import (
    InvalidConfigError,
    InvalidCredentialError,
    InvalidGroupError,
    InvalidTopicError,
    TopicCollisionError,
    TopicExistsError,
    TransactionRefusedError,
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
from local_tier.errors import LogDirectoryOfflineError, ProcessLimitError
from object_format.errors import InvalidRecordError
from object_format.segment_file import UnsupportedFormatError

__all__ = ["ErrorCode", "KafkaError", "code_of", "code_of_refusal", "message_of", "to_kafka_error"]


_log = structlog.get_logger(__name__)


class KafkaError(SiltstoneError):
    """An error with its Kafka error code. Its message is safe for clients."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


# The first matching class decides.
_CODES: tuple[tuple[type[SiltstoneError], ErrorCode], ...] = (
    (OffsetOutOfRangeError, ErrorCode.offset_out_of_range),
    (TopicCollisionError, ErrorCode.invalid_topic_exception),
    (TopicExistsError, ErrorCode.topic_already_exists),
    (InvalidTopicError, ErrorCode.invalid_topic_exception),
    (InvalidGroupError, ErrorCode.invalid_group_id),
    (InvalidConfigError, ErrorCode.invalid_config),
    (InvalidCredentialError, ErrorCode.unacceptable_credential),
    (NotFoundError, ErrorCode.unknown_topic_or_partition),
    (InvalidInputError, ErrorCode.invalid_request),
    (BusyError, ErrorCode.not_enough_replicas),
    (StoppingError, ErrorCode.not_leader_or_follower),
    (NotLeaderError, ErrorCode.not_leader_or_follower),
    (LogDirectoryOfflineError, ErrorCode.kafka_storage_error),
    (ProcessLimitError, ErrorCode.kafka_storage_error),
    (AppendFailedError, ErrorCode.not_enough_replicas_after_append),
    (ReadFailedError, ErrorCode.kafka_storage_error),
    (RetryableError, ErrorCode.request_timed_out),
    (StaleStateError, ErrorCode.request_timed_out),
    (CorruptDataError, ErrorCode.corrupt_message),
    (UnsupportedFormatError, ErrorCode.kafka_storage_error),  # another agent may be newer
)

_REFUSALS = {
    RunRefusal.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.unknown_topic_or_partition,
    RunRefusal.OUT_OF_ORDER_SEQUENCE: ErrorCode.out_of_order_sequence_number,
    RunRefusal.INVALID_PRODUCER_EPOCH: ErrorCode.invalid_producer_epoch,
    RunRefusal.UNKNOWN_PRODUCER_ID: ErrorCode.unknown_producer_id,
    RunRefusal.AWAITS_READOPTION: ErrorCode.not_enough_replicas,
    RunRefusal.FOLLOWS_FAILED: ErrorCode.not_enough_replicas,
    RunRefusal.INVALID_PRODUCER_ID_MAPPING: ErrorCode.invalid_producer_id_mapping,
    RunRefusal.INVALID_TXN_STATE: ErrorCode.invalid_txn_state,
}


def code_of(error: BaseException) -> ErrorCode:
    """Return the error code for `error`; UNKNOWN_SERVER_ERROR for an unexpected exception."""
    if isinstance(error, KafkaError | GroupError):
        return error.code
    if isinstance(error, InvalidRecordError):
        return ErrorCode[error.reason.lower()]
    if isinstance(error, TransactionRefusedError):
        return ErrorCode[error.refusal.value]
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.unknown_server_error)


def message_of(error: BaseException) -> str | None:
    """Return the error message for a client; None for an exception that is not our own.

    A message that is not safe for clients is logged, and the client gets its general cause instead.
    """
    if not isinstance(error, SiltstoneError):
        return None
    if isinstance(error, KafkaError | GroupError) or is_client_safe(error):
        return str(error)
    _log.warning("an error message is withheld from a client", reason=str(error))
    return public_cause(error)


def to_kafka_error(error: SiltstoneError) -> KafkaError:
    """Return `error` as clients see it. Convert it once for all items, so that it is logged once."""
    return KafkaError(code_of(error), message_of(error) or "")


def code_of_refusal(refusal: RunRefusal) -> ErrorCode:
    """Return the error code for a batch that the catalog rejected."""
    return _REFUSALS[refusal]
