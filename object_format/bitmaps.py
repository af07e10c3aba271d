"""Converts Roaring bitmaps to arrays and back, in bulk."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from object_format.kernels.bitmaps.roaring import serialize, serialized_size

_RANGE: Final = 1 << 20
"""Width of the range that `values_between` intersects at a time, which takes microseconds."""


def bitmap_of(values: npt.NDArray[np.int64]) -> BitMap64:
    """Return the bitmap of `values`, which must be ascending and not negative.

    A kernel writes the portable serialization, and the library deserializes it in one call. For dense values
    this is hundreds of times faster than adding them, and several times faster for sparse ones.
    """
    if not values.size:
        return BitMap64()
    out = np.empty(serialized_size(values), np.uint8)
    serialize(values, out)
    return BitMap64.deserialize(out.tobytes())


def next_value(bitmap: BitMap64, first: int) -> int | None:
    """Return the lowest value of `bitmap` that is at least `first`, or None if there is none."""
    try:
        return bitmap.next_set_bit(first)
    except ValueError:  # no such value
        return None


def values_between(bitmap: BitMap64, first: int, last: int) -> npt.NDArray[np.int64]:
    """Return the values of `bitmap` in [first, last], ascending.

    The cost depends on the number of returned values only. Ranks and slices would count every container
    before the range, whereas `next_set_bit` finds a value by its upper bits.
    """
    parts = []
    found = next_value(bitmap, max(first, 0))
    while found is not None and found <= last:
        end = min(found + _RANGE, last + 1)
        selected = BitMap64()
        selected.add_range(found, end)
        # An intersection works on whole containers, a slice on single values.
        parts.append(np.frombuffer((bitmap & selected).to_array(), np.int64))
        found = next_value(bitmap, end) if end <= last else None
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def bitmap_between(bitmap: BitMap64, first: int, last: int) -> BitMap64:
    """Return the values of `bitmap` in [first, last] as a bitmap.

    Cost and memory depend on the containers (65,536 values each) that the bitmap has in the range, not on the
    width of the range.
    """
    window = BitMap64()
    found = next_value(bitmap, max(first, 0))
    while found is not None and found <= last:
        end = min(found | 0xFFFF, last) + 1
        window.add_range(found, end)
        found = next_value(bitmap, end)
    return bitmap & window
