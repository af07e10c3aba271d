"""Roaring bitmaps to and from arrays, in bulk."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from object_format.kernels.roaring import serialise, serialised_size, span_of

_WINDOW: Final = 1 << 18
"""How many numbers wide a window is: 2 MiB as an array, at the most."""

_WIDE: Final = 1 << 22
"""From this width on, a bitmap of the range itself would cost more than it spares."""


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
    first = max(first, 0)
    if last < first:
        return np.empty(0, np.int64)
    if last - first < _WIDE:
        span = BitMap64()
        span.add_range(first, last + 1)
        part = bitmap & span  # by whole containers, where a slice goes from number to number
    else:
        before = bitmap.rank(first - 1) if first else 0
        part = bitmap[before : before + bitmap.range_cardinality(first, last + 1)]
    return np.frombuffer(part.to_array(), np.int64) if part else np.empty(0, np.int64)


class BitmapWindow:
    """The numbers of a bitmap, which does not change any more, for ranges that mostly rise.

    A stretch of it lies there as an array, so that a range costs a search and not a walk through containers.
    """

    def __init__(self, bitmap: BitMap64) -> None:
        self._bitmap = bitmap
        self._values = np.empty(0, np.int64)
        self._first = self._behind = 0
        self.empty = not bitmap

    def between(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """The numbers in [first, last], rising."""
        if self.empty:
            return self._values
        if last - first >= _WINDOW:
            return values_between(self._bitmap, first, last)
        if first < self._first or last >= self._behind:
            self._first, self._behind = first, first + _WINDOW
            self._values = values_between(self._bitmap, first, first + _WINDOW - 1)
        start, end = span_of(self._values, first, last)
        return self._values[start:end]


class ArrayWindow:
    """The same for numbers that are an array, rising."""

    def __init__(self, values: npt.NDArray[np.int64]) -> None:
        self._values = values
        self.empty = not values.size

    def between(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """The numbers in [first, last], rising."""
        start, end = span_of(self._values, first, last)
        return self._values[start:end]
