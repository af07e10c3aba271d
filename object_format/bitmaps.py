"""Roaring bitmaps to and from arrays, in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from object_format.kernels.roaring import serialise, serialised_size

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    """The numbers of `bitmap` that lie in [first, last], rising."""
    window = BitMap64()
    window.add_range(first, last + 1)
    window &= bitmap
    return np.frombuffer(window.to_array(), np.int64) if window else np.empty(0, np.int64)


def union_of(bitmaps: Iterable[BitMap64]) -> BitMap64:
    """All numbers of all bitmaps."""
    result = BitMap64()
    for bitmap in bitmaps:
        result |= bitmap
    return result
