"""A whole Produce request in one call: where its batches lie, and what there is to say of them.

Most requests bring nothing but batches without a fault. Those are read and judged here together, and those
that are compressed in one call more; of anything else the survey only says that it is not for it, and
`reading` and the validation of each batch find out what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import njit

from agent.kafka.fast_path.parser_primitives import length_at, untagged
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
    CONTROL,
    CRC,
    LAST_OFFSET_DELTA,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
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
"""Of a row: where the topic's name (or identifier) begins and ends, partition, where the batch begins and
ends, records, their lowest and highest timestamp, how many have no key; then of the batch's header: checksum,
max timestamp, producer id, epoch, base sequence, codec; and whether the records were judged."""

_LOWEST: Final = 6
_CODEC: Final = 14
_JUDGED: Final = 15
_UNSUPPORTED: Final = LOG_APPEND_TIME | CONTROL | TRANSACTIONAL
_IDENTIFIER_BYTES: Final = 16
_NO_ROWS: Final = (-1, 0, 0, 0, 0)
_MAX_OPENED: Final = 1 << 40
"""More than any request can hold."""

_MAX_BLOCKS: Final = 64
"""Of all batches that are decompressed at once: each may take 10 µs, however little is in it."""

_USUAL_RATIO: Final = 4
"""Of a first batch that does not say what comes out of it."""

_SOUND, _AT_FAULT, _TOO_MUCH = 0, 1, 2
_NO_CODEC_TABLE: Final = np.zeros(CODEC_TABLE_SIZE, np.int64)
_LZ4: Final = int(Codec.LZ4)
_ZSTD: Final = int(Codec.ZSTD)


@njit(nogil=True, cache=True)
def _read_batch(data: ByteArray, start: Integer, end: Integer, row: IntArray) -> Integer:
    """Whether one batch with a sound header lies there; its columns, but for those of its records."""
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
    row[_JUDGED] = False
    return not (
        attributes & _UNSUPPORTED != 0
        or count < 1
        or count != load_i32(data, start + LAST_OFFSET_DELTA) + 1
        or (producer_id >= 0 and sequence < 0)
    )


@njit(nogil=True, cache=True)
def _judge(
    data: ByteArray, start: Integer, records: ByteArray, first: Integer, end: Integer, row: IntArray
) -> Integer:
    """Whether the batch at `start` has sound records, which lie in `records`; fills their columns."""
    fault, _at, lowest, highest, keyless = validate_records(
        records, first, end, row[5], load_i64(data, start + BASE_TIMESTAMP)
    )
    row[_LOWEST] = lowest
    row[_LOWEST + 1] = highest
    row[_LOWEST + 2] = keyless
    row[_JUDGED] = True
    return fault == 0


@njit(nogil=True, cache=True)
def _is_for_us(data: ByteArray, start: Integer, end: Integer, row: IntArray, judges: Integer) -> Integer:
    """Whether a sound batch lies there, but for its checksum and for records that are compressed."""
    if not _read_batch(data, start, end, row):
        return False
    if row[_CODEC] != 0 or not judges:
        return True
    return _judge(data, start, data, start + BATCH_OVERHEAD, end, row)


@njit(nogil=True, cache=True)
def _opened(data: ByteArray, row: IntArray, room: ByteArray, codec_table: IntArray) -> Integer:
    """Decompress a row's batch into `room`: how many bytes, or -1 if it does not fit or is not as usual."""
    start = row[3] + BATCH_OVERHEAD
    size = row[4] - start
    if row[_CODEC] == _LZ4:
        return lz4_into(data, start, size, room, 0, codec_table)
    if row[_CODEC] == _ZSTD:
        return zstd_into(data, start, size, room, 0, codec_table)
    return -1


@njit(nogil=True, cache=True)
def open_rows(
    data: ByteArray, rows: IntArray, room: ByteArray, left: Integer, is_native: Integer, codec_table: IntArray
) -> Integers:
    """Judge batches that LZ4 or zstd has compressed, each in `room`.

    Whether they have no fault and are not more than what is `left`, which is in bytes; what of it is left
    then, and how many batches, which are not as usual, were not judged.
    """
    data, rows, room, codec_table = borrowed(data), borrowed(rows), borrowed(room), borrowed(codec_table)
    unjudged = np.int64(0)
    for b in range(rows.shape[0]):
        row = rows[b]
        if row[_JUDGED]:
            continue
        length = _opened(data, row, room[: min(left, room.size)], codec_table) if is_native else np.int64(-1)
        if length < 0:
            unjudged += 1
            continue
        left -= length
        if not _judge(data, row[3], room, 0, length, row):
            return False, left, unjudged
    return True, left, unjudged


@njit(nogil=True, cache=True)
def open_few(data: ByteArray, rows: IntArray, room: ByteArray, codec_table: IntArray) -> Integer:
    """As `open_rows`, of batches that all of `room` is enough for: `_SOUND`, `_AT_FAULT`, or `_TOO_MUCH`.

    It ends as soon as that much is known. Once a batch is open, it tells what to expect of the others.
    """
    data, rows, room, codec_table = borrowed(data), borrowed(rows), borrowed(room), borrowed(codec_table)
    rest = _little_work(data, rows, room.size)
    if rest < 0:
        return _TOO_MUCH
    done, left = np.int64(0), np.int64(room.size)
    for b in range(rows.shape[0]):
        row = rows[b]
        if row[_JUDGED]:
            continue
        length = _opened(data, row, room[:left], codec_table)
        if length < 0:
            return _TOO_MUCH
        if not _judge(data, row[3], room, 0, length, row):
            return _AT_FAULT
        size = row[4] - row[3]
        left, rest, done = left - length, rest - size, done + size
        if rest * (room.size - left) > left * done:
            return _TOO_MUCH
    return _SOUND


@njit(nogil=True, cache=True)
def _little_work(data: ByteArray, rows: IntArray, most: Integer) -> Integer:
    """The size of the batches that are to be decompressed; -1 where that is more than a little work.

    So it is where they have more than `_MAX_BLOCKS`, are likely to come to more than `most` bytes, or are
    not all frames that kernels open.
    """
    blocks, volume, total = np.int64(0), np.int64(0), np.int64(0)
    for b in range(rows.shape[0]):
        row = rows[b]
        if row[_JUDGED]:
            continue
        start = row[3] + BATCH_OVERHEAD
        size = row[4] - start
        more, contents, is_stated = frame_bounds(data, start, size, row[_CODEC], _MAX_BLOCKS - blocks)
        if more < 0:
            return -1
        blocks += more
        volume += contents if is_stated else min(contents, size if total else size * _USUAL_RATIO)
        total += row[4] - row[3]
    return total if volume <= most else -1


@njit(nogil=True, cache=True)
def judge_opened(data: ByteArray, records: ByteArray, row: IntArray) -> Integer:
    """Whether the records of a row's batch, which are all of `records`, are sound; fills their columns."""
    data, records, row = borrowed(data), borrowed(records), borrowed(row)
    return _judge(data, row[3], records, 0, records.size, row)


@njit(nogil=True, cache=True)
def _topic(
    data: ByteArray,
    at: Integer,
    is_flexible: Integer,
    by_id: Integer,
    judges: Integer,
    rows: IntArray,
    count: Integer,
) -> Integers:
    """One topic's batches into the rows from `count` on: how many rows there are now, and where it ends."""
    length, name = (_IDENTIFIER_BYTES, at) if by_id else length_at(data, at, is_flexible, 2)
    if name < 0 or length < 0:
        return count, -1
    named = name + length
    batches, at = length_at(data, named, is_flexible, 4)
    if at < 0 or batches < 0 or batches > rows.shape[0] - count:
        return count, -1
    for _ in range(batches):
        if at + 4 > data.size:
            return count, -1
        row = rows[count]
        row[0] = name
        row[1] = named
        row[2] = load_i32(data, at)
        length, at = length_at(data, at + 4, is_flexible, 4)
        if at < 0 or not 0 <= length <= data.size - at or not _is_for_us(data, at, at + length, row, judges):
            return count, -1
        count += 1
        at = untagged(data, at + length, is_flexible)
        if at < 0:
            return count, -1
    return count, untagged(data, at, is_flexible)


@njit(nogil=True, cache=True)
def parse_request(
    data: ByteArray, at: Integer, is_flexible: Integer, by_id: Integer, judges: Integer, rows: IntArray
) -> Integers:
    """A request's batches as rows, `COLUMNS` each: how many, how many compressed, bytes, acks and timeout.

    -1 batches where it is not a request without a transaction, with at most that many batches, all of them
    plain. Records are looked at where it `judges`.
    """
    data = borrowed(data)
    rows = borrowed(rows)
    length, at = length_at(data, at, is_flexible, 2)
    if at < 0 or length != -1 or at + 6 > data.size:
        return _NO_ROWS
    acks, timeout = load_i16(data, at), load_i32(data, at + 2)
    topics, at = length_at(data, at + 6, is_flexible, 4)
    if at < 0 or topics < 0:
        return _NO_ROWS
    count = 0
    for _ in range(topics):
        count, at = _topic(data, at, is_flexible, by_id, judges, rows, count)
        if at < 0:
            return _NO_ROWS
    if untagged(data, at, is_flexible) < 0:
        return _NO_ROWS
    compressed, size = 0, 0
    for b in range(count):
        compressed += int(rows[b, _CODEC] != 0)
        size += rows[b, 4] - rows[b, 3]
    return count, compressed, size, acks, timeout


class ProduceRequest(NamedTuple):
    """What a request brings: `COLUMNS` numbers for each batch, how many are compressed, and their bytes."""

    rows: list[list[int]]
    compressed: int
    size: int
    acks: int
    timeout: int


class ProduceParser:
    """Surveys requests for at most `most_batches`. Belongs to one thread."""

    def __init__(self, most_batches: int) -> None:
        self._rows = np.empty((most_batches, COLUMNS), np.int64)
        self._count = 0

    def read(
        self, frame: memoryview, position: int, *, is_flexible: bool, by_id: bool, judges: bool = True
    ) -> ProduceRequest | None:
        """The request whose body begins at `position`; None for one that is not for the survey.

        Records of compressed batches are still to be looked at (`open`), or all of them unless it `judges`.
        """
        count, compressed, size, acks, timeout = parse_request(
            readable(frame), position, is_flexible, by_id, judges, self._rows
        )
        if count < 0:
            return None
        self._count = count
        return ProduceRequest(self._rows[:count].tolist(), compressed, size, acks, timeout)

    def open_quickly(self, frame: memoryview, room: Bytes) -> list[list[int]] | None:
        """As `open`, within `room`, of a request that is but a little work; no rows where any is at fault.

        That is so much for the libraries' functions alone, which make no more of it than fits the room, out
        of few blocks. None for all else, such as other codecs, whose decoders are called batch by batch.
        """
        codec_table = native_codec_table()
        if codec_table is None:
            return None
        rows = self._rows[: self._count]
        found = open_few(readable(frame), rows, room, codec_table)
        if found == _TOO_MUCH:
            return None
        judged: list[list[int]] = rows.tolist()
        return judged if found == _SOUND else []

    def open(self, frame: memoryview, room: Bytes) -> list[list[int]] | None:
        """The rows of the request that was read last, with the records of compressed batches judged.

        They are decompressed in `room` where that can be. None where any is at fault. However small a request
        is, this may take long: it is not for the event loop.
        """
        data, rows = readable(frame), self._rows[: self._count]
        codec_table = native_codec_table()
        is_native, functions = (False, _NO_CODEC_TABLE) if codec_table is None else (True, codec_table)
        is_sound, left, unjudged = open_rows(data, rows, room, _MAX_OPENED, is_native, functions)
        if not is_sound:
            return None
        if unjudged:
            for b in np.flatnonzero(rows[:, _JUDGED] == 0).tolist():
                left -= _open_alone(frame, data, rows[b], left)
                if left < 0:
                    return None
        judged: list[list[int]] = rows.tolist()
        return judged


def _open_alone(frame: memoryview, data: Bytes, row: IntArray, left: int) -> int:
    """Judge one batch of any codec; the size of its records, or more than is left where they are at fault."""
    start, end, codec = int(row[3]), int(row[4]), Codec(int(row[_CODEC]))
    try:
        records = readable(
            decompress(
                codec, frame[start + BATCH_OVERHEAD : end], limit=min(left, MAX_DECOMPRESSED_BATCH_BYTES)
            )
        )
    except (CompressedDataError, DecompressedTooLargeError):
        return left + 1
    return records.size if judge_opened(data, records, row) else left + 1
