"""A whole Produce request in one call: where its batches lie, and what there is to say of them.

Most requests bring nothing but uncompressed batches without a fault. Those are read and judged here together;
of anything else the survey only says that it is not for it, and `reading` and the validation of each batch
find out what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit

from agent.kafka.codec.survey import length_at, untagged
from object_format.buffers import readable
from object_format.kernels.layout import (
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
from object_format.kernels.machine import borrowed
from object_format.kernels.primitives import load_i16, load_i32, load_i64, load_u32
from object_format.kernels.records import judge_records
from object_format.kernels.walk import check_header

if TYPE_CHECKING:
    from object_format.kernels.signatures import ByteArray, Integer, Integers, Numbers

COLUMNS: Final = 14
"""Of a row: where the topic's name (or identifier) begins and ends, partition, where the batch begins and
ends, records, their lowest and highest timestamp, how many have no key; then of the batch's header: checksum,
max timestamp, producer id, epoch, base sequence."""

_UNUSUAL: Final = CODEC_MASK | LOG_APPEND_TIME | CONTROL | TRANSACTIONAL
_IDENTIFIER_BYTES: Final = 16
_NO_ROWS: Final = (-1, 0, 0)


@njit(nogil=True, cache=True)
def _judge_batch(data: ByteArray, start: Integer, end: Integer, row: Numbers) -> Integer:
    """Whether one sound, uncompressed batch lies there, but for its checksum; fills its columns."""
    fault, size = check_header(data, start)
    if fault != 0 or size != end - start:
        return False
    count = load_i32(data, start + RECORD_COUNT)
    producer_id = load_i64(data, start + PRODUCER_ID)
    sequence = load_i32(data, start + BASE_SEQUENCE)
    if (
        load_i16(data, start + ATTRIBUTES) & _UNUSUAL != 0
        or count < 1
        or count != load_i32(data, start + LAST_OFFSET_DELTA) + 1
        or (producer_id >= 0 and sequence < 0)
    ):
        return False
    fault, _at, lowest, highest, keyless = judge_records(
        data, start + BATCH_OVERHEAD, end, count, load_i64(data, start + BASE_TIMESTAMP)
    )
    row[3] = start
    row[4] = end
    row[5] = count
    row[6] = lowest
    row[7] = highest
    row[8] = keyless
    row[9] = load_u32(data, start + CRC)
    row[10] = load_i64(data, start + MAX_TIMESTAMP)
    row[11] = producer_id
    row[12] = load_i16(data, start + PRODUCER_EPOCH)
    row[13] = sequence
    return fault == 0


@njit(nogil=True, cache=True)
def _topic(
    data: ByteArray, at: Integer, is_flexible: Integer, by_id: Integer, rows: Numbers, count: Integer
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
        if at < 0 or length < 0 or length > data.size - at or not _judge_batch(data, at, at + length, row):
            return count, -1
        count += 1
        at = untagged(data, at + length, is_flexible)
        if at < 0:
            return count, -1
    return count, untagged(data, at, is_flexible)


@njit(nogil=True, cache=True)
def survey_request(
    data: ByteArray, at: Integer, is_flexible: Integer, by_id: Integer, rows: Numbers
) -> Integers:
    """A request's batches as rows, `COLUMNS` each: how many, its acks and its timeout.

    -1 batches where it is not a request without a transaction, with at most that many batches, all of them
    plain.
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
        count, at = _topic(data, at, is_flexible, by_id, rows, count)
        if at < 0:
            return _NO_ROWS
    return count, acks, timeout


class ProduceSurvey:
    """Surveys requests of at most `most_batches`. Belongs to one thread."""

    def __init__(self, most_batches: int) -> None:
        self._rows = np.empty((most_batches, COLUMNS), np.int64)

    def read(
        self, frame: memoryview, position: int, *, is_flexible: bool, by_id: bool
    ) -> tuple[list[list[int]], int, int] | None:
        """Rows of the batches of the request whose body begins at `position`, its acks and its timeout.

        None for a request that is not for the survey, for whatever reason.
        """
        count, acks, timeout = survey_request(readable(frame), position, is_flexible, by_id, self._rows)
        if count < 0:
            return None
        rows: list[list[int]] = self._rows[:count].tolist()
        return rows, acks, timeout
