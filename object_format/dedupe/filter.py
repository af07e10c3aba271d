"""Pass 2: the surviving records as batches again, without looking at a key.

A batch whose records all survive is copied as it stands, one without a survivor is skipped unopened; only
mixed batches, and those whose tombstones get their delete horizon (KIP-534), are opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from object_format.bitmaps import values_between
from object_format.buffers import Bytes, readable, writable
from object_format.codecs import Codec, compress
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.filter import (
    MOST_GROWTH,
    SKIP,
    STAMP,
    THIN,
    TOTAL_BATCHES,
    TOTAL_HIGHEST,
    TOTAL_LOWEST,
    TOTAL_RECORDS,
    TOTALS,
    assemble,
    plan_rows,
    thin_row,
)
from object_format.kernels.layout import BATCH_LENGTH, BATCH_OVERHEAD, CODEC_MASK, LENGTH_OVERHEAD
from object_format.payloads import open_records
from object_format.record_batch import BatchRows, scan_rising_batches, write_checksum

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.dedupe.survivors import Survivors

_INT64: Final = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredBatches:
    """Batches with absolute offsets, ready to be written, in order.

    `max_timestamp` is exact. `min_timestamp` is exact for batches that were opened; for one copied unopened,
    it is that of its first record, or its max timestamp where the header does not tell the first. Both are
    None when no record is left.
    """

    buffers: tuple[memoryview, ...]
    size: int
    batch_count: int
    record_count: int
    min_timestamp: int | None
    max_timestamp: int | None


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
    totals: npt.NDArray[np.int64]


def filter_batches(
    batches: Buffer,
    survivors: Survivors,
    *,
    offset_shift: int,
    leader_epoch: int,
    delete_horizon_ms: int | None,
) -> FilteredBatches:
    """The surviving records of whole `batches`, which must be bytes that pass 1 was fed.

    `offset_shift` makes their offsets absolute; the result has `leader_epoch`. Batches with surviving
    tombstones that have no delete horizon yet get `delete_horizon_ms`, unless that is None. Raises
    MalformedBatchError, also when a survivor is not there.
    """
    array = readable(batches)
    rows, behind = scan_rising_batches(array, offset_shift, 0)
    totals = np.zeros(TOTALS, np.int64)
    totals[TOTAL_LOWEST], totals[TOTAL_HIGHEST] = _INT64.max, _INT64.min
    if not rows.size:
        return _result((), totals)
    first = int(rows["base_offset"][0]) + offset_shift
    kept = values_between(survivors.offsets, first, behind - 1)
    stamp = delete_horizon_ms is not None and bool(survivors.tombstones)
    tombstones = values_between(survivors.tombstones, first, behind - 1) if stamp else kept[:0]
    plan = _Plan(
        data=array,
        rows=rows,
        actions=np.empty(rows.size, np.uint8),
        starts=np.empty(rows.size + 1, np.int64),
        kept=kept,
        offset_shift=offset_shift,
        leader_epoch=leader_epoch,
        horizon=delete_horizon_ms or 0,
        totals=totals,
    )
    mismatch = plan_rows(rows, offset_shift, kept, tombstones, stamp, plan.actions, plan.starts)
    if mismatch >= 0:
        raise MalformedBatchError.at(Fault.SURVIVORS, int(rows["position"][mismatch]))
    return _result(tuple(_write(plan)), totals)


def _result(buffers: tuple[memoryview, ...], totals: npt.NDArray[np.int64]) -> FilteredBatches:
    empty = not totals[TOTAL_RECORDS]
    return FilteredBatches(
        buffers=buffers,
        size=sum(map(len, buffers)),
        batch_count=int(totals[TOTAL_BATCHES]),
        record_count=int(totals[TOTAL_RECORDS]),
        min_timestamp=None if empty else int(totals[TOTAL_LOWEST]),
        max_timestamp=None if empty else int(totals[TOTAL_HIGHEST]),
    )


def _write(plan: _Plan) -> list[memoryview]:
    """Long stretches at once; a compressed batch that must be opened on its own."""
    buffers: list[memoryview] = []
    opened = (plan.actions >= THIN) & ((plan.rows["attributes"] & CODEC_MASK) != 0)
    first = 0
    for index in np.flatnonzero(opened).tolist():
        buffers += _write_stretch(plan, first, index)
        buffers.append(_write_compressed(plan, index))
        first = index + 1
    buffers += _write_stretch(plan, first, plan.rows.size)
    return buffers


def _write_stretch(plan: _Plan, first: int, end: int) -> list[memoryview]:
    actions = plan.actions[first:end]
    if not (actions != SKIP).any():
        return []
    rows, starts = plan.rows[first:end], plan.starts[first : end + 1]
    stamped = actions == STAMP
    room = int(rows["size"][actions != SKIP].sum()) + MOST_GROWTH * int(rows["record_count"][stamped].sum())
    out = np.empty(room, np.uint8)
    thinned = np.empty((int((actions >= THIN).sum()), 2), np.int64)
    fault, position, length, count = assemble(
        plan.data,
        rows,
        actions,
        starts,
        plan.offset_shift,
        plan.leader_epoch,
        plan.kept,
        plan.horizon,
        out,
        thinned,
        plan.totals,
    )
    if fault:
        raise MalformedBatchError.at(fault, position)
    for start, stop in thinned[:count].tolist():
        write_checksum(out, start, stop - start)
    return [out[:length].data]


def _write_compressed(plan: _Plan, index: int) -> memoryview:
    """One batch decompressed, thinned, and compressed again as it was."""
    rows = plan.rows[index : index + 1]
    records = readable(open_records(plan.data, rows, 0))
    rows["records_start"], rows["records_end"] = 0, records.size
    count = int(rows["record_count"][0])
    out = np.empty(BATCH_OVERHEAD + records.size + MOST_GROWTH * count, np.uint8)
    fault, _position, length = thin_row(
        plan.data,
        records,
        rows,
        0,
        plan.offset_shift,
        plan.leader_epoch,
        plan.kept[plan.starts[index] : plan.starts[index + 1]],
        bool(plan.actions[index] == STAMP),
        plan.horizon,
        out,
        0,
        plan.totals,
    )
    if fault:
        raise MalformedBatchError.at(fault, int(rows["position"][0]))
    codec = Codec(int(rows["attributes"][0]) & CODEC_MASK)
    batch = bytearray(out[:BATCH_OVERHEAD].data)
    batch += compress(codec, out[BATCH_OVERHEAD:length].data)
    batch[BATCH_LENGTH : BATCH_LENGTH + 4] = (len(batch) - LENGTH_OVERHEAD).to_bytes(4, "big")
    write_checksum(writable(batch), 0, len(batch))
    return memoryview(batch)
