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
from object_format.codecs import Codec, compressed_parts
from object_format.dedupe.rewriting import FRAME_OVERHEAD, GROWTH_SHIFT, Rewriting
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.filter import (
    COPY,
    MOST_GROWTH,
    plan_rows,
)
from object_format.kernels.layout import (
    ATTRIBUTES,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    CODEC_MASK,
    LENGTH_OVERHEAD,
)
from object_format.kernels.merge import assemble, group_rows, mark_small
from object_format.kernels.native import compress_batches
from object_format.kernels.thinning import thin_opened
from object_format.native_codecs import SCRATCH_BYTES, native_calls
from object_format.payloads import (
    CodecTimes,
    Lent,
    Scratch,
    decompress_batches,
    runs_by_compression,
    thread_scratch,
)
from object_format.record_batch import BatchRows, RisingBatches, scan_rising_batches, write_checksum

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.dedupe.answer import Survivors
    from object_format.native_codecs import Calls

Window = BitmapWindow | ArrayWindow
Opener = Callable[[Bytes, BatchRows, npt.NDArray[np.int64]], Iterator[tuple[int, int, Lent]]]
"""`payloads.decompress_batches` but for where the records go."""

_NO_TOTALS: Final = np.array([0, 0, np.iinfo(np.int64).max, np.iinfo(np.int64).min])
"""Batches, records, and the lowest and highest timestamp of none."""

_INT64_MAX: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredBatches:
    """Batches with absolute offsets, ready to be written, in order.

    `max_timestamp` is exact. `min_timestamp` is exact for batches that were opened; for one copied unopened,
    it is that of its first record, or its max timestamp where the header does not tell the first. Both are
    None when no record is left. `merged_bytes_saved` is what merging saved, an estimate where
    merged batches lost records.
    """

    buffers: tuple[memoryview, ...]
    size: int
    batch_count: int
    record_count: int
    min_timestamp: int | None
    max_timestamp: int | None
    merged_bytes_saved: int = 0


@dataclass(slots=True, kw_only=True)
class _Plan:
    """What becomes of each batch of one buffer."""

    data: Bytes
    rows: BatchRows
    actions: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    kept: npt.NDArray[np.int64]
    offset_shift: int
    leader_epoch: int
    rewriting: Rewriting
    times: CodecTimes
    totals: npt.NDArray[np.int64]
    saved: int = 0

    @property
    def horizon(self) -> int:
        """What tombstones' batches are stamped with, where they are."""
        return self.rewriting.delete_horizon_ms or 0

    @property
    def merged_codec(self) -> Codec | None:
        """That of merged batches; None where it is their own."""
        return self.rewriting.merged_codec

    def recompresses(self, unsealed: npt.NDArray[np.int64]) -> bool:
        """Whether a batch that is written anew has a codec, or had one."""
        codecs = unsealed[:, 2]
        return bool(codecs.any()) or (bool(self.merged_codec) and bool(unsealed[:, 3].any()))


class Chosen(NamedTuple):
    """The offsets that survive, and those of them whose records have no value."""

    offsets: Window
    tombstones: Window


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
    if found.rows.size and not found.compressed and not merged_codec:
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
    totals = new_totals()
    if not rows.size:
        return sum_up_filtered((), totals, 0)
    first = int(rows["base_offset"][0]) + offset_shift
    last = int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]) + offset_shift
    kept = chosen.offsets.between(first, last)
    stamp = rewriting.delete_horizon_ms is not None and not chosen.tombstones.empty
    tombstones = chosen.tombstones.between(first, last) if stamp else kept[:0]
    plan = _Plan(
        data=array,
        rows=rows,
        actions=np.empty(rows.size, np.uint8),
        starts=np.empty(rows.size + 1, np.int64),
        kept=kept,
        offset_shift=offset_shift,
        leader_epoch=leader_epoch,
        rewriting=rewriting,
        times=times,
        totals=totals,
    )
    mismatch = plan_rows(rows, offset_shift, kept, tombstones, stamp, plan.actions, plan.starts)
    if mismatch >= 0:
        raise MalformedBatchError.at(Fault.SURVIVORS, int(rows["position"][mismatch]))
    if rewriting.merge:
        mark_small(rows, plan.actions, plan.starts, plan.horizon)
    buffers = tuple(
        buffer
        for first, end, lent in _opened(plan, opener)
        for buffer in _write(plan, first, end, lent)
        if buffer
    )
    return sum_up_filtered(buffers, totals, plan.saved)


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
    out = np.empty(array.size + MOST_GROWTH * kept.size, np.uint8)
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
    return sum_up_filtered((out.data,) if length else (), totals, saved)


def new_totals() -> npt.NDArray[np.int64]:
    """The totals of no batch."""
    return _NO_TOTALS.copy()


def sum_up_filtered(
    buffers: tuple[memoryview, ...], totals: npt.NDArray[np.int64], saved: int
) -> FilteredBatches:
    """What `buffers` are, of which `totals` were kept."""
    batches, records, lowest, highest = totals.tolist()
    return FilteredBatches(
        buffers=buffers,
        size=sum(map(len, buffers)),
        batch_count=batches,
        record_count=records,
        min_timestamp=lowest if records else None,
        max_timestamp=highest if records else None,
        merged_bytes_saved=saved,
    )


def _opened(plan: _Plan, opener: Opener) -> Iterator[tuple[int, int, Lent]]:
    """Stretches of rows, [first, end), with the array in which those that must be opened have their records.

    That is the data itself for uncompressed ones; compressed ones are decompressed up to a bound together.
    """
    opened = np.flatnonzero(plan.actions > COPY)
    behind = [*opened.tolist(), plan.rows.size]
    done = 0
    for first, end, compressed in runs_by_compression(plan.rows, opened):
        if compressed:
            for _start, stop, lent in opener(plan.data, plan.rows, opened[first:end]):
                yield done, behind[first + stop], lent
                done = behind[first + stop]
        else:
            yield done, behind[end], [plan.data]
            done = behind[end]


def _write(plan: _Plan, first: int, end: int, lent: Lent) -> list[memoryview]:
    rows, actions, starts = plan.rows[first:end], plan.actions[first:end], plan.starts[first : end + 1]
    room, sealed = group_rows(rows, actions, starts, plan.horizon, *plan.rewriting.most_merged)
    out = np.empty(room, np.uint8)
    unsealed = np.empty((sealed, 4), np.int64)
    fault, position, row, length, count = assemble(
        plan.data,
        lent[0],
        rows,
        actions,
        starts,
        plan.offset_shift,
        plan.leader_epoch,
        plan.kept,
        plan.horizon,
        *plan.rewriting.most_merged,
        out,
        unsealed,
        plan.totals,
    )
    lent.clear()
    if fault:
        compressed = rows["attributes"][row] & CODEC_MASK
        raise MalformedBatchError.at(fault, int(rows["position"][row]) if compressed else position)
    if plan.recompresses(unsealed[:count]):
        out.resize(length, refcheck=False)  # the rest is free for what is made of it
        with plan.times.compress():
            return _compress(plan, out, length, unsealed[:count])
    written = out[:length].data
    plan.saved += seal(written, unsealed[:count])
    return [written]


def seal(batches: memoryview, unsealed: npt.NDArray[np.int64]) -> int:
    """Give checksums to all batches that are new; how many bytes merging has saved."""
    saved = 0
    for start, end, _codec, apart in unsealed.tolist():
        write_checksum(batches, start, end - start)
        if apart:
            saved += apart - (end - start)
    return saved


def _compress(plan: _Plan, out: Bytes, length: int, unsealed: npt.NDArray[np.int64]) -> list[memoryview]:
    """Compress what is to be compressed, in one call where that can be."""
    calls = native_calls()
    compressed = _compress_natively(plan, out, length, unsealed, calls) if calls is not None else None
    return _compress_here(plan, out, length, unsealed) if compressed is None else [compressed]


def _compress_natively(
    plan: _Plan, out: Bytes, length: int, unsealed: npt.NDArray[np.int64], calls: Calls
) -> memoryview | None:
    """None, and no memory held, where the kernel does not do it: what does not compress grows a little."""
    compressed = np.empty(length + (length >> GROWTH_SHIFT) + FRAME_OVERHEAD * (len(unsealed) + 1), np.uint8)
    places = unsealed.copy()
    merged_codec = -1 if plan.merged_codec is None else int(plan.merged_codec)
    end = compress_batches(out, length, places, merged_codec, compressed, calls)
    if end < 0:
        return None
    sealed = compressed[:end].data
    plan.saved += seal(sealed, places)
    return sealed if end > SCRATCH_BYTES else memoryview(bytes(sealed))


def _compress_here(plan: _Plan, out: Bytes, length: int, unsealed: npt.NDArray[np.int64]) -> list[memoryview]:
    """What the kernel does, batch by batch, for any codec."""
    parts: list[memoryview] = []
    done = 0
    for start, end, attributes, apart in unsealed.tolist():
        own = Codec(attributes)
        codec = plan.merged_codec if apart and plan.merged_codec is not None else own
        batch = memoryview(_compressed(out[start:end], codec))
        parts += (out[done:start].data, batch)
        done = end
        if apart:
            plan.saved += apart - len(batch)
    return [*parts, out[done:length].data]


def _compressed(batch: Bytes, codec: Codec) -> bytearray:
    """A batch, whose records are not compressed, with compressed ones."""
    result = bytearray(batch[:BATCH_OVERHEAD].data)
    for part in compressed_parts(codec, batch[BATCH_OVERHEAD:].data):
        result += part
    result[ATTRIBUTES + 1] = result[ATTRIBUTES + 1] & ~CODEC_MASK | codec
    result[BATCH_LENGTH : BATCH_LENGTH + 4] = (len(result) - LENGTH_OVERHEAD).to_bytes(4, "big")
    write_checksum(memoryview(result), 0, len(result))
    return result
