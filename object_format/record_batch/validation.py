"""Validates batches from producers before an append, and summarizes them.

The rules are those of Kafka's LogValidator for batches from clients, and one more: a producer may only set
the attribute bits of the codec and of transactions. Kafka stores a delete horizon (KIP-534) that a producer
sends, and its cleaner then drops the batch's tombstones at a time that the producer chose.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import crc32c
import numpy as np

from object_format.buffers import Bytes, readable
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.append import check_producer_headers, summarize_rows
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BATCH_ROW,
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    PRODUCER_ATTRIBUTES,
)
from object_format.kernels.batches.records import find_keyless, validate_rows, validate_single_batch
from object_format.record_batch.decompression import decompress_batches, open_records, thread_scratch
from object_format.record_batch.headers import BatchRows, first_corrupt, scan_until_malformed

if TYPE_CHECKING:
    from typing_extensions import Buffer

_COLUMNS: Final = BATCH_ROW.names or ()
(
    _POSITION,
    _SIZE,
    _CRC,
    _ATTRIBUTES,
    _LAST_OFFSET_DELTA,
    _PRODUCER_ID,
    _BASE_SEQUENCE,
    _RECORD_COUNT,
    _FAULT,
    _FAULT_POSITION,
) = map(
    _COLUMNS.index,
    (
        "position",
        "size",
        "crc",
        "attributes",
        "last_offset_delta",
        "producer_id",
        "base_sequence",
        "record_count",
        "fault",
        "fault_position",
    ),
)

_FIRST: Final = np.zeros(1, np.int64)

MAX_RECORDS_REPORTED: Final = 1000
"""Maximum number of record indexes in one `BatchProblem`; `keyless_count` counts all records."""


class BatchSummary(NamedTuple):
    """Facts about a batch that a log needs; `min_timestamp` and `max_timestamp` are those of the records.

    `header_max_timestamp` is the producer's value. If it differs from `max_timestamp`, a broker corrects the
    batch with `set_max_timestamp`.
    """

    position: int
    size: int
    last_offset_delta: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    header_max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProblem:
    """Reason why a batch is rejected.

    `batch` counts from 0, `position` is in bytes. For KEYLESS_RECORDS, `record_indexes` contains the first
    `MAX_RECORDS_REPORTED` records without a key, and `keyless_count` is their total number.
    """

    batch: int
    position: int
    fault: Fault
    record_indexes: tuple[int, ...] = ()
    keyless_count: int = 0

    @property
    def message(self) -> str:
        """Description for the producer."""
        return f"batch {self.batch}: {self.fault.explanation}"


class ValidatedBatches(NamedTuple):
    """The batches of a buffer and their problems. Without problems, the whole buffer may be appended.

    A malformed header makes all later batches unreadable. `batches` then ends before it, and the last problem
    has the number of batches as its `batch`.
    """

    batches: tuple[BatchSummary, ...]
    problems: tuple[BatchProblem, ...]

    @property
    def record_count(self) -> int:
        """Number of records in all batches."""
        return sum(batch.record_count for batch in self.batches)


def validate_batches(data: Buffer, *, require_keys: bool) -> ValidatedBatches:
    """Validate a producer's batches: structure, CRC, record counts, offsets, and keys if required.

    Invalid bytes are reported as problems. This function does not raise.
    """
    array = readable(data)
    single = _fast_single_batch(array, require_keys=require_keys)
    if single is not None:
        return ValidatedBatches((single,), ())
    rows, fault, position = scan_until_malformed(array)
    compressed = _check_headers(array, rows)
    validate_rows(array, rows, False)
    for index in compressed:
        _check_compressed(array, rows[index : index + 1])
    validated: list[tuple[int, ...]] = rows.tolist()
    problems = [
        BatchProblem(batch=index, position=row[_FAULT_POSITION], fault=Fault(row[_FAULT]))
        for index, row in enumerate(validated)
        if row[_FAULT]
    ]
    if require_keys:
        keyless = np.flatnonzero((rows["keyless"] > 0) & (rows["fault"] == Fault.NONE))
        problems += [_keyless_problem(array, rows, index) for index in keyless.tolist()]
    if fault:
        problems.append(BatchProblem(batch=rows.size, position=position, fault=Fault(fault)))
    problems.sort(key=lambda problem: problem.batch)
    return ValidatedBatches(batches=tuple(map(_summary, validated)), problems=tuple(problems))


class FastValidation(NamedTuple):
    """Valid batches with the totals that are compared with a topic's limits.

    `max_timestamps_match` is True if every header has the max timestamp of its records.
    """

    rows: BatchRows
    max_batch_size: int
    min_timestamp: int
    max_timestamp: int
    max_timestamps_match: bool


def fast_validate_batches(array: Bytes, *, require_keys: bool) -> FastValidation | None:
    """Validate like `validate_batches`, but all batches together; return None if there is any problem.

    This is for callers that need rows instead of summaries. `array` must contain at least one batch.
    """
    rows, fault, _ = scan_until_malformed(array)
    if fault or not rows.size:
        return None
    has_valid_headers, has_compressed = check_producer_headers(rows)
    if not has_valid_headers or first_corrupt(array, rows) < rows.size:
        return None
    validate_rows(array, rows, False)
    if has_compressed:
        for index in np.flatnonzero(rows["attributes"] & CODEC_MASK).tolist():
            _check_compressed(array, rows[index : index + 1])
    faults, keyless, max_batch_size, lowest, highest, wrong_stamps = summarize_rows(rows)
    if faults or (require_keys and keyless):
        return None
    return FastValidation(rows, max_batch_size, lowest, highest, not wrong_stamps)


def _fast_single_batch(array: Bytes, *, require_keys: bool) -> BatchSummary | None:
    """Return the summary if `array` is one valid uncompressed batch; else None."""
    is_valid, count, lowest, highest, keyless, crc, stamped, producer_id, epoch, sequence, attributes = (
        validate_single_batch(array)
    )
    if not is_valid or (require_keys and keyless):
        return None
    if crc32c.crc32c(array.data[ATTRIBUTES:]) != crc:
        return None
    return BatchSummary(
        0, array.size, count - 1, count, lowest, highest, stamped, producer_id, epoch, sequence, attributes
    )


def _check_headers(array: Bytes, rows: BatchRows) -> list[int]:
    """Store faults of headers and checksums in the rows; return the indexes of the compressed batches.

    This works on plain integers: a request usually has one batch for a partition, and a numpy operation on
    one row costs more than this whole function.
    """
    view = array.data
    compressed: list[int] = []
    row: tuple[int, ...]
    for index, row in enumerate(rows.tolist()):
        position, size, attributes = row[_POSITION], row[_SIZE], row[_ATTRIBUTES]
        fault = _header_fault(row)
        if crc32c.crc32c(view[position + ATTRIBUTES : position + size]) != row[_CRC]:
            fault = Fault.CHECKSUM
        if fault:
            rows["fault"][index] = fault
        if attributes & CODEC_MASK:
            compressed.append(index)
    return compressed


def _header_fault(row: tuple[int, ...]) -> Fault:
    """Return the most important fault that a header shows by itself."""
    count, attributes = row[_RECORD_COUNT], row[_ATTRIBUTES]
    if row[_PRODUCER_ID] >= 0 and row[_BASE_SEQUENCE] < 0:
        return Fault.SEQUENCE
    if attributes & LOG_APPEND_TIME:
        return Fault.TIMESTAMP_TYPE
    if attributes & CONTROL:
        return Fault.CONTROL_BATCH
    if attributes & ~PRODUCER_ATTRIBUTES:
        return Fault.BROKER_ATTRIBUTES
    if count != row[_LAST_OFFSET_DELTA] + 1:  # at least 1, as a delta is not negative
        return Fault.OFFSETS_NOT_CONSECUTIVE
    return Fault.NONE


def _check_compressed(array: Bytes, rows: BatchRows) -> None:
    """Validate the records of one compressed batch, the only one of `rows`."""
    if rows["fault"][0] != Fault.NONE:
        return
    try:
        ((_first, _end, [records]),) = decompress_batches(array, rows, _FIRST, thread_scratch())
    except MalformedBatchError as error:
        rows["fault"] = error.fault
        return
    _check_opened(records, rows)


def _check_opened(records: Bytes, rows: BatchRows) -> None:
    rows["records_start"], rows["records_end"] = 0, records.size
    validate_rows(records, rows, True)
    rows["fault_position"] = rows["position"]


def _keyless_problem(array: Bytes, rows: BatchRows, index: int) -> BatchProblem:
    row = rows[index]
    compressed = int(row["attributes"]) & CODEC_MASK
    records = readable(open_records(array, rows, index)) if compressed else array
    indexes = np.empty(min(int(row["keyless"]), MAX_RECORDS_REPORTED), np.int64)
    find_keyless(records, int(row["records_start"]), int(row["records_end"]), indexes)
    return BatchProblem(
        batch=index,
        position=int(row["position"]),
        fault=Fault.KEYLESS_RECORDS,
        record_indexes=tuple(indexes.tolist()),
        keyless_count=int(row["keyless"]),
    )


_summary_values = itemgetter(
    *map(
        _COLUMNS.index,
        (
            "position",
            "size",
            "last_offset_delta",
            "record_count",
            "lowest_timestamp",
            "highest_timestamp",
            "max_timestamp",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "attributes",
        ),
    )
)


def _summary(row: tuple[int, ...]) -> BatchSummary:
    return BatchSummary._make(_summary_values(row))
