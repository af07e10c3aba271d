"""What an agent checks before it takes a producer's batches, and what it then knows about them.

The rules are those of Kafka's LogValidator for batches that come from clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import crc32c
import numpy as np

from object_format.buffers import Bytes, readable
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.layout import ATTRIBUTES, CODEC_MASK, CONTROL, LOG_APPEND_TIME
from object_format.kernels.records import check_records, find_keyless
from object_format.payloads import open_records
from object_format.record_batch import BatchRows, scan_sound_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

MOST_KEYLESS_REPORTED: Final = 1000
"""How many record indexes one problem names; `keyless_count` counts them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    """What the log needs to know of one batch; timestamps are those of the records themselves.

    `header_max_timestamp` is what the producer wrote; where it differs from `max_timestamp`, a broker
    corrects the batch (`record_batch.stamp_max_timestamp`).
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
    """Why one batch cannot be taken.

    `batch` counts from 0; `position` is in bytes. For KEYLESS_RECORDS, `record_indexes` names the first
    thousand records of the batch that have no key, and `keyless_count` is how many there are.
    """

    batch: int
    position: int
    fault: Fault
    record_indexes: tuple[int, ...] = ()
    keyless_count: int = 0

    @property
    def message(self) -> str:
        """One sentence for the producer."""
        return f"batch {self.batch}: {self.fault.explanation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedBatches:
    """The batches of a buffer, and what is wrong with them; without problems, all of it may be appended.

    When a header is malformed, nothing behind it can be told apart: `batches` ends there, and a problem whose
    `batch` is the count of batches says why.
    """

    batches: tuple[BatchSummary, ...]
    problems: tuple[BatchProblem, ...]

    @property
    def record_count(self) -> int:
        """Of all batches together."""
        return sum(batch.record_count for batch in self.batches)


def validate_batches(data: Buffer, *, require_keys: bool) -> ValidatedBatches:
    """Judge a producer's batches: structure, CRC, record counts and offsets, keys where they are required.

    Never raises for what `data` holds: hostile bytes are problems in the answer.
    """
    array = readable(data)
    rows, fault, position = scan_sound_batches(array)
    _check_headers(array, rows)
    check_records(array, rows, False)
    for index in np.flatnonzero(rows["attributes"] & CODEC_MASK).tolist():
        _check_compressed(array, rows[index : index + 1])
    problems = []
    for index in np.flatnonzero(rows["fault"]).tolist():
        row = rows[index]
        problems.append(
            BatchProblem(batch=index, position=int(row["fault_position"]), fault=Fault(row["fault"]))
        )
    if require_keys:
        keyless = np.flatnonzero((rows["keyless"] > 0) & (rows["fault"] == Fault.NONE))
        problems += [_keyless_problem(array, rows, index) for index in keyless.tolist()]
    if fault:
        problems.append(BatchProblem(batch=rows.size, position=position, fault=Fault(fault)))
    problems.sort(key=lambda problem: problem.batch)
    return ValidatedBatches(batches=_summaries(rows), problems=tuple(problems))


def _check_headers(array: Bytes, rows: BatchRows) -> None:
    """Faults that headers and checksums tell, into the rows; a wrong CRC hides all others."""
    attributes, count = rows["attributes"], rows["record_count"]
    gaps = (count < 1) | (count != rows["last_offset_delta"] + 1)
    rows["fault"][gaps] = Fault.OFFSETS_NOT_CONSECUTIVE
    rows["fault"][(attributes & CONTROL) != 0] = Fault.CONTROL_BATCH
    rows["fault"][(attributes & LOG_APPEND_TIME) != 0] = Fault.TIMESTAMP_TYPE
    rows["fault"][(rows["producer_id"] >= 0) & (rows["base_sequence"] < 0)] = Fault.SEQUENCE
    view = array.data
    for index, (position, size, crc) in enumerate(
        zip(rows["position"].tolist(), rows["size"].tolist(), rows["crc"].tolist(), strict=True)
    ):
        if crc32c.crc32c(view[position + ATTRIBUTES : position + size]) != crc:
            rows["fault"][index] = Fault.CHECKSUM


def _check_compressed(array: Bytes, rows: BatchRows) -> None:
    """The records of one compressed batch, which is all of `rows`."""
    if rows["fault"][0] != Fault.NONE:
        return
    try:
        records = open_records(array, rows, 0)
    except MalformedBatchError as error:
        rows["fault"] = error.fault
        return
    _check_opened(readable(records), rows)


def _check_opened(records: Bytes, rows: BatchRows) -> None:
    rows["records_start"], rows["records_end"] = 0, records.size
    check_records(records, rows, True)
    rows["fault_position"] = rows["position"]


def _keyless_problem(array: Bytes, rows: BatchRows, index: int) -> BatchProblem:
    row = rows[index]
    compressed = int(row["attributes"]) & CODEC_MASK
    records = readable(open_records(array, rows, index)) if compressed else array
    indexes = np.empty(min(int(row["keyless"]), MOST_KEYLESS_REPORTED), np.int64)
    find_keyless(records, int(row["records_start"]), int(row["records_end"]), indexes)
    return BatchProblem(
        batch=index,
        position=int(row["position"]),
        fault=Fault.KEYLESS_RECORDS,
        record_indexes=tuple(indexes.tolist()),
        keyless_count=int(row["keyless"]),
    )


_SUMMARY_COLUMNS: Final = {
    "position": "position",
    "size": "size",
    "last_offset_delta": "last_offset_delta",
    "record_count": "record_count",
    "min_timestamp": "lowest_timestamp",
    "max_timestamp": "highest_timestamp",
    "header_max_timestamp": "max_timestamp",
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "base_sequence": "base_sequence",
    "attributes": "attributes",
}


def _summaries(rows: BatchRows) -> tuple[BatchSummary, ...]:
    columns = [rows[column].tolist() for column in _SUMMARY_COLUMNS.values()]
    return tuple(
        BatchSummary(**dict(zip(_SUMMARY_COLUMNS, values, strict=True)))
        for values in zip(*columns, strict=True)
    )
