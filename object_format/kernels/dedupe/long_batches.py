"""Pass 2 over one batch with very many records, a stretch of them at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.record_parser import parse_record
from object_format.kernels.dedupe.filter import finish_thinned, thin_records
from object_format.kernels.runtime.intrinsics import borrowed, prefetch
from object_format.kernels.runtime.primitives import read_varint, varlong_size

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer, Integers, Numbers, Rows

_NONE = int(Fault.NONE)
_AHEAD = 28


@njit(nogil=True, cache=True)
def measure_stretch(
    records: ByteArray,
    rows: Rows,
    position: Integer,
    most: Integer,
    behind: Integer,
    shift: Integer,
    kept: Numbers,
    moved: Integer,
) -> Integers:
    """Go from `position` over the next records of rows[0], `most` at most, whose offset is below `behind`.

    Returns a fault, the position behind them, how many there are, and how many bytes those take whose
    absolute offset is among `kept`: as they are, and with `moved` added to their timestamp deltas.
    """
    records, rows, kept = borrowed(records), borrowed(rows), borrowed(kept)
    row = rows[0]
    base = row.base_offset + shift
    limit = row.records_end
    k = plain = rebased = n = 0
    while n < most:
        fault, stop, _body, delta, offset_at, offset_delta, _key, _kl, _value, _vl, _headers = parse_record(
            records, position, limit
        )
        if fault != _NONE:
            return fault, position, n, plain, rebased
        if base + offset_delta >= behind:
            break
        prefetch(records, position + _AHEAD * (stop - position))
        if k < kept.size and kept[k] == base + offset_delta:
            k += 1
            plain += stop - position
            _offset, key_at = read_varint(records, offset_at, stop)
            length = 1 + varlong_size(delta + moved) + varlong_size(offset_delta) + stop - key_at
            rebased += varlong_size(length) + length
        position = stop
        n += 1
    return _NONE, position, n, plain, rebased


@njit(nogil=True, cache=True)
def thin_stretch(
    records: ByteArray,
    stretch: Rows,
    shift: Integer,
    kept: Numbers,
    moved: Integer,
    out: ByteArray,
    at: Integer,
    span: Numbers,
) -> Integers:
    """`filter.thin_records` for records of a batch that are one stretch of it, as stretch[0] says."""
    stretch = borrowed(stretch)
    return thin_records(records, stretch[0], shift, kept, moved, 0, out, at, span)


@njit(nogil=True, cache=True)
def finish_stretches(
    data: ByteArray,
    rows: Rows,
    shift: Integer,
    leader_epoch: Integer,
    count: Integer,
    stamp: Integer,
    horizon: Integer,
    span: Numbers,
    out: ByteArray,
    totals: Numbers,
) -> None:
    """The header of what is left of rows[0], which fills `out`; as `filter.finish_thinned`."""
    data, rows, out = borrowed(data), borrowed(rows), borrowed(out)
    finish_thinned(
        data, rows[0], shift, leader_epoch, count, stamp, horizon, span, out, 0, out.size, borrowed(totals)
    )
