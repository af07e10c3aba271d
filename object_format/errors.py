"""Errors of record batches."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from core.errors import CorruptDataError, InvalidInputError


class Fault(IntEnum):
    """Code of a problem in a batch. Kernels return these codes together with a position.

    Only `validate_batches` reports the codes from `CHECKSUM` on. They concern batches that a producer sends:
    a stored batch, in contrast, may be a control batch or have gaps between its offsets.
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
    BROKER_ATTRIBUTES = 26

    @property
    def explanation(self) -> str:
        """Return a description for people."""
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    Fault.NONE: "nothing is wrong",
    Fault.TRUNCATED: "the bytes end inside a batch",
    Fault.BATCH_LENGTH: "the batch length is smaller than a batch header",
    Fault.MAGIC: "the magic byte is not 2: only record batches of format version 2 are supported",
    Fault.CODEC: "the attributes contain an unknown compression codec",
    Fault.RECORD_COUNT: "the record count is negative, or larger than the batch can hold",
    Fault.LAST_OFFSET_DELTA: "the last offset delta is negative, or too small for the record count",
    Fault.RECORD_LENGTH: "a record's length is wrong, or the records end early",
    Fault.RECORD_FIELD: "a field of a record is malformed or extends beyond the record",
    Fault.RECORD_OFFSET: "record offsets are not ascending, or outside the batch's range",
    Fault.TRAILING_BYTES: "there are bytes after the last record",
    Fault.COMPRESSED_BYTES: "the compressed records cannot be decompressed",
    Fault.DECOMPRESSED_TOO_LARGE: "the decompressed records exceed the size limit of a batch",
    Fault.OFFSET_RANGE: "the batch's offsets overlap the previous batch, are negative, or exceed 2^62",
    Fault.SURVIVORS: "surviving records are missing: these are not the bytes that pass 1 read",
    Fault.CHECKSUM: "the CRC-32C does not match the bytes",
    Fault.OFFSETS_NOT_CONSECUTIVE: "a producer's batch must contain records with the offsets 0, 1, 2 …",
    Fault.CONTROL_BATCH: "clients are not allowed to write control batches",
    Fault.TIMESTAMP_TYPE: "producers are not allowed to set the timestamp type to LogAppendTime",
    Fault.SEQUENCE: "a batch with a producer id requires a sequence number of at least 0",
    Fault.BROKER_ATTRIBUTES: "producers are not allowed to set a delete horizon or unknown attribute bits",
    Fault.KEYLESS_RECORDS: "a compacted topic requires a key in every record",
}


class MalformedBatchError(CorruptDataError):
    """Bytes are not valid record batches.

    `position` counts bytes from the start of the input. It is exact in an uncompressed batch, and the start
    of the batch in a compressed one. `origin` says where the bytes come from, if the caller that receives the
    error does not know it.
    """

    def __init__(
        self,
        message: str,
        *,
        position: int,
        fault: Fault = Fault.NONE,
        remedy: str | None = None,
        origin: str = "",
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.position = position
        self.fault = fault
        self.origin = origin

    @classmethod
    def at(cls, fault: int, position: int) -> MalformedBatchError:
        """Return the error for a fault that a kernel found."""
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
    """The requested records do not fit into a record batch of format v2."""
