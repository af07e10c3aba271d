"""Pass 2: writes the surviving records as batches again, without reading keys.

A batch with all its records is copied unchanged, and a batch without survivors is skipped unopened. Only
three kinds of batches are opened: those that lose some records, those whose tombstones get a delete horizon
(KIP-534), and small ones that are merged with adjacent batches.

Neither pass verifies the checksums of batches. The agent verified them before it stored the batches. Since
then, the checksum of the segment file's block covers the same bytes, and a task verifies it for everything
that it reads. Pass 1 validates the structure of records. Pass 2 reads a record only up to its key, and
validates what it reads, so that nothing is accessed out of bounds. Rewritten batches get a new checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from object_format.buffers import Bytes, readable
from object_format.codecs.codec import MAX_DECOMPRESSED_BATCH_BYTES, Codec
from object_format.dedupe.long_batches import LongBatch
from object_format.dedupe.recompression import compress_and_checksum, needs_compression, write_checksums
from object_format.dedupe.rewrite import FilteredBatches, RewriteOptions, new_totals, sum_up_filtered
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.headers import sum_up
from object_format.kernels.batches.layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LEADER_EPOCH,
)
from object_format.kernels.dedupe.filter import ACTION_MASK, COPY, FILTER, MAX_GROWTH, SET_HORIZON, plan_rows
from object_format.kernels.dedupe.merge import assemble, mark_small_batches, plan_merges
from object_format.kernels.dedupe.rewrite import filter_opened
from object_format.offset_set import ArrayWindow, SetWindow
from object_format.record_batch.decompression import (
    ArraySlot,
    CodecTimers,
    Scratch,
    decompress_batches,
    runs_by_compression,
    thread_scratch,
)
from object_format.record_batch.headers import (
    BatchRows,
    OrderedBatches,
    offset_range,
    record_error,
    scan_ordered_batches,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.dedupe.survivors import Survivors

Window = SetWindow | ArrayWindow
Opener = Callable[[Bytes, BatchRows, npt.NDArray[np.int64]], Iterator[tuple[int, int, ArraySlot]]]
"""Signature of `decompress_batches`, except for the memory that the records are written to."""

_INT64_MAX: Final = np.iinfo(np.int64).max
_NO_OFFSETS: Final = np.empty(0, np.int64)

MAX_RECORDS: Final = 1 << 18
"""Records processed at a time; their survivors take up to 2 MiB, and so do the tombstones among them."""


class SurvivorWindows(NamedTuple):
    """Surviving offsets, and those of them whose records have no value."""

    offsets: Window
    tombstones: Window


@dataclass(slots=True, kw_only=True)
class _FilterRun:
    """Input and totals of filtering one buffer of batches."""

    data: Bytes
    windows: SurvivorWindows
    options: RewriteOptions
    offset_shift: int
    leader_epoch: int
    opener: Opener
    timers: CodecTimers
    totals: npt.NDArray[np.int64]
    saved: int = 0
    buffer_bytes: int = 0

    def note(self, size: int) -> None:
        """Account for `size` bytes that are open or written at the same time."""
        self.buffer_bytes = max(self.buffer_bytes, size)


class _Plan(NamedTuple):
    """Actions for some batches of a run."""

    rows: BatchRows
    actions: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    kept: npt.NDArray[np.int64]


def filter_batches(
    batches: Buffer,
    survivors: Survivors,
    *,
    offset_shift: int,
    leader_epoch: int,
    delete_horizon_ms: int | None,
    merge: bool = True,
    merged_codec: Codec | None = None,
    max_batch_bytes: int | None = None,
    scratch: Scratch | None = None,
) -> FilteredBatches:
    """Write the surviving records of complete `batches`, which must be bytes that pass 1 was fed.

    `offset_shift` makes their offsets absolute; the result has `leader_epoch`, or each batch keeps its own
    (`KEEP_LEADER_EPOCH`). Batches of different leader epochs are never merged. Batches with surviving
    tombstones and no delete horizon get `delete_horizon_ms`, unless that is None. With `merge`, adjacent
    small batches are merged to batches of at most `max_batch_bytes`. These are compressed with
    `merged_codec`, or keep their codec if it is None. `scratch` is memory for decompression that the caller
    shares with other users. Raises MalformedBatchError, also if a survivor is missing.
    """
    options = RewriteOptions(delete_horizon_ms, merge, merged_codec, max_batch_bytes)
    return rewrite_batches(
        batches,
        survivors,
        options,
        offset_shift=offset_shift,
        leader_epoch=leader_epoch,
        scratch=scratch,
    )


def rewrite_batches(
    batches: Buffer,
    survivors: Survivors,
    options: RewriteOptions,
    *,
    offset_shift: int,
    leader_epoch: int,
    scratch: Scratch | None = None,
) -> FilteredBatches:
    """Do the work of `filter_batches` for callers with many buffers and the same options."""
    array = readable(batches)
    found = scan_ordered_batches(array, offset_shift, 0)
    windows = SurvivorWindows(survivors.offset_window, survivors.tombstone_window)
    options = within_one_epoch(options, array, found.rows, leader_epoch)
    if not (found.compressed or options.merged_codec or found.record_count > MAX_RECORDS) and found.rows.size:
        return _filter_uncompressed(array, found, windows, options, offset_shift, leader_epoch)
    memory = scratch or thread_scratch()
    return filter_rows(
        array,
        found.rows,
        windows,
        options,
        offset_shift=offset_shift,
        leader_epoch=leader_epoch,
        opener=partial(decompress_batches, scratch=memory),
        timers=memory.timers,
    )


def filter_rows(
    array: Bytes,
    rows: BatchRows,
    windows: SurvivorWindows,
    options: RewriteOptions,
    *,
    offset_shift: int,
    leader_epoch: int,
    opener: Opener,
    timers: CodecTimers,
) -> FilteredBatches:
    """Do the work of `filter_batches` for batches whose `rows` are in order; `opener` opens batches."""
    run = _FilterRun(
        data=array,
        windows=windows,
        options=options,
        offset_shift=offset_shift,
        leader_epoch=leader_epoch,
        opener=opener,
        timers=timers,
        totals=new_totals(),
    )
    buffers: list[memoryview] = []
    for first, end in _groups(rows):
        group = rows[first:end]
        buffers += _filter_long(run, group) if is_long(group) else _filter_group(run, group)
    return sum_up_filtered(tuple(filter(None, buffers)), run.totals, run.saved, run.buffer_bytes)


def within_one_epoch(
    options: RewriteOptions, data: Bytes, rows: BatchRows, leader_epoch: int
) -> RewriteOptions:
    """Return the options without merging if the batches keep their leader epochs and these differ.

    Epochs never decrease along a log, so the first and the last batch decide. Few pieces contain the border
    of two epochs, so the batches that stay unmerged do not matter.
    """
    if leader_epoch >= 0 or not rows.size:
        return options
    first, last = (int(rows["position"][index]) + LEADER_EPOCH for index in (0, -1))
    is_same = data[first : first + 4].tobytes() == data[last : last + 4].tobytes()
    return options if is_same else options._replace(merge=False)


def is_long(rows: BatchRows) -> bool:
    """Return True if the batches have more records than are processed at a time."""
    return bool(sum_up(rows)[1] > MAX_RECORDS)


def _groups(rows: BatchRows) -> Iterator[tuple[int, int]]:
    """Yield groups of batches [first, end), each with at most `MAX_RECORDS` records or one batch."""
    if not is_long(rows):
        if rows.size:
            yield 0, rows.size
        return
    first = records = 0
    for b, count in enumerate(rows["record_count"].tolist()):
        if b > first and records + count > MAX_RECORDS:
            yield first, b
            first, records = b, 0
        records += count
    yield first, rows.size


def _filter_group(run: _FilterRun, rows: BatchRows) -> list[memoryview]:
    first, last = offset_range(rows, run.offset_shift)
    kept = run.windows.offsets.between(first, last)
    set_horizon = run.options.delete_horizon_ms is not None and not run.windows.tombstones.empty
    tombstones = run.windows.tombstones.between(first, last) if set_horizon else _NO_OFFSETS
    plan = _Plan(rows, np.empty(rows.size, np.uint8), np.empty(rows.size + 1, np.int64), kept)
    mismatch = plan_rows(rows, run.offset_shift, kept, tombstones, set_horizon, plan.actions, plan.starts)
    if mismatch >= 0:
        raise MalformedBatchError.at(Fault.SURVIVORS, int(rows["position"][mismatch]))
    if run.options.merge:
        mark_small_batches(rows, plan.actions, plan.starts, run.options.horizon)
    return [
        buffer
        for first, end, slot in _opened(run, plan)
        for buffer in _write(
            run,
            _Plan(rows[first:end], plan.actions[first:end], plan.starts[first:], kept),
            slot,
        )
    ]


def _filter_long(run: _FilterRun, rows: BatchRows) -> list[memoryview]:
    """Filter one batch with many records in chunks, with bounded memory."""
    first, last = offset_range(rows, run.offset_shift)
    (row,) = rows
    count, record_count = run.windows.offsets.count(first, last), int(row["record_count"])
    attributes = int(row["attributes"])
    if count > record_count:
        raise MalformedBatchError.at(Fault.SURVIVORS, int(row["position"]))
    if not count:
        return []
    horizon = run.options.delete_horizon_ms
    if attributes & (DELETE_HORIZON | CONTROL) or not run.windows.tombstones.count(first, last):
        horizon = None
    if horizon is not None or count < record_count:
        records = run.data
        if attributes & CODEC_MASK:
            _first, _end, slot = next(run.opener(run.data, rows, np.zeros(rows.size, np.int64)))
            records = slot.pop()
        opened = 0 if records is run.data else records.size
        batch = LongBatch(records, rows, run.windows.offsets, offset_shift=run.offset_shift, horizon=horizon)
        del records
        if batch.horizon is not None or count < record_count:
            out = batch.write(run.data, leader_epoch=run.leader_epoch, totals=run.totals)
            del batch
            run.note(opened + out.size)
            return _finish(run, out, np.array([[0, out.size, attributes & CODEC_MASK, 0]]))
        del batch
        run.note(opened)
    unopened = np.full(rows.size, COPY, np.uint8)
    return _write(run, _Plan(rows, unopened, _NO_OFFSETS, _NO_OFFSETS), [run.data])


def _filter_uncompressed(
    array: Bytes,
    batches: OrderedBatches,
    windows: SurvivorWindows,
    options: RewriteOptions,
    offset_shift: int,
    leader_epoch: int,
) -> FilteredBatches:
    """Do the work of `filter_rows` with one kernel call, if all batches are and stay uncompressed."""
    offsets = batches.first_offset, batches.next_offset  # one more does not matter
    kept = windows.offsets.around(*offsets)
    set_horizon = options.delete_horizon_ms is not None and not windows.tombstones.empty
    totals = new_totals()
    out = np.empty(array.size + MAX_GROWTH * min(kept.size, batches.record_count), np.uint8)
    rewritten = np.empty((batches.rows.size, 4), np.int64)
    fault, position, length, count = filter_opened(
        array,
        array,
        batches.rows,
        offset_shift,
        leader_epoch,
        kept,
        windows.tombstones.around(*offsets) if set_horizon else _NO_OFFSETS,
        set_horizon,
        options.horizon,
        options.merge,
        *options.merge_limits,
        _INT64_MAX,
        out,
        rewritten,
        totals,
    )
    if fault:
        raise MalformedBatchError.at(fault, position)
    out.resize(length, refcheck=False)
    saved = write_checksums(out.data, rewritten[:count])
    return sum_up_filtered((out.data,) if length else (), totals, saved, length)


def _opened(run: _FilterRun, plan: _Plan) -> Iterator[tuple[int, int, ArraySlot]]:
    """Yield ranges of rows [first, end), each with the array that contains the records of opened batches.

    This is the data itself for uncompressed batches. Compressed ones are decompressed in groups of bounded
    size.
    """
    opened = np.flatnonzero(plan.actions > COPY)
    ends = [*opened.tolist(), plan.rows.size]
    done = 0
    for first, end, compressed in runs_by_compression(plan.rows, opened):
        if compressed:
            for _start, stop, slot in run.opener(run.data, plan.rows, opened[first:end]):
                yield done, ends[first + stop], slot
                done = ends[first + stop]
        else:
            yield done, ends[end], [run.data]
            done = ends[end]


def _write(run: _FilterRun, plan: _Plan, slot: ArraySlot) -> list[memoryview]:
    """Write the result for batches whose records are in `slot`."""
    records = slot.pop()
    opened = 0 if records is run.data else records.size
    if opened > MAX_DECOMPRESSED_BATCH_BYTES - MAX_GROWTH * MAX_RECORDS:
        _remove_oversized_horizons(run, plan, records)
    capacity, rewritten_count = plan_merges(
        plan.rows, plan.actions, plan.starts, run.options.horizon, *run.options.merge_limits
    )
    out = np.empty(capacity, np.uint8)
    rewritten = np.empty((rewritten_count, 4), np.int64)
    fault, position, row, length, count = assemble(
        run.data,
        records,
        plan.rows,
        plan.actions,
        plan.starts,
        run.offset_shift,
        run.leader_epoch,
        plan.kept,
        run.options.horizon,
        *run.options.merge_limits,
        out,
        rewritten,
        run.totals,
    )
    del records
    if fault:
        raise record_error(fault, plan.rows[row], position)
    run.note(opened + capacity)
    out.resize(length, refcheck=False)  # frees memory for compression
    return _finish(run, out, rewritten[:count])


def _remove_oversized_horizons(run: _FilterRun, plan: _Plan, records: Bytes) -> None:
    """Withdraw the delete horizon from batches that would become too large to be opened again."""
    for b in np.flatnonzero(plan.actions & ACTION_MASK == SET_HORIZON).tolist():
        batch = LongBatch(
            records,
            plan.rows[b:],
            run.windows.offsets,
            offset_shift=run.offset_shift,
            horizon=run.options.delete_horizon_ms,
        )
        if batch.horizon is None:
            survivors = plan.starts[b + 1] - plan.starts[b]
            plan.actions[b] -= SET_HORIZON - (COPY if survivors == plan.rows["record_count"][b] else FILTER)


def _finish(run: _FilterRun, out: Bytes, rewritten: npt.NDArray[np.int64]) -> list[memoryview]:
    """Compress the `rewritten` batches of `out` and write their checksums."""
    merged_codec = run.options.merged_codec
    if not needs_compression(rewritten, merged_codec):
        run.saved += write_checksums(out.data, rewritten)
        return [out.data]
    with run.timers.compress():
        buffers, saved = compress_and_checksum(out, out.size, rewritten, merged_codec)
    run.saved += saved
    run.note(out.size + sum(map(len, buffers)))
    return buffers
