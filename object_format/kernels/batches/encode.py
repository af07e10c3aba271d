"""Encodes records of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from object_format.kernels.runtime.intrinsics import borrowed, copy_bytes
from object_format.kernels.runtime.primitives import VARINT_BYTES, VARLONG_BYTES, varlong_size, write_varlong

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer

MAX_RECORD_OVERHEAD = 1 + VARLONG_BYTES + 4 * VARINT_BYTES
"""Maximum size of a record without its key, value and headers; the header count belongs to the headers."""


@njit(nogil=True, cache=True)
def encode_records(
    out: ByteArray,
    at: Integer,
    timestamp_deltas: IntArray,
    offset_deltas: IntArray,
    keys: ByteArray,
    key_lengths: IntArray,
    values: ByteArray,
    value_lengths: IntArray,
    headers: ByteArray,
    header_lengths: IntArray,
) -> Integer:
    """Encode records from `at` on; return the position after the last one.

    Keys, values and header blocks are concatenated; a length of -1 is a null, and a header block starts with
    its count. `out` needs `MAX_RECORD_OVERHEAD` bytes per record in addition to them.
    """
    out = borrowed(out)
    timestamp_deltas = borrowed(timestamp_deltas)
    offset_deltas = borrowed(offset_deltas)
    keys = borrowed(keys)
    key_lengths = borrowed(key_lengths)
    values = borrowed(values)
    value_lengths = borrowed(value_lengths)
    headers = borrowed(headers)
    header_lengths = borrowed(header_lengths)
    key = 0
    value = 0
    header = 0
    for i in range(timestamp_deltas.size):
        key_length = max(key_lengths[i], 0)
        value_length = max(value_lengths[i], 0)
        header_length = header_lengths[i]
        body = (
            1
            + varlong_size(timestamp_deltas[i])
            + varlong_size(offset_deltas[i])
            + varlong_size(key_lengths[i])
            + key_length
            + varlong_size(value_lengths[i])
            + value_length
            + header_length
        )
        at = write_varlong(out, at, body)
        out[at] = 0
        at = write_varlong(out, at + 1, timestamp_deltas[i])
        at = write_varlong(out, at, offset_deltas[i])
        at = write_varlong(out, at, key_lengths[i])
        copy_bytes(keys, key, out, at, key_length)
        at = write_varlong(out, at + key_length, value_lengths[i])
        copy_bytes(values, value, out, at, value_length)
        at += value_length
        copy_bytes(headers, header, out, at, header_length)
        at += header_length
        key += key_length
        value += value_length
        header += header_length
    return at
