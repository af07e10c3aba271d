"""Roaring bitmaps to and from arrays, in bulk."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from object_format.kernels.bitmaps.roaring import index_range, serialize, serialized_size

_WINDOW: Final = 1 << 18
"""How many numbers wide a window is: 2 MiB as an array, at the most."""

_RANGE: Final = 1 << 20
"""How many numbers wide a selected is that is cut out at a time, by some microseconds."""


def bitmap_of(values: npt.NDArray[np.int64]) -> BitMap64:
    """The bitmap of `values`, which must rise and not be negative.

    A kernel writes the portable serialisation, which the library then takes in one go: hundreds of times
    faster than adding the numbers where they lie close, and several times where they are scattered.
    """
    if not values.size:
        return BitMap64()
    out = np.empty(serialized_size(values), np.uint8)
    serialize(values, out)
    return BitMap64.deserialize(out.tobytes())


def next_value(bitmap: BitMap64, first: int) -> int | None:
    """The lowest number of `bitmap` from `first` on, if found is one."""
    try:
        return bitmap.next_set_bit(first)
    except ValueError:  # found is none
        return None


def values_between(bitmap: BitMap64, first: int, last: int) -> npt.NDArray[np.int64]:
    """The numbers of `bitmap` in [first, last], rising.

    The cost goes with how many they are, wherever they lie: the library goes to a number by its upper bits,
    where ranks and slices count every container before it.
    """
    parts = []
    found = next_value(bitmap, max(first, 0))
    while found is not None and found <= last:
        end = min(found + _RANGE, last + 1)
        selected = BitMap64()
        selected.add_range(found, end)
        # By whole containers, where a slice goes from number to number.
        parts.append(np.frombuffer((bitmap & selected).to_array(), np.int64))
        found = next_value(bitmap, end) if end <= last else None
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def bitmap_between(bitmap: BitMap64, first: int, last: int) -> BitMap64:
    """The numbers of `bitmap` in [first, last], as a bitmap.

    Cost and memory go with the containers (65,536 numbers each) that it has found, and not with the width.
    """
    window = BitMap64()
    found = next_value(bitmap, max(first, 0))
    while found is not None and found <= last:
        end = min(found | 0xFFFF, last) + 1
        window.add_range(found, end)
        found = next_value(bitmap, end)
    return bitmap & window


class BitmapWindow:
    """The numbers of a bitmap, which does not change any more, for ranges that mostly rise.

    A selected of it lies found as an array, so that a range costs a search and not a walk through containers.
    """

    def __init__(self, bitmap: BitMap64) -> None:
        self._bitmap = bitmap
        self._values = np.empty(0, np.int64)
        self._first = self._end = 0
        self.empty = not bitmap

    def between(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """The numbers in [first, last], rising."""
        if self.empty:
            return self._values
        if last - first >= _WINDOW:
            return values_between(self._bitmap, first, last)
        if first < self._first or last >= self._end:
            self._first, self._end = first, first + _WINDOW
            self._values = values_between(self._bitmap, first, first + _WINDOW - 1)
        start, end = index_range(self._values, first, last)
        return self._values[start:end]

    def count(self, first: int, last: int) -> int:
        """How many numbers are in [first, last]."""
        return int(self._bitmap.range_cardinality(first, last + 1))


class ArrayWindow:
    """The same for numbers that are an array, rising."""

    def __init__(self, values: npt.NDArray[np.int64]) -> None:
        self._values = values
        self.empty = not values.size

    def between(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """The numbers in [first, last], rising."""
        start, end = index_range(self._values, first, last)
        return self._values[start:end]

    def count(self, first: int, last: int) -> int:
        """How many numbers are in [first, last]."""
        start, end = index_range(self._values, first, last)
        return int(end - start)
