"""Roaring bitmaps to and from arrays, in bulk."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from object_format.kernels.roaring import serialise, serialised_size


def bitmap_of(values: npt.NDArray[np.int64]) -> BitMap64:
    """The bitmap of `values`, which must rise and not be negative.

    A kernel writes the portable serialisation, which the library then takes in one go: hundreds of times
    faster than adding the numbers where they lie close, and several times where they are scattered.
    """
    if not values.size:
        return BitMap64()
    out = np.empty(serialised_size(values), np.uint8)
    serialise(values, out)
    return BitMap64.deserialize(out.tobytes())


def values_between(bitmap: BitMap64, first: int, last: int) -> npt.NDArray[np.int64]:
    """The numbers of `bitmap` in [first, last], rising; the cost goes with how many they are."""
    before = bitmap.rank(first - 1) if first > 0 else 0
    count = bitmap.range_cardinality(max(first, 0), last + 1) if last >= first else 0
    if not count:
        return np.empty(0, np.int64)
    return np.frombuffer(bitmap[before : before + count].to_array(), np.int64)
