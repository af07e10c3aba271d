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

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from object_format.buffers import Bytes, readable
from object_format.codecs import Codec, compress
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.filter import (
    COPY,
    TOTAL_BATCHES,
    TOTAL_HIGHEST,
    TOTAL_LOWEST,
    TOTAL_RECORDS,
    TOTALS,
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
from object_format.native_codecs import SCRATCH_BYTES, native_calls
from object_format.payloads import decompress_batches, thread_scratch
from object_format.record_batch import BatchRows, scan_rising_batches, write_checksum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from object_format.dedupe.answer import Survivors

_INT64: Final = np.iinfo(np.int64)

_FRAME_OVERHEAD: Final = 512
"""More than any codec puts around what it compresses."""


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
    horizon: int
    merged_codec: Codec | None
    totals: npt.NDArray[np.int64]
    saved: int = 0

    def recompresses(self, unsealed: npt.NDArray[np.int64]) -> bool:
        """Whether a batch that is written anew has a codec, or had one."""
        codecs = unsealed[:, 2]
        return bool(codecs.any()) or (bool(self.merged_codec) and bool(unsealed[:, 3].any()))


def filter_batches(
    batches: Buffer,
    survivors: Survivors,
    *,
    offset_shift: int,
    leader_epoch: int,
    delete_horizon_ms: int | None,
    merge: bool = True,
    merged_codec: Codec | None = None,
) -> FilteredBatches:
    """The surviving records of whole `batches`, which must be bytes that pass 1 was fed.

    `offset_shift` makes their offsets absolute; the result has `leader_epoch`. Batches with surviving
    tombstones that have no delete horizon yet get `delete_horizon_ms`, unless that is None. With `merge`,
    small batches next to each other become larger ones, compressed with `merged_codec`, or as they were when
    that is None. Raises MalformedBatchError, also when a survivor is not there.
    """
    array = readable(batches)
    rows, behind = scan_rising_batches(array, offset_shift, 0)
    totals = np.zeros(TOTALS, np.int64)
    totals[TOTAL_LOWEST], totals[TOTAL_HIGHEST] = _INT64.max, _INT64.min
    if not rows.size:
        return _result((), totals, 0)
    first = int(rows["base_offset"][0]) + offset_shift
    kept = survivors.offset_window.between(first, behind - 1)
    stamp = delete_horizon_ms is not None and not survivors.tombstone_window.empty
    tombstones = survivors.tombstone_window.between(first, behind - 1) if stamp else kept[:0]
    plan = _Plan(
        data=array,
        rows=rows,
        actions=np.empty(rows.size, np.uint8),
        starts=np.empty(rows.size + 1, np.int64),
        kept=kept,
        offset_shift=offset_shift,
        leader_epoch=leader_epoch,
        horizon=delete_horizon_ms or 0,
        merged_codec=merged_codec,
        totals=totals,
    )
    mismatch = plan_rows(rows, offset_shift, kept, tombstones, stamp, plan.actions, plan.starts)
    if mismatch >= 0:
        raise MalformedBatchError.at(Fault.SURVIVORS, int(rows["position"][mismatch]))
    if merge:
        mark_small(rows, plan.actions, plan.starts, plan.horizon)
    buffers = tuple(
        buffer
        for first, end, records in _opened(plan)
        for buffer in _write(plan, first, end, records)
        if buffer
    )
    return _result(buffers, totals, plan.saved)


def _result(buffers: tuple[memoryview, ...], totals: npt.NDArray[np.int64], saved: int) -> FilteredBatches:
    empty = not totals[TOTAL_RECORDS]
    return FilteredBatches(
        buffers=buffers,
        size=sum(map(len, buffers)),
        batch_count=int(totals[TOTAL_BATCHES]),
        record_count=int(totals[TOTAL_RECORDS]),
        min_timestamp=None if empty else int(totals[TOTAL_LOWEST]),
        max_timestamp=None if empty else int(totals[TOTAL_HIGHEST]),
        merged_bytes_saved=saved,
    )


def _opened(plan: _Plan) -> Iterator[tuple[int, int, Bytes]]:
    """Stretches of rows, [first, end), with the array in which those that must be opened have their records.

    That is the data itself for uncompressed ones; compressed ones are decompressed up to a bound together.
    """
    opened = np.flatnonzero(plan.actions > COPY)
    compressed = (plan.rows["attributes"][opened] & CODEC_MASK) != 0
    edges = [0, *(np.flatnonzero(np.diff(compressed)) + 1).tolist(), opened.size]
    behind = [*opened.tolist(), plan.rows.size]
    done = 0
    for first, end in pairwise(edges):
        if first < end and compressed[first]:
            for _start, stop, records in decompress_batches(
                plan.data, plan.rows, opened[first:end], thread_scratch()
            ):
                yield done, behind[first + stop], records
                done = behind[first + stop]
        else:
            yield done, behind[end], plan.data
            done = behind[end]


def _write(plan: _Plan, first: int, end: int, records: Bytes) -> list[memoryview]:
    rows, actions, starts = plan.rows[first:end], plan.actions[first:end], plan.starts[first : end + 1]
    room, sealed = group_rows(rows, actions, starts, plan.horizon)
    out = np.empty(room, np.uint8)
    unsealed = np.empty((sealed, 4), np.int64)
    fault, position, row, length, count = assemble(
        plan.data,
        records,
        rows,
        actions,
        starts,
        plan.offset_shift,
        plan.leader_epoch,
        plan.kept,
        plan.horizon,
        out,
        unsealed,
        plan.totals,
    )
    if fault:
        compressed = rows["attributes"][row] & CODEC_MASK
        raise MalformedBatchError.at(fault, int(rows["position"][row]) if compressed else position)
    if plan.recompresses(unsealed[:count]):
        return _compress(plan, out, length, unsealed[:count])
    return [_seal(plan, out[:length].data, unsealed[:count])]


def _seal(plan: _Plan, batches: memoryview, unsealed: npt.NDArray[np.int64]) -> memoryview:
    """Give checksums to all batches that are new."""
    for start, end, _codec, apart in unsealed.tolist():
        write_checksum(batches, start, end - start)
        if apart:
            plan.saved += apart - (end - start)
    return batches


def _compress(plan: _Plan, out: Bytes, length: int, unsealed: npt.NDArray[np.int64]) -> list[memoryview]:
    """Compress what is to be compressed, in one call where that can be."""
    calls = native_calls()
    if calls is not None:
        # What does not compress grows a little; where this is too little room, the other way is taken.
        compressed = np.empty(length + (length >> 7) + _FRAME_OVERHEAD * (len(unsealed) + 1), np.uint8)
        places = unsealed.copy()
        merged_codec = -1 if plan.merged_codec is None else int(plan.merged_codec)
        end = compress_batches(out, length, places, merged_codec, compressed, calls)
        if end >= 0:
            sealed = _seal(plan, compressed[:end].data, places)
            return [sealed if end > SCRATCH_BYTES else memoryview(bytes(sealed))]
    return _compress_here(plan, out, length, unsealed)


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
    result += compress(codec, batch[BATCH_OVERHEAD:].data)
    result[ATTRIBUTES + 1] = result[ATTRIBUTES + 1] & ~CODEC_MASK | codec
    result[BATCH_LENGTH : BATCH_LENGTH + 4] = (len(result) - LENGTH_OVERHEAD).to_bytes(4, "big")
    write_checksum(memoryview(result), 0, len(result))
    return result
