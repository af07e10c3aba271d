"""Opening batches: from rows of headers to arrays that hold their records uncompressed.

Kernels see whole runs of batches at once. Uncompressed batches are taken where they lie; compressed ones are
decompressed end each other, many in one call where that can be, so that a kernel is called once for many.
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
"""One array. Who is done with it takes it out, and it is freed: the largest batch must not be records opened
while what is left of it is compressed."""


class CodecTimers(NamedTuple):
    """Make what timers the codec_table of codecs' libraries, many batches at once."""

    decompress: Callable[[], AbstractContextManager[object]] = nullcontext
    compress: Callable[[], AbstractContextManager[object]] = nullcontext


UNTIMED: Final = CodecTimers()


class Scratch:
    """Memory that batches are decompressed into, again and again; made when first needed.

    What `open_batches` yields from it holds until the next is asked for.
    """

    def __init__(self, timers: CodecTimers = UNTIMED) -> None:
        self._array: Bytes | None = None
        self.timers = timers

    @property
    def array(self) -> Bytes:
        """`SCRATCH_BYTES` to decompress into."""
        if self._array is None:
            self._array = np.empty(SCRATCH_BYTES, np.uint8)
        return self._array


class _Local(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


_local = _Local()


def thread_scratch() -> Scratch:
    """The calling thread's own, for those who are done with what is in it before they do anything else."""
    return _local.scratch


def open_batches(
    data: Bytes, rows: BatchRows, scratch: Scratch | None = None
) -> Iterator[tuple[Bytes, BatchRows]]:
    """Runs of `rows`, in order, each with the array that their `records_start` and `records_end` point into.

    Rows of compressed batches are changed to point into their decompressed records, which are in `scratch`
    where one is given. Raises MalformedBatchError for records that cannot be decompressed, or are fewer bytes
    than the record count needs.
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
            del records  # before the next are made


def runs_by_compression(rows: BatchRows, indexes: Indexes) -> Iterator[tuple[int, int, bool]]:
    """Runs of rows[indexes] that are alike: first, end, and whether the batches are compressed."""
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
    """Stretches of `indexes`, [first, end), with the decompressed records of these compressed batches.

    Their rows are changed to point there. Raises what `open_batches` does.
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
    """The next stretch of `indexes` ends where? And its records, in `memory` where that can be."""
    codec_table = native_codec_table()
    if codec_table is not None:
        end, used = decompress_rows(data, rows, indexes, first, memory, 0, codec_table)
        if end > first:
            return end, [readable(memory[:used].data)]
    return _decompress_by_library(data, rows, indexes, first, () if codec_table is None else NATIVE)


OpenRuns = list[tuple[Bytes, "BatchRows"]]
"""As `open_batches` gives them."""


def open_at_once(
    data: Bytes, rows: BatchRows, memory: Bytes, used: int, timers: CodecTimers
) -> tuple[OpenRuns | None, int]:
    """As `open_batches`, with the records of all compressed batches in `memory` from `used` on at a time.

    And where they end. None when they do not fit, or one is not for the kernels that should be: then the rows
    point anywhere.
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
    """The end of what was written to `memory` from `used` on, or -1."""
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
    """As `decompress_batches`, and in the same stretches, of batches that `open_at_once` has opened."""
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
    """One batch of any size or codec, and as many end it as go together and have none of `others`."""
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
    """The decompressed records of one batch; MalformedBatchError when there is no such thing."""
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
