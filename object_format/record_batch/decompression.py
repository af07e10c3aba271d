"""Makes the records of batches available uncompressed ("opens" batches), for many batches at once.

Uncompressed batches are used where they are. Compressed batches are decompressed into one array, many in one
call where possible, so that a kernel is called once for many batches. The rows of opened batches point to
their uncompressed records.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from object_format.buffers import Bytes, readable
from object_format.codecs.codec import Codec, CompressedDataError, DecompressedTooLargeError, decompress
from object_format.codecs.native import NATIVE, SCRATCH_BYTES, native_codec_table
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.headers import compressed_among
from object_format.kernels.batches.layout import BATCH_OVERHEAD, CODEC_MASK, SMALLEST_RECORD
from object_format.kernels.codecs.native import chunk_end, decompress_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from typing_extensions import Buffer

    from object_format.record_batch.headers import BatchRows

Indexes = npt.NDArray[np.int64]

ArraySlot = list[Bytes]
"""List with one array. The consumer removes the array when it is done, which frees it.

Otherwise the decompressed form of the largest batch would stay in memory while its result is compressed.
"""


class CodecTimers(NamedTuple):
    """Factories of context managers that measure calls of the codec libraries, each for many batches."""

    decompress: Callable[[], AbstractContextManager[object]] = nullcontext
    compress: Callable[[], AbstractContextManager[object]] = nullcontext


UNTIMED: Final = CodecTimers()


class Scratch:
    """Reusable memory for decompression, allocated on first use.

    An array that `open_batches` yields from it is valid until the next one is requested.
    """

    def __init__(self, timers: CodecTimers = UNTIMED) -> None:
        self._array: Bytes | None = None
        self.timers = timers

    @property
    def array(self) -> Bytes:
        """Array of `SCRATCH_BYTES` to decompress into."""
        if self._array is None:
            self._array = np.empty(SCRATCH_BYTES, np.uint8)
        return self._array


class _Local(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


_local = _Local()


def thread_scratch() -> Scratch:
    """Return the scratch memory of the calling thread, for callers that use its contents immediately."""
    return _local.scratch


def open_batches(
    data: Bytes, rows: BatchRows, scratch: Scratch | None = None
) -> Iterator[tuple[Bytes, BatchRows]]:
    """Yield runs of `rows` in order, each with the array that `records_start` and `records_end` refer to.

    Rows of compressed batches are updated to point to their decompressed records, which are in `scratch` if
    it is given. Raises MalformedBatchError if records cannot be decompressed, or are too short for their
    record count.
    """
    if not rows.size:
        return
    for first, end, compressed in runs_by_compression(rows, np.arange(rows.size)):
        run = rows[first:end]
        if not compressed:
            yield data, run
            continue
        for start, stop, slot in decompress_batches(
            data, run, np.arange(run.size), scratch or thread_scratch()
        ):
            records = slot.pop()
            yield records if scratch else readable(records.tobytes()), run[start:stop]
            del records  # free the array before the next one is allocated


def runs_by_compression(rows: BatchRows, indexes: Indexes) -> Iterator[tuple[int, int, bool]]:
    """Yield runs of rows[indexes] of equal kind: first, end, and True if the batches are compressed."""
    count = compressed_among(rows, indexes)
    if count in {0, indexes.size}:
        yield 0, indexes.size, count > 0
        return
    compressed = (rows["attributes"][indexes] & CODEC_MASK) != 0
    edges = [0, *(np.flatnonzero(np.diff(compressed)) + 1).tolist(), compressed.size]
    for first, end in pairwise(edges):
        yield first, end, bool(compressed[first])


def decompress_batches(
    data: Bytes, rows: BatchRows, indexes: Indexes, scratch: Scratch
) -> Iterator[tuple[int, int, ArraySlot]]:
    """Yield ranges [first, end) of `indexes` with the decompressed records of these compressed batches.

    Their rows are updated to point to the records. Raises MalformedBatchError like `open_batches`.
    """
    first = 0
    while first < indexes.size:
        with scratch.timers.decompress():
            end, slot = _decompress_some(data, rows, indexes, first, scratch.array)
        yield first, end, slot
        first = end


def _decompress_some(
    data: Bytes, rows: BatchRows, indexes: Indexes, first: int, memory: Bytes
) -> tuple[int, ArraySlot]:
    """Decompress the next batches of `indexes`, into `memory` if possible.

    Returns the end of these batches in `indexes`, and their records.
    """
    codec_table = native_codec_table()
    if codec_table is not None:
        end, used = decompress_rows(data, rows, indexes, first, memory, 0, codec_table)
        if end > first:
            return end, [readable(memory[:used].data)]
    return _decompress_by_library(data, rows, indexes, first, () if codec_table is None else NATIVE)


OpenRuns = list[tuple[Bytes, "BatchRows"]]
"""Runs as `open_batches` yields them."""


def open_all_batches(
    data: Bytes, rows: BatchRows, memory: Bytes, used: int, timers: CodecTimers
) -> tuple[OpenRuns | None, int]:
    """Open all batches at the same time; compressed ones are decompressed to `memory` from `used` on.

    Returns the runs, and the end of the used memory. Returns None instead of the runs if the records do not
    fit, or if a kernel cannot decompress a batch of its codec. The rows are undefined then.
    """
    runs = []
    for first, end, compressed in runs_by_compression(rows, np.arange(rows.size)):
        run = rows[first:end]
        if not compressed:
            runs.append((data, run))
            continue
        with timers.decompress():
            used = _decompress_run(data, run, memory, used)
        if used < 0:
            return None, 0
        runs.append((readable(memory[:used].data), run))
    return runs, used


def _decompress_run(data: Bytes, run: BatchRows, memory: Bytes, used: int) -> int:
    """Decompress a run to `memory` from `used` on; return the end of the used memory, or -1."""
    codec_table = native_codec_table()
    natives: Collection[Codec] = () if codec_table is None else NATIVE
    indexes = np.arange(run.size)
    done = 0
    while done < run.size:
        if codec_table is not None and _codec(run, done) in natives:
            done, used = decompress_rows(data, run, indexes, done, memory, used, codec_table)
            if done < run.size and _codec(run, done) in natives:
                return -1
            continue
        records = readable(open_records(data, run, done))
        if records.size > memory.size - used:
            return -1
        memory[used : used + records.size] = records
        run["records_start"][done] = used
        run["records_end"][done] = used = used + records.size
        done += 1
    return used


def already_open_batches(
    data: Bytes, rows: BatchRows, indexes: Indexes, records: Bytes
) -> Iterator[tuple[int, int, ArraySlot]]:
    """Yield the same ranges as `decompress_batches`, for batches that `open_all_batches` has opened."""
    del data
    native = native_codec_table() is not None
    first = 0
    while first < indexes.size:
        end = chunk_end(rows, indexes, first, SCRATCH_BYTES, native)
        yield first, end, [records]
        first = end


def _decompress_by_library(
    data: Bytes, rows: BatchRows, indexes: Indexes, first: int, others: Collection[Codec]
) -> tuple[int, ArraySlot]:
    """Decompress one batch of any size and codec, and following ones that fit and use none of `others`."""
    parts: list[Buffer] = []
    used = 0
    end = first
    while end < indexes.size and (not parts or _codec(rows, int(indexes[end])) not in others):
        index = int(indexes[end])
        records = open_records(data, rows, index)
        length = memoryview(records).nbytes
        if parts and used + length > SCRATCH_BYTES:
            break
        rows["records_start"][index] = used
        rows["records_end"][index] = used = used + length
        parts.append(records)
        end += 1
    return end, [readable(b"".join(parts) if len(parts) > 1 else parts[0])]


def _codec(rows: BatchRows, index: int) -> Codec:
    return Codec(int(rows["attributes"][index]) & CODEC_MASK)


def open_records(data: Bytes, rows: BatchRows, index: int) -> Buffer:
    """Return the decompressed records of one batch. Raises MalformedBatchError if that is not possible."""
    position, size = int(rows["position"][index]), int(rows["size"][index])
    codec = _codec(rows, index)
    try:
        records = decompress(codec, data[position + BATCH_OVERHEAD : position + size].data)
    except DecompressedTooLargeError as error:
        raise MalformedBatchError.at(Fault.DECOMPRESSED_TOO_LARGE, position) from error
    except CompressedDataError as error:
        raise MalformedBatchError.at(Fault.COMPRESSED_BYTES, position) from error
    if int(rows["record_count"][index]) * SMALLEST_RECORD > memoryview(records).nbytes:
        raise MalformedBatchError.at(Fault.RECORD_COUNT, position)
    return records
