"""Parser of common Produce requests: one kernel call parses a request and validates its batches.

Most requests contain only valid batches. A second call decompresses and validates the compressed ones. The
parser rejects every other request without a reason: the ordinary path (`codec.reading` and the validation of
each batch) then finds the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import njit

from agent.kafka.fast_path.parser_primitives import expect_no_tags, read_length
from object_format.buffers import readable
from object_format.codecs.codec import (
    MAX_DECOMPRESSED_BATCH_BYTES,
    Codec,
    CompressedDataError,
    DecompressedTooLargeError,
    decompress,
)
from object_format.codecs.native import native_codec_table
from object_format.kernels.batches.headers import check_header
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CRC,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_ATTRIBUTES,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    TRANSACTIONAL,
)
from object_format.kernels.batches.records import validate_records
from object_format.kernels.codecs.frame_blocks import frame_bounds
from object_format.kernels.codecs.lz4_frame import lz4_into
from object_format.kernels.codecs.native import CODEC_TABLE_SIZE, zstd_into
from object_format.kernels.runtime.intrinsics import borrowed
from object_format.kernels.runtime.primitives import load_i16, load_i32, load_i64, load_u32

if TYPE_CHECKING:
    from object_format.buffers import Bytes
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers

COLUMNS: Final = 16
"""Each row describes one batch:

0, 1: start and end of the topic's name (or id); 2: partition; 3, 4: start and end of the batch; 5: record
count; 6, 7: lowest and highest timestamp of the records; 8: number of records without a key; from the batch's
header, 9: checksum; 10: max timestamp; 11: producer id; 12: producer epoch; 13: base sequence; 14: codec; and
15: whether the records were validated.
"""

_LOWEST: Final = 6
_CODEC: Final = 14
_VALIDATED: Final = 15
_SUPPORTED: Final = PRODUCER_ATTRIBUTES & ~TRANSACTIONAL
_TOPIC_ID_BYTES: Final = 16
_NO_ROWS: Final = (-1, 0, 0, 0, 0)
_UNLIMITED_BYTES: Final = 1 << 40
"""More than any request can contain."""

_MAX_BLOCKS: Final = 64
"""Limit for decompression on the event loop. Each block may take 10 µs, however small it is."""

_ASSUMED_RATIO: Final = 4
"""The compression ratio assumed for a first batch whose frame does not state its decompressed size."""

_VALID, _INVALID, _TOO_MUCH = 0, 1, 2
_NO_CODEC_TABLE: Final = np.zeros(CODEC_TABLE_SIZE, np.int64)
_LZ4: Final = int(Codec.LZ4)
_ZSTD: Final = int(Codec.ZSTD)


@njit(nogil=True, cache=True)
def _read_batch(data: ByteArray, start: Integer, end: Integer, row: IntArray) -> Integer:
    """Fill the header columns of a row; return True for one supported batch with a valid header."""
    fault, size = check_header(data, start)
    if fault != 0 or size != end - start:
        return False
    count = load_i32(data, start + RECORD_COUNT)
    producer_id = load_i64(data, start + PRODUCER_ID)
    sequence = load_i32(data, start + BASE_SEQUENCE)
    attributes = load_i16(data, start + ATTRIBUTES)
    row[3] = start
    row[4] = end
    row[5] = count
    row[9] = load_u32(data, start + CRC)
    row[10] = load_i64(data, start + MAX_TIMESTAMP)
    row[11] = producer_id
    row[12] = load_i16(data, start + PRODUCER_EPOCH)
    row[13] = sequence
    row[_CODEC] = attributes & CODEC_MASK
    row[_VALIDATED] = False
    return not (
        attributes & ~_SUPPORTED != 0
        or count < 1
        or count != load_i32(data, start + LAST_OFFSET_DELTA) + 1
        or (producer_id >= 0 and sequence < 0)
    )


@njit(nogil=True, cache=True)
def _validate(
    data: ByteArray, start: Integer, records: ByteArray, first: Integer, end: Integer, row: IntArray
) -> Integer:
    """Validate the records of the batch at `start`, which lie in `records`, and fill their columns."""
    fault, _at, lowest, highest, keyless = validate_records(
        records, first, end, row[5], load_i64(data, start + BASE_TIMESTAMP)
    )
    row[_LOWEST] = lowest
    row[_LOWEST + 1] = highest
    row[_LOWEST + 2] = keyless
    row[_VALIDATED] = True
    return fault == 0


@njit(nogil=True, cache=True)
def _is_supported(
    data: ByteArray, start: Integer, end: Integer, row: IntArray, check_records: Integer
) -> Integer:
    """Return True for a supported and valid batch. Its checksum and compressed records are not checked."""
    if not _read_batch(data, start, end, row):
        return False
    if row[_CODEC] != 0 or not check_records:
        return True
    return _validate(data, start, data, start + BATCH_OVERHEAD, end, row)


@njit(nogil=True, cache=True)
def _decompress(data: ByteArray, row: IntArray, scratch: ByteArray, codec_table: IntArray) -> Integer:
    """Decompress a row's batch into `scratch`; return its size, or -1 if that is not possible."""
    start = row[3] + BATCH_OVERHEAD
    size = row[4] - start
    if row[_CODEC] == _LZ4:
        return lz4_into(data, start, size, scratch, 0, codec_table)
    if row[_CODEC] == _ZSTD:
        return zstd_into(data, start, size, scratch, 0, codec_table)
    return -1


@njit(nogil=True, cache=True)
def decompress_rows(
    data: ByteArray,
    rows: IntArray,
    scratch: ByteArray,
    budget: Integer,
    is_native: Integer,
    codec_table: IntArray,
) -> Integers:
    """Decompress each LZ4 or zstd batch into `scratch`, and validate its records.

    Returns whether no batch is invalid, the rest of the `budget` in bytes, and how many batches are still to
    be validated because the kernels cannot decompress them.
    """
    data, rows, scratch, codec_table = (
        borrowed(data),
        borrowed(rows),
        borrowed(scratch),
        borrowed(codec_table),
    )
    unvalidated = np.int64(0)
    for b in range(rows.shape[0]):
        row = rows[b]
        if row[_VALIDATED]:
            continue
        length = (
            _decompress(data, row, scratch[: min(budget, scratch.size)], codec_table)
            if is_native
            else np.int64(-1)
        )
        if length < 0:
            unvalidated += 1
            continue
        budget -= length
        if not _validate(data, row[3], scratch, 0, length, row):
            return False, budget, unvalidated
    return True, budget, unvalidated


@njit(nogil=True, cache=True)
def decompress_few(data: ByteArray, rows: IntArray, scratch: ByteArray, codec_table: IntArray) -> Integer:
    """Like `decompress_rows`, for batches that fit `scratch` together.

    Returns `_VALID`, `_INVALID` or `_TOO_MUCH`. Stops as soon as the result is known. The compression ratio
    so far predicts the size of the other batches.
    """
    data, rows, scratch, codec_table = (
        borrowed(data),
        borrowed(rows),
        borrowed(scratch),
        borrowed(codec_table),
    )
    rest = _estimate_work(data, rows, scratch.size)
    if rest < 0:
        return _TOO_MUCH
    done, budget = np.int64(0), np.int64(scratch.size)
    for b in range(rows.shape[0]):
        row = rows[b]
        if row[_VALIDATED]:
            continue
        length = _decompress(data, row, scratch[:budget], codec_table)
        if length < 0:
            return _TOO_MUCH
        if not _validate(data, row[3], scratch, 0, length, row):
            return _INVALID
        size = row[4] - row[3]
        budget, rest, done = budget - length, rest - size, done + size
        if rest * (scratch.size - budget) > budget * done:
            return _TOO_MUCH
    return _VALID


@njit(nogil=True, cache=True)
def _estimate_work(data: ByteArray, rows: IntArray, max_bytes: Integer) -> Integer:
    """Return the compressed size of all batches to decompress; -1 if that is too much work.

    It is too much work if there are more than `_MAX_BLOCKS` blocks, if the result is likely to exceed
    `max_bytes` bytes, or if the kernels cannot decompress a frame.
    """
    blocks, volume, total = np.int64(0), np.int64(0), np.int64(0)
    for b in range(rows.shape[0]):
        row = rows[b]
        if row[_VALIDATED]:
            continue
        start = row[3] + BATCH_OVERHEAD
        size = row[4] - start
        more, contents, is_stated = frame_bounds(data, start, size, row[_CODEC], _MAX_BLOCKS - blocks)
        if more < 0:
            return -1
        blocks += more
        volume += contents if is_stated else min(contents, size if total else size * _ASSUMED_RATIO)
        total += row[4] - row[3]
    return total if volume <= max_bytes else -1


@njit(nogil=True, cache=True)
def validate_decompressed(data: ByteArray, records: ByteArray, row: IntArray) -> Integer:
    """Validate the decompressed records of a row's batch, and fill their columns."""
    data, records, row = borrowed(data), borrowed(records), borrowed(row)
    return _validate(data, row[3], records, 0, records.size, row)


@njit(nogil=True, cache=True)
def _topic(
    data: ByteArray,
    at: Integer,
    is_flexible: Integer,
    by_id: Integer,
    check_records: Integer,
    rows: IntArray,
    count: Integer,
) -> Integers:
    """Parse one topic into the rows from `count` on; return the new row count and the topic's end, or -1."""
    length, name = (_TOPIC_ID_BYTES, at) if by_id else read_length(data, at, is_flexible, 2)
    if name < 0 or length < 0:
        return count, -1
    name_end = name + length
    batches, at = read_length(data, name_end, is_flexible, 4)
    if at < 0 or batches < 0 or batches > rows.shape[0] - count:
        return count, -1
    for _ in range(batches):
        if at + 4 > data.size:
            return count, -1
        row = rows[count]
        row[0] = name
        row[1] = name_end
        row[2] = load_i32(data, at)
        length, at = read_length(data, at + 4, is_flexible, 4)
        if (
            at < 0
            or not 0 <= length <= data.size - at
            or not _is_supported(data, at, at + length, row, check_records)
        ):
            return count, -1
        count += 1
        at = expect_no_tags(data, at + length, is_flexible)
        if at < 0:
            return count, -1
    return count, expect_no_tags(data, at, is_flexible)


@njit(nogil=True, cache=True)
def parse_request(
    data: ByteArray, at: Integer, is_flexible: Integer, by_id: Integer, check_records: Integer, rows: IntArray
) -> Integers:
    """Parse a request into one row for each batch.

    Returns the numbers of batches and of compressed batches, their bytes, the request's acks and its timeout.
    The number of batches is -1 for a transactional request, for more batches than rows, or for a batch that
    is unsupported or invalid. Uncompressed records are validated if `check_records` is true.
    """
    data = borrowed(data)
    rows = borrowed(rows)
    length, at = read_length(data, at, is_flexible, 2)
    if at < 0 or length != -1 or at + 6 > data.size:
        return _NO_ROWS
    acks, timeout = load_i16(data, at), load_i32(data, at + 2)
    topics, at = read_length(data, at + 6, is_flexible, 4)
    if at < 0 or topics < 0:
        return _NO_ROWS
    count = 0
    for _ in range(topics):
        count, at = _topic(data, at, is_flexible, by_id, check_records, rows, count)
        if at < 0:
            return _NO_ROWS
    if expect_no_tags(data, at, is_flexible) < 0:
        return _NO_ROWS
    compressed, size = 0, 0
    for b in range(count):
        compressed += int(rows[b, _CODEC] != 0)
        size += rows[b, 4] - rows[b, 3]
    return count, compressed, size, acks, timeout


class ProduceRequest(NamedTuple):
    """A parsed request: a row of `COLUMNS` numbers for each batch. `size` counts the bytes of all batches."""

    rows: list[list[int]]
    compressed: int
    size: int
    acks: int
    timeout: int


class ProduceParser:
    """Parses requests of at most `max_batches` batches. Belongs to one thread."""

    def __init__(self, max_batches: int) -> None:
        self._rows = np.empty((max_batches, COLUMNS), np.int64)
        self._count = 0

    def read(
        self, frame: memoryview, position: int, *, is_flexible: bool, by_id: bool, check_records: bool = True
    ) -> ProduceRequest | None:
        """Return the request whose body starts at `position`; None if it is unsupported or invalid.

        The records of compressed batches are validated by `decompress_all`. Without `check_records`, no
        records are validated.
        """
        count, compressed, size, acks, timeout = parse_request(
            readable(frame), position, is_flexible, by_id, check_records, self._rows
        )
        if count < 0:
            return None
        self._count = count
        return ProduceRequest(self._rows[:count].tolist(), compressed, size, acks, timeout)

    def decompress_quickly(self, frame: memoryview, scratch: Bytes) -> list[list[int]] | None:
        """Like `decompress_all`, for little work on the event loop; return no rows if a batch is invalid.

        Returns None if the work is too much, or if a codec is not available to the kernels. The decompressed
        batches together must fit `scratch`.
        """
        codec_table = native_codec_table()
        if codec_table is None:
            return None
        rows = self._rows[: self._count]
        found = decompress_few(readable(frame), rows, scratch, codec_table)
        if found == _TOO_MUCH:
            return None
        validated: list[list[int]] = rows.tolist()
        return validated if found == _VALID else []

    def decompress_all(self, frame: memoryview, scratch: Bytes) -> list[list[int]] | None:
        """Validate the compressed batches of the last request; return its rows, or None if one is invalid.

        Batches that fit `scratch` are decompressed into it. This may take long even for a small request: do
        not call it on the event loop.
        """
        data, rows = readable(frame), self._rows[: self._count]
        codec_table = native_codec_table()
        is_native, functions = (False, _NO_CODEC_TABLE) if codec_table is None else (True, codec_table)
        is_valid, budget, unvalidated = decompress_rows(
            data, rows, scratch, _UNLIMITED_BYTES, is_native, functions
        )
        if not is_valid:
            return None
        if unvalidated:
            for b in np.flatnonzero(rows[:, _VALIDATED] == 0).tolist():
                budget -= _decompress_alone(frame, data, rows[b], budget)
                if budget < 0:
                    return None
        validated: list[list[int]] = rows.tolist()
        return validated


def _decompress_alone(frame: memoryview, data: Bytes, row: IntArray, budget: int) -> int:
    """Validate one batch of any codec; return its decompressed size, or more than `budget` if invalid."""
    start, end, codec = int(row[3]), int(row[4]), Codec(int(row[_CODEC]))
    try:
        records = readable(
            decompress(
                codec, frame[start + BATCH_OVERHEAD : end], limit=min(budget, MAX_DECOMPRESSED_BATCH_BYTES)
            )
        )
    except (CompressedDataError, DecompressedTooLargeError):
        return budget + 1
    return records.size if validate_decompressed(data, records, row) else budget + 1
