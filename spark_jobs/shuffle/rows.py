"""Rows that travel between the stages of the shuffle plan, as Arrow record batches: few and large."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import pyarrow as pa

from spark_jobs.arrow_rows import record_batch
from spark_jobs.report import JobFailure, merge_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FAILURE: Final = 0
REPORT: Final = 1
END: Final = 2
PAYLOAD: Final = 3
"""Kinds of rows, in sort order. A failure and an end go to every task of the next stage
(`spark_jobs.shuffle.row_counts`), a report goes to one.
"""

BLOB_SCHEMA: Final = "judge int, kind int, number int, first_offset long, share int, run int, data binary"
SURVIVOR_SCHEMA: Final = (
    "share int, kind int, judge int, partition_index int, run int, outside long, data binary,"
    " tombstones binary"
)

_BLOB_ROWS: Final = pa.schema(
    [
        ("judge", pa.int32()),
        ("kind", pa.int32()),
        ("number", pa.int32()),
        ("first_offset", pa.int64()),
        ("share", pa.int32()),
        ("run", pa.int32()),
        ("data", pa.binary()),
    ]
)
_SURVIVOR_ROWS: Final = pa.schema(
    [
        ("share", pa.int32()),
        ("kind", pa.int32()),
        ("judge", pa.int32()),
        ("partition_index", pa.int32()),
        ("run", pa.int32()),
        ("outside", pa.int64()),
        ("data", pa.binary()),
        ("tombstones", pa.binary()),
    ]
)
_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 1024


class BlobRow(NamedTuple):
    """A blob of bucket `number`, or a report for share `number`, for task `judge` of the second stage.

    A blob belongs to one `run` of one `share`; a failure or an end belongs to a `share`.
    """

    judge: int
    kind: int
    number: int
    first_offset: int
    share: int
    run: int
    data: bytes | memoryview


class SurvivorRow(NamedTuple):
    """The survivors of a bucket in one run, as two bitmaps, or other `data` for the share, from one judge.

    `outside` counts records of the bucket whose keys were not in the table.
    """

    share: int
    kind: int
    judge: int
    partition_index: int = 0
    run: int = 0
    outside: int = 0
    data: bytes | memoryview = b""
    tombstones: bytes | memoryview = b""


class Report(NamedTuple):
    """Counters of a task, or the reason that it failed."""

    counts: dict[str, int]
    failure: JobFailure | None = None

    def pack(self) -> bytes:
        """Return the bytes for the `data` of a row."""
        return orjson.dumps({"counts": self.counts, "failure": self.failure and asdict(self.failure)})

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Report:
        """Reverse `pack`."""
        plain = orjson.loads(data)
        return cls(plain["counts"], JobFailure(**plain["failure"]) if plain["failure"] else None)


def merge_reports(counts: Mapping[str, int], reports: Iterable[Report]) -> dict[str, int]:
    """Merge the counters of a task with the ones that were reported to it."""
    return merge_counts([counts, *(report.counts for report in reports)])


def write_blob_rows(rows: Iterable[BlobRow]) -> Iterator[pa.RecordBatch]:
    """Yield record batches of `BLOB_SCHEMA`."""
    return _batches(rows, _BLOB_ROWS)


def write_survivor_rows(rows: Iterable[SurvivorRow]) -> Iterator[pa.RecordBatch]:
    """Yield record batches of `SURVIVOR_SCHEMA`."""
    return _batches(rows, _SURVIVOR_ROWS)


def read_blob_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[BlobRow]:
    """Reverse `write_blob_rows`; a row's data is a view of its batch."""
    for batch in batches:
        judges, kinds, numbers, offsets, shares, runs = (
            batch.column(index).to_pylist() for index in range(6)
        )
        for row in range(batch.num_rows):
            yield BlobRow(
                judges[row],
                kinds[row],
                numbers[row],
                offsets[row],
                shares[row],
                runs[row],
                _bytes_at(batch, 6, row),
            )


def read_survivor_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[SurvivorRow]:
    """Reverse `write_survivor_rows`; a row's data is a view of its batch."""
    for batch in batches:
        shares, kinds, judges, partitions, runs, outsides = (
            batch.column(index).to_pylist() for index in range(6)
        )
        for row in range(batch.num_rows):
            yield SurvivorRow(
                shares[row],
                kinds[row],
                judges[row],
                partitions[row],
                runs[row],
                outsides[row],
                _bytes_at(batch, 6, row),
                _bytes_at(batch, 7, row),
            )


def _bytes_at(batch: pa.RecordBatch, column: int, row: int) -> memoryview:
    """Return a view of a cell."""
    return memoryview(batch.column(column)[row].as_buffer())


def _batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches that are bounded in bytes and rows."""
    pending: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += sum(len(cell) for cell in row if not isinstance(cell, int))
        if size >= _BATCH_BYTES or len(pending) >= _BATCH_ROWS:
            yield record_batch(pending, schema)
            pending, size = [], 0
    if pending:
        yield record_batch(pending, schema)
