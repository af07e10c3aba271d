"""The agent's own errors, each under the kind that tells a client what to do."""

from __future__ import annotations

from core.errors import InvalidInputError, NotFoundError, RetryableError


class BusyError(RetryableError):
    """A bounded buffer, pool or budget of this agent is full."""


class StoppingError(RetryableError):
    """The agent is on its way out and takes nothing new."""


class AppendFailedError(RetryableError):
    """What was taken could not be stored or committed.

    After a commit whose answer was lost the records may be there all the same, as with Kafka's request
    time-out: only an idempotent producer may repeat them without risk of doubles.
    """


class NotLeaderError(RetryableError):
    """The partition's home is the disk of another agent, or of none that lives."""


class UnknownPartitionError(NotFoundError):
    """The topic exists and has no such partition."""


class OffsetOutOfRangeError(InvalidInputError):
    """A fetch below the log start offset or above the high watermark."""

    def __init__(self, where: str, offset: int, *, log_start_offset: int, high_watermark: int) -> None:
        super().__init__(
            f"offset {offset} of {where} is out of range {log_start_offset} to {high_watermark}",
            remedy=f"read from an offset of at least {log_start_offset} and at most {high_watermark}",
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark


class PayloadTooLargeError(InvalidInputError):
    """A request is larger than this agent takes."""


class InvalidRecordError(InvalidInputError):
    """A batch that cannot be appended to this topic as it stands.

    `code` names the reason as Kafka does: CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE,
    INVALID_TIMESTAMP, UNSUPPORTED_FOR_MESSAGE_FORMAT. `record_errors` lists (batch index, record index, why).
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        remedy: str | None = None,
        record_errors: tuple[tuple[int, int, str], ...] = (),
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.code = code
        self.record_errors = record_errors


class UnsupportedMediaTypeError(InvalidInputError):
    """A request body is not of the kind that the call takes."""


class BodyTimeoutError(InvalidInputError):
    """A request body did not arrive in time."""


class InvalidBodyError(InvalidInputError):
    """A request body is not what the call takes; the message says where."""


class ReadFailedError(RetryableError):
    """Objects could not be read now."""
