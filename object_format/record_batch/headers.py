"""Record batches, format v2: headers, checksums, and what may be changed in place without touching records.

A batch's CRC covers neither its base offset nor its leader epoch, so both are set at commit and read time
without anything being encoded again.
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
"""An array of `kernels.layout.BATCH_ROW`, one element per batch."""

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_OFFSET_FIELDS: Final = struct.Struct(">qii")  # base offset, length, leader epoch
NO_LIMIT: Final = 2**63 - 1
_MAGIC_V2: Final = 2


class TimestampType(IntEnum):
    """Who gave the timestamps: the producer, or the log at append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The 61 bytes in front of a batch's records, by Kafka's names."""

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
        """The whole batch in bytes."""
        return LENGTH_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch ever had."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset behind the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """How the records are compressed."""
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        """LOG_APPEND_TIME: all records have the header's max timestamp."""
        return TimestampType(bool(self.attributes & LOG_APPEND_TIME))

    @property
    def is_transactional(self) -> bool:
        """The batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """The batch holds transaction markers, which no consumer sees."""
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the batch's tombstones may go, once a clean has set it (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`; the whole batch must be there.

    Raises MalformedBatchError when it is not, or when the header contradicts itself.
    """
    array = readable(data)
    if not 0 <= position <= array.size:
        raise MalformedBatchError.at(Fault.TRUNCATED, position)
    fault, _size = check_header(array, position)
    if fault:
        raise MalformedBatchError.at(fault, position)
    return _header_at(array, position)


class PeekedAttributes(NamedTuple):
    """What `peek_attributes` tells; `codec` may be the number of none, and `size` be anything."""

    codec: int
    is_transactional: bool
    size: int


def peek_attributes(data: memoryview) -> PeekedAttributes | None:
    """Of the batch that `data` begins with, whatever else is wrong with it; None for no v2 batch."""
    if len(data) < BATCH_OVERHEAD or data[MAGIC] != _MAGIC_V2:
        return None
    low = data[ATTRIBUTES + 1]
    size = LENGTH_OVERHEAD + int.from_bytes(data[BATCH_LENGTH : BATCH_LENGTH + 4], "big", signed=True)
    return PeekedAttributes(low & CODEC_MASK, bool(low & TRANSACTIONAL), size)


def peek_producer_id(data: memoryview) -> int:
    """Whose the batch is that `data` begins with, whatever is wrong with it; negative for nobody's."""
    if len(data) < BATCH_OVERHEAD or data[MAGIC] != _MAGIC_V2:
        return -1
    return int.from_bytes(data[PRODUCER_ID : PRODUCER_ID + 8], "big", signed=True)


def is_marked_compressed(data: memoryview) -> bool:
    """What the attributes say, of whatever is there; False for what has none."""
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
    """Position and header of each batch; raises MalformedBatchError where no whole batch follows."""
    array = readable(data)
    position = 0
    while position < array.size:
        fault, size = check_header(array, position)
        if fault:
            raise MalformedBatchError.at(fault, position)
        yield position, _header_at(array, position)
        position += size


def scan_batches(data: Bytes) -> BatchRows:
    """A row for each batch of `data`, which must be nothing but whole batches, else MalformedBatchError."""
    rows, fault, position = scan_until_malformed(data)
    if fault:
        raise MalformedBatchError.at(fault, position)
    return rows


def scan_until_malformed(data: Bytes) -> tuple[BatchRows, int, int]:
    """Rows of the batches before the first with a malformed header; its fault (0 for none) and position."""
    count, fault, position = count_batches(data)
    rows = np.empty(count, BATCH_ROW)
    read_headers(data, rows)
    return rows, fault, position


class OrderedBatches(NamedTuple):
    """Batches with rising absolute offsets, from `first_offset` to before `next_offset`.

    So many of them are `compressed`.
    """

    rows: BatchRows
    first_offset: int
    next_offset: int
    compressed: int


def scan_ordered_batches(data: Bytes, offset_shift: int, lowest: int) -> OrderedBatches:
    """Batches whose absolute offsets rise from `lowest` on; where there are none, the next one is `lowest`.

    Raises MalformedBatchError where a batch overlaps the one before it, or leaves the range of offsets.
    """
    rows, first_offset, next_offset, compressed, fault, position = scan_ordered(data, offset_shift, lowest)
    if fault:
        raise MalformedBatchError.at(fault, position)
    return OrderedBatches(rows, first_offset, next_offset, compressed)


def verify_checksum(data: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Raises MalformedBatchError unless the CRC-32C of the batch at `position` is that of its header."""
    view = memoryview(data).cast("B")
    if crc32c.crc32c(view[position + ATTRIBUTES : position + header.size]) != header.crc:
        raise MalformedBatchError.at(Fault.CHECKSUM, position)


def first_corrupt(data: Bytes, rows: BatchRows) -> int:
    """The first of the batches whose CRC-32C is not that of its header; how many there are if none."""
    view, crc32 = data.data, crc32c.crc32c
    columns = zip(rows["position"].tolist(), rows["size"].tolist(), rows["crc"].tolist(), strict=True)
    for index, (position, size, expected) in enumerate(columns):
        if crc32(view[position + ATTRIBUTES : position + size]) != expected:
            return index
    return rows.size


def patch_offsets(data: Buffer, offset_shift: int, leader_epoch: int) -> None:
    """Add `offset_shift` to the base offset of every batch of `data` and set its leader epoch, in place."""
    fault, position = shift_offsets(writable(data), offset_shift, leader_epoch)
    if fault:
        raise MalformedBatchError.at(fault, position)


def assign_offsets(data: Buffer, first_offset: int = 0, leader_epoch: int = 0) -> int:
    """Give the batches of `data` consecutive offsets from `first_offset` on, in place.

    Returns the offset behind them. Whatever base offsets they had before is overwritten. With the defaults,
    offsets become relative to the section that the batches begin, as an ingestion file has them.
    """
    fault, position, next_offset = _assign_offsets(writable(data), first_offset, leader_epoch)
    if fault:
        raise MalformedBatchError.at(fault, position)
    return int(next_offset)


def set_base_offsets(batches: Iterable[memoryview], base_offsets: Iterable[int], leader_epoch: int) -> None:
    """Write offsets and epoch into the headers of sound batches, each of which is a view, in place.

    As `assign_offsets` does for batches in one buffer; for those that lie apart, without a kernel's call.
    """
    pack = _OFFSET_FIELDS.pack_into
    for batch, base_offset in zip(batches, base_offsets, strict=True):
        pack(batch, 0, base_offset, len(batch) - LENGTH_OVERHEAD, leader_epoch)


def stored_checksums(batches: Iterable[memoryview]) -> list[int]:
    """What the headers of batches, each of which is a view, say that their checksums are."""
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
    """The part of `data` whose batches hold offsets of [first_offset, last_offset], without a copy.

    `offset_shift` is added to stored base offsets before they are compared. `max_bytes` ends the part early,
    but not before its first batch, as a fetch must make progress.
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
    """Turn the batch at `position` into one with LogAppendTime, in place: type, max timestamp and CRC."""
    _stamp(data, position, append_time_ms, TimestampType.LOG_APPEND_TIME)


def set_max_timestamp(data: Buffer, max_timestamp: int, position: int = 0) -> None:
    """Correct the max timestamp of the batch at `position` in place, with its CRC, as brokers do."""
    _stamp(data, position, max_timestamp, TimestampType.CREATE_TIME)


def _stamp(data: Buffer, position: int, max_timestamp: int, timestamp_type: TimestampType) -> None:
    header = read_header(data, position)
    array = writable(data)
    attributes = header.attributes & ~LOG_APPEND_TIME
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME
    struct.pack_into(">h", array.data, position + ATTRIBUTES, attributes)
    struct.pack_into(">q", array.data, position + MAX_TIMESTAMP, max_timestamp)
    write_checksum(array.data, position, header.size)


def write_checksum(data: memoryview, position: int, size: int) -> None:
    """Compute the CRC of the batch at `position` anew and put it in its place; `data` is of bytes."""
    crc = crc32c.crc32c(data[position + ATTRIBUTES : position + size])
    _CRC.pack_into(data, position + CRC, crc)


__all__ = [
    "BATCH_OVERHEAD",
    "BatchHeader",
    "BatchRows",
    "Codec",
    "OrderedBatches",
    "TimestampType",
    "assign_offsets",
    "first_corrupt",
    "iter_headers",
    "patch_offsets",
    "peek_attributes",
    "read_header",
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
