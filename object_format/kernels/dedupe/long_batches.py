"""Pass 2 for one batch with very many records, in chunks of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.record_parser import parse_record
from object_format.kernels.dedupe.filter import filter_records, write_filtered_header
from object_format.kernels.runtime.intrinsics import borrowed, prefetch
from object_format.kernels.runtime.primitives import read_varint, varlong_size

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

_NONE = int(Fault.NONE)
_AHEAD = 28


@njit(nogil=True, cache=True)
def measure_chunk(
    records: ByteArray,
    rows: Rows,
    position: Integer,
    max_bytes: Integer,
    end_offset: Integer,
    shift: Integer,
    kept: IntArray,
    timestamp_shift: Integer,
) -> Integers:
    """Walk over up to `record_count` records of rows[0] from `position` on, below offset `end_offset`.

    Returns a fault, the position behind the last record, the number of records, and the bytes of those whose
    absolute offset is in `kept`: unchanged, and with `timestamp_shift` added to their timestamp deltas.
    """
    records, rows, kept = borrowed(records), borrowed(rows), borrowed(kept)
    row = rows[0]
    base = row.base_offset + shift
    limit = row.records_end
    k = unchanged_size = rebased_size = n = 0
    while n < max_bytes:
        fault, stop, _body, delta, offset_at, offset_delta, _key, _kl, _value, _vl, _headers = parse_record(
            records, position, limit
        )
        if fault != _NONE:
            return fault, position, n, unchanged_size, rebased_size
        if base + offset_delta >= end_offset:
            break
        prefetch(records, position + _AHEAD * (stop - position))
        if k < kept.size and kept[k] == base + offset_delta:
            k += 1
            unchanged_size += stop - position
            _offset, key_at = read_varint(records, offset_at, stop)
            length = 1 + varlong_size(delta + timestamp_shift) + varlong_size(offset_delta) + stop - key_at
            rebased_size += varlong_size(length) + length
        position = stop
        n += 1
    return _NONE, position, n, unchanged_size, rebased_size


@njit(nogil=True, cache=True)
def filter_chunk(
    records: ByteArray,
    chunk: Rows,
    shift: Integer,
    kept: IntArray,
    timestamp_shift: Integer,
    out: ByteArray,
    at: Integer,
    timestamp_range: IntArray,
) -> Integers:
    """Do the work of `filter.filter_records` for a chunk of a batch, which is described by chunk[0]."""
    chunk = borrowed(chunk)
    return filter_records(records, chunk[0], shift, kept, timestamp_shift, 0, out, at, timestamp_range)


@njit(nogil=True, cache=True)
def write_chunked_header(
    data: ByteArray,
    rows: Rows,
    shift: Integer,
    leader_epoch: Integer,
    count: Integer,
    set_horizon: Integer,
    horizon: Integer,
    timestamp_range: IntArray,
    out: ByteArray,
    totals: IntArray,
) -> None:
    """Write the header of the filtered batch rows[0], which fills `out`; see `write_filtered_header`."""
    data, rows, out = borrowed(data), borrowed(rows), borrowed(out)
    write_filtered_header(
        data,
        rows[0],
        shift,
        leader_epoch,
        count,
        set_horizon,
        horizon,
        timestamp_range,
        out,
        0,
        out.size,
        borrowed(totals),
    )
