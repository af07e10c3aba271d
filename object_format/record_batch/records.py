"""Records as columns: decoding of batches for readers, and encoding for producers."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import crc32c
import numpy as np
import numpy.typing as npt

from object_format.buffers import Bytes, readable
from object_format.codecs.codec import Codec, compress
from object_format.errors import Fault, MalformedBatchError, UnsupportedBatchError
from object_format.kernels.batches.encode import MAX_RECORD_OVERHEAD
from object_format.kernels.batches.encode import encode_records as encode_records_into
from object_format.kernels.batches.layout import (
    BATCH_OVERHEAD,
    CONTROL,
    DELETE_HORIZON,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from object_format.kernels.batches.records import decode_rows, split_headers
from object_format.record_batch.decompression import open_batches
from object_format.record_batch.headers import (
    BatchRows,
    TimestampType,
    first_corrupt,
    offset_range,
    read_header,
    record_error,
    scan_batches,
    verify_checksum,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

Headers = tuple[tuple[str, bytes | None], ...]

NO_PRODUCER: Final = (-1, -1, -1)

_INT32_MAX: Final = 2**31 - 1
_UNCOVERED: Final = struct.Struct(">qiibI")
_COVERED: Final = struct.Struct(">hiqqqhii")
"""A header in two parts: the fields that the CRC does not cover, with the CRC itself, and those that it
covers."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record, for code that processes records one by one."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(slots=True, eq=False)
class RecordColumns:
    """Records as columns that point into `data`. A length of -1 means null.

    `headers_start` and `headers_length` delimit a record's encoded headers, including their count.
    `next_offset` is the offset after the last decoded batch, even if its last record no longer exists.
    """

    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    key_start: npt.NDArray[np.int64]
    key_length: npt.NDArray[np.int32]
    value_start: npt.NDArray[np.int64]
    value_length: npt.NDArray[np.int32]
    headers_start: npt.NDArray[np.int64]
    headers_length: npt.NDArray[np.int32]
    data: Bytes
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets)

    def record(self, index: int) -> Record:
        """Return a copy of one record."""
        return Record(
            int(self.offsets[index]),
            int(self.timestamps[index]),
            self._slice(int(self.key_start[index]), int(self.key_length[index])),
            self._slice(int(self.value_start[index]), int(self.value_length[index])),
            self.headers(index),
        )

    def records(self) -> list[Record]:
        """Return copies of all records."""
        data = self.data.tobytes()
        keys = zip(self.key_start.tolist(), self.key_length.tolist(), strict=True)
        values = zip(self.value_start.tolist(), self.value_length.tolist(), strict=True)
        return [
            Record(
                offset,
                timestamp,
                None if key_length < 0 else data[key : key + key_length],
                None if value_length < 0 else data[value : value + value_length],
                self.headers(i) if has_headers else (),
            )
            for i, (offset, timestamp, (key, key_length), (value, value_length), has_headers) in enumerate(
                zip(
                    self.offsets.tolist(),
                    self.timestamps.tolist(),
                    keys,
                    values,
                    (self.headers_length > 1).tolist(),
                    strict=True,
                )
            )
        ]

    def headers(self, index: int) -> Headers:
        """Return the headers of a record. Invalid UTF-8 in header names is replaced, as in Java."""
        start, length = int(self.headers_start[index]), int(self.headers_length[index])
        if length == 1:
            return ()
        block = self.data[start : start + length]
        parts = np.empty((_read_varint(block), 4), np.int64)
        split_headers(block, 0, parts)
        data = block.tobytes()
        return tuple(
            (
                data[key : key + key_length].decode(errors="replace"),
                None if value_length < 0 else data[value : value + value_length],
            )
            for key, key_length, value, value_length in parts.tolist()
        )

    def _slice(self, start: int, length: int) -> bytes | None:
        return None if length < 0 else self.data[start : start + length].tobytes()


def _read_varint(block: Bytes) -> int:
    """Return the header count at the start of a header block that a kernel has validated."""
    raw = shift = 0
    for byte in block[:5].tolist():
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    raw &= 0xFFFFFFFF
    return int(raw >> 1)


def decode_batch(
    data: Buffer, position: int = 0, *, offset_shift: int = 0, verify: bool = True
) -> RecordColumns:
    """Return the records of the batch at `position`, including control records.

    `offset_shift` is added to all offsets. With `verify`, the CRC is verified first. Raises
    MalformedBatchError.
    """
    header = read_header(data, position)
    if verify:
        verify_checksum(data, header, position)
    batch = readable(data)[position : position + header.size]
    try:
        opened, rows = next(open_batches(batch, scan_batches(batch)))
        return _decode(opened, rows, offset_shift)
    except MalformedBatchError as error:
        raise MalformedBatchError.at(error.fault, position + error.position) from error


def decode_batches(
    data: Buffer, *, offset_shift: int = 0, verify: bool = False, control: bool = False
) -> Iterator[RecordColumns]:
    """Yield the records of all batches of `data` in order; one RecordColumns may contain many batches.

    Control batches yield no records unless `control` is set, but advance `next_offset`. Raises
    MalformedBatchError.
    """
    array = readable(data)
    rows = scan_batches(array)
    if verify:
        verify_rows(array, rows)
    for opened, run in open_batches(array, rows):
        columns = _decode(opened, run if control else run[(run["attributes"] & CONTROL) == 0], offset_shift)
        columns.next_offset = _next_offset(run, offset_shift)
        yield columns


def verify_rows(array: Bytes, rows: BatchRows) -> None:
    """Raise MalformedBatchError at the first batch whose CRC does not match."""
    index = first_corrupt(array, rows)
    if index < rows.size:
        raise MalformedBatchError.at(Fault.CHECKSUM, int(rows["position"][index]))


def _next_offset(rows: BatchRows, offset_shift: int) -> int:
    return offset_range(rows, offset_shift)[1] + 1


def _decode(data: Bytes, rows: BatchRows, offset_shift: int) -> RecordColumns:
    count = int(rows["record_count"].sum())
    longs = np.empty((5, count), np.int64)
    lengths = np.empty((3, count), np.int32)
    fault, position, row = decode_rows(data, rows, offset_shift, longs, lengths)
    if fault:
        raise record_error(fault, rows[row], position)
    return RecordColumns(
        offsets=longs[0],
        timestamps=longs[1],
        key_start=longs[2],
        key_length=lengths[0],
        value_start=longs[3],
        value_length=lengths[1],
        headers_start=longs[4],
        headers_length=lengths[2],
        data=data,
        next_offset=_next_offset(rows, offset_shift) if rows.size else 0,
    )


def encode_batch(
    timestamps: Sequence[int] | npt.NDArray[np.int64],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    offset_deltas: Sequence[int] | npt.NDArray[np.int64] | None = None,
    last_offset_delta: int | None = None,
    leader_epoch: int = 0,
    producer: tuple[int, int, int] = NO_PRODUCER,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    is_transactional: bool = False,
    is_control: bool = False,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Encode one batch from columns of equal length with one entry per record.

    `producer` is (producer id, epoch, base sequence). Offsets are consecutive from `base_offset` on unless
    `offset_deltas`, which must be ascending, is given. `last_offset_delta` defaults to the delta of the last
    record. With LOG_APPEND_TIME, the highest timestamp applies to all records. Raises UnsupportedBatchError
    if the records do not fit a batch.
    """
    count = len(keys)
    if not len(timestamps) == count == len(values) or (headers is not None and len(headers) != count):
        raise UnsupportedBatchError("the columns of a batch differ in length")
    timers = np.asarray(timestamps, np.int64)
    deltas = (
        np.arange(count, dtype=np.int64) if offset_deltas is None else np.asarray(offset_deltas, np.int64)
    )
    last_delta = (int(deltas[-1]) if count else 0) if last_offset_delta is None else last_offset_delta
    _check_deltas(deltas, count, last_delta)
    base_timestamp = delete_horizon_ms
    if base_timestamp is None:
        base_timestamp = int(timers[0]) if count else -1
    records = compress(codec, _encode_records(timers - base_timestamp, deltas, keys, values, headers))
    size = BATCH_OVERHEAD + len(records)
    if size - LENGTH_OVERHEAD > _INT32_MAX:
        raise UnsupportedBatchError(
            f"a batch of {size} bytes is too large", remedy="use fewer records per batch"
        )
    attributes = codec | LOG_APPEND_TIME * timestamp_type | TRANSACTIONAL * is_transactional
    attributes |= CONTROL * is_control | DELETE_HORIZON * (delete_horizon_ms is not None)
    covered = _COVERED.pack(
        attributes,
        last_delta,
        base_timestamp,
        int(timers.max()) if count else -1,
        *producer,
        count,
    )
    crc = crc32c.crc32c(records, crc32c.crc32c(covered))
    prefix = _UNCOVERED.pack(base_offset, size - LENGTH_OVERHEAD, leader_epoch, 2, crc)
    return b"".join((prefix, covered, records))


def encode_records(records: Sequence[Record], *, codec: Codec = Codec.NONE, leader_epoch: int = 0) -> bytes:
    """Encode one batch of records with their own offsets; the first record's offset is the base offset."""
    base_offset = records[0].offset if records else 0
    return encode_batch(
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [record.headers for record in records] if any(record.headers for record in records) else None,
        codec=codec,
        base_offset=base_offset,
        offset_deltas=[record.offset - base_offset for record in records],
        leader_epoch=leader_epoch,
    )


def _check_deltas(deltas: npt.NDArray[np.int64], count: int, last_delta: int) -> None:
    if len(deltas) != count:
        raise UnsupportedBatchError("the columns of a batch differ in length")
    top = int(deltas[-1]) if count else 0
    if not top <= last_delta <= _INT32_MAX or (count and deltas[0] < 0) or bool((np.diff(deltas) <= 0).any()):
        raise UnsupportedBatchError(
            "the offsets of a batch must be ascending and less than 2^31 above its base offset",
            remedy="split the records into several batches",
        )


def _encode_records(
    timestamp_deltas: npt.NDArray[np.int64],
    offset_deltas: npt.NDArray[np.int64],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[tuple[str, bytes | None]]] | None,
) -> memoryview:
    count = len(keys)
    key_bytes, key_lengths = _concatenate(keys)
    value_bytes, value_lengths = _concatenate(values)
    if headers is None:
        header_bytes, header_lengths = readable(bytes(count)), np.ones(count, np.int64)
    else:
        header_bytes, header_lengths = _concatenate([_encode_headers(names) for names in headers])
    capacity = key_bytes.size + value_bytes.size + header_bytes.size + count * MAX_RECORD_OVERHEAD
    if capacity > _INT32_MAX:
        raise UnsupportedBatchError(
            f"a batch of {capacity} bytes is too large", remedy="use fewer records per batch"
        )
    out = np.empty(capacity, np.uint8)
    end = encode_records_into(
        out,
        0,
        timestamp_deltas,
        offset_deltas,
        key_bytes,
        key_lengths,
        value_bytes,
        value_lengths,
        header_bytes,
        header_lengths,
    )
    return out[:end].data


def _concatenate(parts: Sequence[bytes | None]) -> tuple[Bytes, npt.NDArray[np.int64]]:
    lengths = np.array([-1 if part is None else len(part) for part in parts], np.int64)
    return readable(b"".join([part or b"" for part in parts])), lengths


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the encoded header count and headers of a record."""
    parts: list[bytes] = [_varint(len(headers))]
    for name, value in headers:
        raw = name.encode()
        parts += (_varint(len(raw)), raw, _varint(-1 if value is None else len(value)), value or b"")
    return b"".join(parts)


def _varint(value: int) -> bytes:
    """Return a zigzag varint; 32 bits are sufficient for lengths."""
    raw = value << 1 ^ value >> 31
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
