"""Headers of record batches (format v2): reading, checksums, and changes that do not touch the records.

A batch's CRC covers neither its base offset nor its leader epoch. Both can therefore be set when a batch is
committed or read, without encoding it again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import crc32c
import numpy as np
import numpy.typing as npt

from object_format.buffers import Bytes, readable, writable
from object_format.codecs.codec import Codec
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.headers import assign_offsets as _assign_offsets
from object_format.kernels.batches.headers import (
    check_header,
    count_batches,
    find_overlap,
    read_headers,
    scan_ordered,
    shift_offsets,
)
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    BATCH_ROW,
    CODEC_MASK,
    CONTROL,
    CRC,
    DELETE_HORIZON,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

BatchRows = npt.NDArray[np.void]
"""Array of `kernels.batches.layout.BATCH_ROW`, one element per batch."""

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qh")  # id and epoch
_OFFSET_FIELDS: Final = struct.Struct(">qii")  # base offset, length, leader epoch
NO_LIMIT: Final = 2**63 - 1
_MAGIC_V2: Final = 2


class TimestampType(IntEnum):
    """Source of a batch's timestamps: the producer, or the broker at append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The 61 bytes before a batch's records, with Kafka's field names."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return LENGTH_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """Last offset of the batch, whether or not its record still exists."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Compression codec of the records."""
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        """Timestamp type. With LOG_APPEND_TIME, every record has the header's max timestamp."""
        return TimestampType(bool(self.attributes & LOG_APPEND_TIME))

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if the batch contains transaction markers, which consumers do not see."""
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which tombstones may be deleted; None before compaction has set it (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at `position`, which must be complete.

    Raises MalformedBatchError if it is not, or if the header contradicts itself.
    """
    array = readable(data)
    if not 0 <= position <= array.size:
        raise MalformedBatchError.at(Fault.TRUNCATED, position)
    fault, _size = check_header(array, position)
    if fault:
        raise MalformedBatchError.at(fault, position)
    return _header_at(array, position)


class PeekedAttributes(NamedTuple):
    """Unvalidated fields of a batch header: `codec` may be an unknown codec, and `size` any number."""

    codec: int
    is_transactional: bool
    size: int


def peek_attributes(data: memoryview) -> PeekedAttributes | None:
    """Return attributes of the batch at the start of `data` without validation; None if it is no v2 batch."""
    if len(data) < BATCH_OVERHEAD or data[MAGIC] != _MAGIC_V2:
        return None
    low = data[ATTRIBUTES + 1]
    size = LENGTH_OVERHEAD + int.from_bytes(data[BATCH_LENGTH : BATCH_LENGTH + 4], "big", signed=True)
    return PeekedAttributes(low & CODEC_MASK, bool(low & TRANSACTIONAL), size)


def peek_producer(data: memoryview) -> tuple[int, int]:
    """Return id and epoch of the producer of the batch in `data` without validation.

    The id is negative if there is none.
    """
    if len(data) < BATCH_OVERHEAD or data[MAGIC] != _MAGIC_V2:
        return -1, -1
    producer_id, epoch = _PRODUCER.unpack_from(data, PRODUCER_ID)
    return producer_id, epoch


def is_marked_compressed(data: memoryview) -> bool:
    """Return True if the attributes of the possibly invalid batch in `data` contain a codec."""
    return len(data) >= BATCH_OVERHEAD and bool(data[ATTRIBUTES + 1] & CODEC_MASK)


def _header_at(array: Bytes, position: int) -> BatchHeader:
    (
        base_offset,
        batch_length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = HEADER.unpack_from(array.data, position)
    return BatchHeader(
        base_offset=base_offset,
        batch_length=batch_length,
        partition_leader_epoch=leader_epoch,
        magic=magic,
        crc=crc,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )


def iter_headers(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each batch. Raises MalformedBatchError at a malformed batch."""
    array = readable(data)
    position = 0
    while position < array.size:
        fault, size = check_header(array, position)
        if fault:
            raise MalformedBatchError.at(fault, position)
        yield position, _header_at(array, position)
        position += size


def scan_batches(data: Bytes) -> BatchRows:
    """Return a row for each batch of `data`. Raises MalformedBatchError unless `data` is complete batches."""
    rows, fault, position = scan_until_malformed(data)
    if fault:
        raise MalformedBatchError.at(fault, position)
    return rows


def scan_until_malformed(data: Bytes) -> tuple[BatchRows, int, int]:
    """Return rows of the batches before the first malformed header, its fault (or 0) and position."""
    count, fault, position = count_batches(data)
    rows = np.empty(count, BATCH_ROW)
    read_headers(data, rows)
    return rows, fault, position


def has_transactional_batches(data: Buffer) -> bool:
    """Return True if a batch of `data` is transactional. Raises MalformedBatchError."""
    return bool(np.any(scan_batches(readable(data))["attributes"] & TRANSACTIONAL))


class OrderedBatches(NamedTuple):
    """Batches with ascending absolute offsets in [first_offset, next_offset).

    `compressed` is the number of compressed batches, and `record_count` the sum of the headers' counts.
    """

    rows: BatchRows
    first_offset: int
    next_offset: int
    compressed: int
    record_count: int


def scan_ordered_batches(data: Bytes, offset_shift: int, lowest: int) -> OrderedBatches:
    """Scan batches whose absolute offsets ascend from `lowest` on.

    Without batches, `next_offset` is `lowest`. Raises MalformedBatchError if a batch overlaps the previous
    one or exceeds the range of offsets.
    """
    *found, fault, position = scan_ordered(data, offset_shift, lowest)
    if fault:
        raise MalformedBatchError.at(fault, position)
    return OrderedBatches(*found)


def offset_range(rows: BatchRows, offset_shift: int) -> tuple[int, int]:
    """Return the first and last absolute offset of at least one batch, in offset order."""
    last = int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1])
    return int(rows["base_offset"][0]) + offset_shift, last + offset_shift


def record_error(fault: int, row: np.void, position: int) -> MalformedBatchError:
    """Return the error for a fault that a kernel found in the records of a batch.

    `position` refers to the uncompressed records. In a compressed batch, only the batch has a position.
    """
    is_compressed = int(row["attributes"]) & CODEC_MASK
    return MalformedBatchError.at(fault, int(row["position"]) if is_compressed else position)


def verify_checksum(data: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Raise MalformedBatchError unless the CRC-32C of the batch at `position` matches its header."""
    view = memoryview(data).cast("B")
    if crc32c.crc32c(view[position + ATTRIBUTES : position + header.size]) != header.crc:
        raise MalformedBatchError.at(Fault.CHECKSUM, position)


def first_corrupt(data: Bytes, rows: BatchRows) -> int:
    """Return the index of the first batch whose CRC-32C is wrong, or the number of batches."""
    view, crc32 = data.data, crc32c.crc32c
    columns = zip(rows["position"].tolist(), rows["size"].tolist(), rows["crc"].tolist(), strict=True)
    for index, (position, size, expected) in enumerate(columns):
        if crc32(view[position + ATTRIBUTES : position + size]) != expected:
            return index
    return rows.size


def patch_offsets(data: Buffer, offset_shift: int, leader_epoch: int) -> None:
    """Add `offset_shift` to the base offset of every batch of `data` and set its leader epoch, in place.

    With `KEEP_LEADER_EPOCH`, each batch keeps its own epoch.
    """
    fault, position = shift_offsets(writable(data), offset_shift, leader_epoch)
    if fault:
        raise MalformedBatchError.at(fault, position)


def assign_offsets(data: Buffer, first_offset: int = 0, leader_epoch: int = 0) -> int:
    """Assign consecutive offsets from `first_offset` on to the batches of `data`, in place.

    Returns the offset after the last batch. The previous base offsets are ignored. With the default
    arguments, offsets become relative to a section that starts with these batches, as in an ingestion file.
    """
    fault, position, next_offset = _assign_offsets(writable(data), first_offset, leader_epoch)
    if fault:
        raise MalformedBatchError.at(fault, position)
    return int(next_offset)


def set_base_offsets(batches: Iterable[memoryview], base_offsets: Iterable[int], leader_epoch: int) -> None:
    """Write base offsets and the leader epoch into the headers of valid batches, in place.

    This does the work of `assign_offsets` for batches in separate buffers, without calling a kernel.
    """
    pack = _OFFSET_FIELDS.pack_into
    for batch, base_offset in zip(batches, base_offsets, strict=True):
        pack(batch, 0, base_offset, len(batch) - LENGTH_OVERHEAD, leader_epoch)


def stored_checksums(batches: Iterable[memoryview]) -> list[int]:
    """Return the checksums that the headers of the batches contain."""
    unpack = _CRC.unpack_from
    return [unpack(batch, CRC)[0] for batch in batches]


def trim_batches(
    data: Buffer,
    *,
    first_offset: int,
    last_offset: int = NO_LIMIT,
    offset_shift: int = 0,
    max_bytes: int | None = None,
) -> memoryview:
    """Return the part of `data` whose batches overlap [first_offset, last_offset], without copying.

    `offset_shift` is added to stored base offsets before the comparison. `max_bytes` limits the result,
    except for the first batch: a fetch must make progress.
    """
    fault, start, end = find_overlap(
        readable(data),
        first_offset,
        last_offset,
        offset_shift,
        NO_LIMIT if max_bytes is None else max_bytes,
    )
    if fault:
        raise MalformedBatchError.at(fault, start)
    return memoryview(data).cast("B")[start:end]


def set_append_time(data: Buffer, append_time_ms: int, position: int = 0) -> None:
    """Change the batch at `position` to LogAppendTime in place: timestamp type, max timestamp and CRC."""
    _stamp(data, position, append_time_ms, TimestampType.LOG_APPEND_TIME)


def set_max_timestamp(data: Buffer, max_timestamp: int, position: int = 0) -> None:
    """Set the max timestamp of the batch at `position` in place, and update its CRC, as brokers do."""
    _stamp(data, position, max_timestamp, TimestampType.CREATE_TIME)


def _stamp(data: Buffer, position: int, max_timestamp: int, timestamp_type: TimestampType) -> None:
    header = read_header(data, position)
    array = writable(data)
    attributes = header.attributes & ~LOG_APPEND_TIME
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME
    struct.pack_into(">h", array.data, position + ATTRIBUTES, attributes)
    struct.pack_into(">q", array.data, position + MAX_TIMESTAMP, max_timestamp)
    write_checksum(array.data, position, position + header.size)


def write_checksum(data: memoryview, start: int, end: int) -> None:
    """Compute the CRC of the batch data[start:end] and store it in the header; `data` has format "B"."""
    _CRC.pack_into(data, start + CRC, crc32c.crc32c(data[start + ATTRIBUTES : end]))


__all__ = [
    "BATCH_OVERHEAD",
    "BatchHeader",
    "BatchRows",
    "Codec",
    "OrderedBatches",
    "TimestampType",
    "assign_offsets",
    "first_corrupt",
    "has_transactional_batches",
    "iter_headers",
    "offset_range",
    "patch_offsets",
    "peek_attributes",
    "peek_producer",
    "read_header",
    "record_error",
    "scan_batches",
    "scan_ordered_batches",
    "scan_until_malformed",
    "set_append_time",
    "set_base_offsets",
    "set_max_timestamp",
    "stored_checksums",
    "trim_batches",
    "verify_checksum",
    "write_checksum",
]
