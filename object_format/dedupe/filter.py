"""Pass 2: the surviving records as batches again, without looking at a key.

A batch whose records all survive is copied as it stands, one without a survivor is skipped unopened; only
mixed batches, those whose tombstones get their delete horizon (KIP-534), and small ones that are merged with
their neighbours are opened.

Checksums of batches are not verified in either pass: agents did so before they stored them, and the checksum
of the segment file's block, which a task verifies on everything that it reads, covers the same bytes since.
The structure of records is checked all the same, so that nothing is read out of bounds. What is written anew
gets a checksum of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from object_format.bitmaps import ArrayWindow, BitmapWindow
from object_format.buffers import Bytes, readable
from object_format.codecs.codec import MAX_DECOMPRESSED_BATCH_BYTES, Codec
from object_format.dedupe.long_batches import LongBatch
from object_format.dedupe.recompression import compress_and_seal, recompresses, seal
from object_format.dedupe.rewrite import FilteredBatches, Rewriting, new_totals, sum_up_filtered
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.headers import sum_up
from object_format.kernels.batches.layout import CODEC_MASK, CONTROL, DELETE_HORIZON, SMALLEST_RECORD
from object_format.kernels.dedupe.filter import ACTION, COPY, MAX_GROWTH, STAMP, THIN, plan_rows
from object_format.kernels.dedupe.merge import assemble, group_rows, mark_small
from object_format.kernels.dedupe.rewrite import thin_opened
from object_format.record_batch.decompression import (
    CodecTimes,
    Lent,
    Scratch,
    decompress_batches,
    runs_by_compression,
    thread_scratch,
)
from object_format.record_batch.headers import BatchRows, RisingBatches, scan_rising_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.dedupe.survivors import Survivors

Window = BitmapWindow | ArrayWindow
Opener = Callable[[Bytes, BatchRows, npt.NDArray[np.int64]], Iterator[tuple[int, int, Lent]]]
"""`payloads.decompress_batches` but for where the records go."""

_INT64_MAX: Final = np.iinfo(np.int64).max

MAX_RECORDS: Final = 1 << 18
"""How many are looked at together: their survivors are 2 MiB, and as much again if they are tombstones."""


class Chosen(NamedTuple):
    """The offsets that survive, and those of them whose records have no value."""

    offsets: Window
    tombstones: Window


@dataclass(slots=True, kw_only=True)
class _Job:
    """One buffer of batches, and what it comes to."""

    data: Bytes
    chosen: Chosen
    rewriting: Rewriting
    offset_shift: int
    leader_epoch: int
    opener: Opener
    times: CodecTimes
    totals: npt.NDArray[np.int64]
    saved: int = 0
    buffer_bytes: int = 0

    @property
    def horizon(self) -> int:
        """What tombstones' batches are stamped with, where they are."""
        return self.rewriting.delete_horizon_ms or 0

    def note(self, size: int) -> None:
        """So many bytes are open, or written, at a time."""
        self.buffer_bytes = max(self.buffer_bytes, size)


class _Plan(NamedTuple):
    """What becomes of each of some batches of a job."""

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
    most_batch_bytes: int | None = None,
    scratch: Scratch | None = None,
) -> FilteredBatches:
    """The surviving records of whole `batches`, which must be bytes that pass 1 was fed.

    `offset_shift` makes their offsets absolute; the result has `leader_epoch`. Batches with surviving
    tombstones that have no delete horizon yet get `delete_horizon_ms`, unless that is None. With `merge`,
    small batches next to each other become larger ones, compressed with `merged_codec`, or as they were when
    that is None; none of these comes to more than `most_batch_bytes`. `scratch` is the caller's own, where it
    has one. Raises MalformedBatchError, also when a survivor is not there.
    """
    array = readable(batches)
    found = scan_rising_batches(array, offset_shift, 0)
    chosen = Chosen(survivors.offset_window, survivors.tombstone_window)
    rewriting = Rewriting(
        delete_horizon_ms=delete_horizon_ms,
        merge=merge,
        merged_codec=merged_codec,
        most_batch_bytes=most_batch_bytes,
    )
    if found.rows.size and not found.compressed and not merged_codec and not _may_be_long(array, found.rows):
        return _filter_plain(array, found, chosen, rewriting, offset_shift, leader_epoch)
    memory = scratch or thread_scratch()
    return filter_rows(
        array,
        found.rows,
        chosen,
        rewriting,
        offset_shift=offset_shift,
        leader_epoch=leader_epoch,
        opener=partial(decompress_batches, scratch=memory),
        times=memory.times,
    )


def filter_rows(
    array: Bytes,
    rows: BatchRows,
    chosen: Chosen,
    rewriting: Rewriting,
    *,
    offset_shift: int,
    leader_epoch: int,
    opener: Opener,
    times: CodecTimes,
) -> FilteredBatches:
    """As `filter_batches`, of batches whose `rows` are known to rise; `opener` has their records."""
    job = _Job(
        data=array,
        chosen=chosen,
        rewriting=rewriting,
        offset_shift=offset_shift,
        leader_epoch=leader_epoch,
        opener=opener,
        times=times,
        totals=new_totals(),
    )
    buffers: list[memoryview] = []
    for first, end in _groups(rows):
        group = rows[first:end]
        buffers += _filter_long(job, group) if is_long(group) else _filter_group(job, group)
    return sum_up_filtered(tuple(filter(None, buffers)), job.totals, job.saved, job.buffer_bytes)


def is_long(rows: BatchRows) -> bool:
    """Whether these batches have more records than are looked at together."""
    return bool(sum_up(rows)[1] > MAX_RECORDS)


def _groups(rows: BatchRows) -> Iterator[tuple[int, int]]:
    """Batches that are looked at together, [first, end): of `MAX_RECORDS` records at the most, or one."""
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


def _filter_group(job: _Job, rows: BatchRows) -> list[memoryview]:
    first, last = _span(rows, job.offset_shift)
    kept = job.chosen.offsets.between(first, last)
    stamp = job.rewriting.delete_horizon_ms is not None and not job.chosen.tombstones.empty
    tombstones = job.chosen.tombstones.between(first, last) if stamp else kept[:0]
    plan = _Plan(rows, np.empty(rows.size, np.uint8), np.empty(rows.size + 1, np.int64), kept)
    mismatch = plan_rows(rows, job.offset_shift, kept, tombstones, stamp, plan.actions, plan.starts)
    if mismatch >= 0:
        raise MalformedBatchError.at(Fault.SURVIVORS, int(rows["position"][mismatch]))
    if job.rewriting.merge:
        mark_small(rows, plan.actions, plan.starts, job.horizon)
    return [
        buffer
        for first, end, lent in _opened(job, plan)
        for buffer in _write(
            job,
            _Plan(rows[first:end], plan.actions[first:end], plan.starts[first : end + 1], kept),
            lent,
        )
    ]


def _span(rows: BatchRows, offset_shift: int) -> tuple[int, int]:
    """The first offset and the last."""
    last = int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1])
    return int(rows["base_offset"][0]) + offset_shift, last + offset_shift


def _filter_long(job: _Job, rows: BatchRows) -> list[memoryview]:
    """The same of one batch, by as many of its records at a time as memory is to be taken for."""
    first, last = _span(rows, job.offset_shift)
    count, record_count = job.chosen.offsets.count(first, last), int(rows["record_count"][0])
    attributes = int(rows["attributes"][0])
    if count > record_count:
        raise MalformedBatchError.at(Fault.SURVIVORS, int(rows["position"][0]))
    if not count:
        return []
    horizon = job.rewriting.delete_horizon_ms
    if attributes & (DELETE_HORIZON | CONTROL) or not job.chosen.tombstones.count(first, last):
        horizon = None
    if horizon is not None or count < record_count:
        lent = [job.data]
        if attributes & CODEC_MASK:
            _first, _end, lent = next(job.opener(job.data, rows, np.zeros(1, np.int64)))
        opened = lent[0].size if attributes & CODEC_MASK else 0
        batch = LongBatch(lent[0], rows, job.chosen.offsets, offset_shift=job.offset_shift, horizon=horizon)
        if batch.horizon is not None or count < record_count:
            out = batch.write(job.data, leader_epoch=job.leader_epoch, totals=job.totals)
            del batch
            lent.clear()
            job.note(opened + out.size)
            return _sealed(job, out, np.array([[0, out.size, attributes & CODEC_MASK, 0]]))
        del batch
        lent.clear()
        job.note(opened)
    untouched = np.full(1, COPY, np.uint8), np.zeros(2, np.int64), np.empty(0, np.int64)
    return _write(job, _Plan(rows, *untouched), [job.data])


def _filter_plain(
    array: Bytes,
    batches: RisingBatches,
    chosen: Chosen,
    rewriting: Rewriting,
    offset_shift: int,
    leader_epoch: int,
) -> FilteredBatches:
    """As `filter_rows`, of batches none of which is or becomes compressed, in one kernel's call."""
    first, last = batches.first_offset, batches.next_offset - 1
    kept = chosen.offsets.between(first, last)
    stamp = rewriting.delete_horizon_ms is not None and not chosen.tombstones.empty
    totals = new_totals()
    out = np.empty(array.size + MAX_GROWTH * kept.size, np.uint8)
    unsealed = np.empty((batches.rows.size, 4), np.int64)
    fault, position, length, count = thin_opened(
        array,
        array,
        batches.rows,
        offset_shift,
        leader_epoch,
        kept,
        chosen.tombstones.between(first, last) if stamp else kept[:0],
        stamp,
        rewriting.delete_horizon_ms or 0,
        rewriting.merge,
        *rewriting.most_merged,
        _INT64_MAX,
        out,
        unsealed,
        totals,
    )
    if fault:
        raise MalformedBatchError.at(fault, position)
    out.resize(length, refcheck=False)
    saved = seal(out.data, unsealed[:count])
    return sum_up_filtered((out.data,) if length else (), totals, saved, length)


def _may_be_long(array: Bytes, rows: BatchRows) -> bool:
    """Whether there are too many records for one call; for uncompressed batches, their bytes mostly tell."""
    return array.size > MAX_RECORDS * SMALLEST_RECORD and is_long(rows)


def _opened(job: _Job, plan: _Plan) -> Iterator[tuple[int, int, Lent]]:
    """Stretches of rows, [first, end), with the array in which those that must be opened have their records.

    That is the data itself for uncompressed ones; compressed ones are decompressed up to a bound together.
    """
    opened = np.flatnonzero(plan.actions > COPY)
    behind = [*opened.tolist(), plan.rows.size]
    done = 0
    for first, end, compressed in runs_by_compression(plan.rows, opened):
        if compressed:
            for _start, stop, lent in job.opener(job.data, plan.rows, opened[first:end]):
                yield done, behind[first + stop], lent
                done = behind[first + stop]
        else:
            yield done, behind[end], [job.data]
            done = behind[end]


def _write(job: _Job, plan: _Plan, lent: Lent) -> list[memoryview]:
    """What is left of batches, whose records are in what is `lent`."""
    opened = 0 if lent[0] is job.data else lent[0].size
    if opened > MAX_DECOMPRESSED_BATCH_BYTES - MAX_GROWTH * MAX_RECORDS:
        _leave_unstamped(job, plan, lent[0])
    room, sealed = group_rows(plan.rows, plan.actions, plan.starts, job.horizon, *job.rewriting.most_merged)
    out = np.empty(room, np.uint8)
    unsealed = np.empty((sealed, 4), np.int64)
    fault, position, row, length, count = assemble(
        job.data,
        lent[0],
        plan.rows,
        plan.actions,
        plan.starts,
        job.offset_shift,
        job.leader_epoch,
        plan.kept,
        job.horizon,
        *job.rewriting.most_merged,
        out,
        unsealed,
        job.totals,
    )
    lent.clear()
    if fault:
        compressed = plan.rows["attributes"][row] & CODEC_MASK
        raise MalformedBatchError.at(fault, int(plan.rows["position"][row]) if compressed else position)
    job.note(opened + room)
    out.resize(length, refcheck=False)  # the rest is free for what is made of it
    return _sealed(job, out, unsealed[:count])


def _leave_unstamped(job: _Job, plan: _Plan, records: Bytes) -> None:
    """Take back the horizon of a batch that would be too large to be opened again."""
    for b in np.flatnonzero(plan.actions & ACTION == STAMP).tolist():
        batch = LongBatch(
            records,
            plan.rows[b : b + 1],
            job.chosen.offsets,
            offset_shift=job.offset_shift,
            horizon=job.rewriting.delete_horizon_ms,
        )
        if batch.horizon is None:
            survivors = plan.starts[b + 1] - plan.starts[b]
            plan.actions[b] -= STAMP - (COPY if survivors == plan.rows["record_count"][b] else THIN)


def _sealed(job: _Job, out: Bytes, unsealed: npt.NDArray[np.int64]) -> list[memoryview]:
    """What was written, `unsealed` of it with compression and checksums."""
    merged_codec = job.rewriting.merged_codec
    if not recompresses(unsealed, merged_codec):
        job.saved += seal(out.data, unsealed)
        return [out.data]
    with job.times.compress():
        buffers, saved = compress_and_seal(out, out.size, unsealed, merged_codec)
    job.saved += saved
    job.note(out.size + sum(map(len, buffers)))
    return buffers
