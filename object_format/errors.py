"""What can be wrong with a record batch."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from core.errors import CorruptDataError, InvalidInputError


class Fault(IntEnum):
    """Why a batch is not what it should be; kernels return these numbers next to a position.

    Those from `CHECKSUM` on are judged by `validate_batches` alone: a stored batch may well be a control
    batch or have gaps between its offsets, one that a producer sends may not.
    """

    NONE = 0
    TRUNCATED = 1
    BATCH_LENGTH = 2
    MAGIC = 3
    CODEC = 4
    RECORD_COUNT = 5
    LAST_OFFSET_DELTA = 6
    RECORD_LENGTH = 7
    RECORD_FIELD = 8
    RECORD_OFFSET = 9
    TRAILING_BYTES = 10
    COMPRESSED_BYTES = 11
    DECOMPRESSED_TOO_LARGE = 12
    OFFSET_RANGE = 13
    SURVIVORS = 14
    CHECKSUM = 20
    OFFSETS_NOT_CONSECUTIVE = 21
    CONTROL_BATCH = 22
    TIMESTAMP_TYPE = 23
    SEQUENCE = 24
    KEYLESS_RECORDS = 25

    @property
    def explanation(self) -> str:
        """One sentence for people."""
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    Fault.NONE: "nothing is wrong",
    Fault.TRUNCATED: "the bytes end inside a batch",
    Fault.BATCH_LENGTH: "the batch length is smaller than a batch header",
    Fault.MAGIC: "the magic byte is not 2, only record batches of format version 2 can be read",
    Fault.CODEC: "the attributes name a compression codec that does not exist",
    Fault.RECORD_COUNT: "the record count is negative, or larger than the batch can hold",
    Fault.LAST_OFFSET_DELTA: "the last offset delta is negative, or smaller than the record count allows",
    Fault.RECORD_LENGTH: "a record's length is wrong, or the records end early",
    Fault.RECORD_FIELD: "a field of a record is malformed or reaches beyond the record",
    Fault.RECORD_OFFSET: "record offsets do not rise, or leave the batch's range",
    Fault.TRAILING_BYTES: "bytes are left over behind the last record",
    Fault.COMPRESSED_BYTES: "the compressed records cannot be decompressed",
    Fault.DECOMPRESSED_TOO_LARGE: "the decompressed records are larger than a batch may be",
    Fault.OFFSET_RANGE: "the batch's offsets overlap those before it, are negative, or beyond 2^62",
    Fault.SURVIVORS: "records that were found to survive are missing: these are not the bytes of pass 1",
    Fault.CHECKSUM: "the CRC-32C does not match the bytes",
    Fault.OFFSETS_NOT_CONSECUTIVE: "a producer's batch must hold records, at offsets 0, 1, 2 … without gaps",
    Fault.CONTROL_BATCH: "clients may not write control batches",
    Fault.TIMESTAMP_TYPE: "a producer may not set the timestamp type to LogAppendTime",
    Fault.SEQUENCE: "a batch with a producer id needs a sequence number of 0 or more",
    Fault.KEYLESS_RECORDS: "a compacted topic does not take records without a key",
}


class MalformedBatchError(CorruptDataError):
    """Bytes that should be record batches are not.

    `position` is where, in bytes from the start of what was given: exact in an uncompressed batch, the start
    of the batch in a compressed one.
    """

    def __init__(
        self, message: str, *, position: int, fault: Fault = Fault.NONE, remedy: str | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.position = position
        self.fault = fault

    @classmethod
    def at(cls, fault: int, position: int) -> MalformedBatchError:
        """The error for what a kernel found."""
        kind = Fault(fault)
        return cls(
            f"malformed record batch at byte {position}: {kind.explanation}", position=position, fault=kind
        )


class RejectionReason(StrEnum):
    """The reason why a producer's records are rejected; the values are the names of Kafka's error codes."""

    CORRUPT_MESSAGE = "CORRUPT_MESSAGE"
    INVALID_RECORD = "INVALID_RECORD"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    RECORD_LIST_TOO_LARGE = "RECORD_LIST_TOO_LARGE"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = "UNSUPPORTED_FOR_MESSAGE_FORMAT"


class InvalidRecordError(InvalidInputError):
    """A producer's records cannot be appended to the topic.

    `record_errors` lists the rejected records as (batch index, record index, explanation).
    """

    def __init__(
        self,
        message: str,
        *,
        reason: RejectionReason,
        remedy: str | None = None,
        record_errors: tuple[tuple[int, int, str], ...] = (),
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason
        self.record_errors = record_errors


class UnsupportedBatchError(InvalidInputError):
    """What is asked for cannot be put into a record batch of format v2."""
