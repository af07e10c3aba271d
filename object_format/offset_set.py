"""Sets of offsets in little memory, whether they are dense or far apart.

A Roaring bitmap takes 110 to 180 bytes for an offset that is alone in its container of 65,536 offsets. The
offsets of containers with few of them are therefore kept in an array, at 8 bytes each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64
from typing_extensions import override

from object_format.bitmaps import bitmap_between, bitmap_of, next_value, values_between
from object_format.kernels.bitmaps.roaring import index_range

if TYPE_CHECKING:
    from collections.abc import Iterator

Offsets = npt.NDArray[np.int64]

_WINDOW: Final = 1 << 18
"""Width of a `SetWindow` in offsets; up to 2 MiB as an array."""

_CONTAINER_BITS: Final = 16

_MIN_IN_CONTAINER: Final = 16
"""Offsets from which a container takes less memory than an array."""

_DENSE: Final = 64
"""Average number of offsets in a container from which containers are not counted one by one."""

_MAX_LOOSE: Final = 1 << 18
"""Offsets outside the sorted array and the bitmap; more of them are sorted if the array is not larger."""


class OffsetSet:
    """Set of offsets that are added in ascending runs, each offset once. It is not thread-safe."""

    def __init__(self) -> None:
        self._bitmap = BitMap64()
        self._isolated = np.empty(0, np.int64)
        self._loose: list[Offsets] = []
        self._loose_count = 0

    @classmethod
    def deserialize(cls, data: bytes) -> OffsetSet:
        """Return the set whose portable Roaring serialization is `data`."""
        return cls.of(BitMap64.deserialize(data))

    @classmethod
    def of(cls, bitmap: BitMap64) -> OffsetSet:
        """Return the set with the values of a bitmap, which must not change any more."""
        made = cls()
        if bitmap and len(bitmap) >= _DENSE * _containers(bitmap.min(), bitmap.max()):
            made._bitmap = bitmap
        else:
            made.add(np.frombuffer(bitmap.to_array(), np.int64))
        return made

    def serialize(self) -> bytes:
        """Return the portable Roaring serialization."""
        self._settle()
        whole = self._bitmap | bitmap_of(self._isolated) if self._isolated.size else self._bitmap
        data: bytes = whole.serialize()
        return data

    def add(self, offsets: Offsets) -> None:
        """Add ascending offsets that the set does not have."""
        if not offsets.size:
            return
        if offsets.size >= _DENSE * _containers(int(offsets[0]), int(offsets[-1])):
            self._bitmap |= bitmap_of(offsets)
            return
        crowded = _are_crowded(offsets)
        self._bitmap |= bitmap_of(offsets[crowded])
        loose = offsets[~crowded]
        self._loose.append(loose)
        self._loose_count += loose.size
        if self._loose_count > max(_MAX_LOOSE, self._isolated.size):
            self._settle()

    def add_range(self, first: int, end: int) -> None:
        """Add the offsets of [first, end), which the set does not have."""
        self._bitmap.add_range(first, end)

    def update(self, other: OffsetSet) -> None:
        """Add the offsets of another set. The two sets must have no offset in common."""
        other._settle()
        self._bitmap |= other._bitmap
        self.add(other._isolated)

    def pack(self) -> None:
        """Give the set its smallest form, after the last addition."""
        self._settle()
        self._bitmap.run_optimize()

    def between(self, first: int, last: int) -> Offsets:
        """Return the offsets in [first, last], ascending."""
        isolated = self._isolated_between(first, last)
        if not self._bitmap:
            return isolated
        others = values_between(self._bitmap, first, last)
        if not isolated.size:
            return others
        merged = np.concatenate((isolated, others))
        merged.sort()
        return merged

    def bitmap_between(self, first: int, last: int) -> BitMap64:
        """Return the offsets in [first, last], a range of few containers, as a bitmap."""
        found = bitmap_between(self._bitmap, first, last)
        isolated = self._isolated_between(first, last)
        return found | bitmap_of(isolated) if isolated.size else found

    def restricted(self, first: int, last: int) -> OffsetSet:
        """Return the set of the offsets in [first, last]."""
        made = OffsetSet()
        made._bitmap = bitmap_between(self._bitmap, first, last)
        made._isolated = self._isolated_between(first, last)
        return made

    def count(self, first: int, last: int) -> int:
        """Return the number of offsets in [first, last]."""
        return int(self._bitmap.range_cardinality(first, last + 1)) + self._isolated_between(first, last).size

    def next_offset(self, first: int) -> int | None:
        """Return the lowest offset that is at least `first`, or None if there is none."""
        self._settle()
        index = int(np.searchsorted(self._isolated, first))
        isolated = int(self._isolated[index]) if index < self._isolated.size else None
        found = next_value(self._bitmap, first)
        return min((each for each in (isolated, found) if each is not None), default=None)

    def max(self) -> int:
        """Return the highest offset of a set that is not empty."""
        self._settle()
        if not self._isolated.size:
            return self._bitmap.max()
        isolated = int(self._isolated[-1])
        return max(isolated, self._bitmap.max()) if self._bitmap else isolated

    def __len__(self) -> int:
        return len(self._bitmap) + self._isolated.size + self._loose_count

    def __iter__(self) -> Iterator[int]:
        return iter(self.between(0, self.max()).tolist() if len(self) else ())

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetSet) and list(self) == list(other)

    @override
    def __hash__(self) -> int:
        raise TypeError("an OffsetSet can change")

    @override
    def __repr__(self) -> str:
        return f"OffsetSet of {len(self)} offsets"

    def _isolated_between(self, first: int, last: int) -> Offsets:
        self._settle()
        start, end = np.searchsorted(self._isolated, first), np.searchsorted(self._isolated, last, "right")
        return self._isolated[start:end]

    def _settle(self) -> None:
        """Sort the loose offsets, and move those of containers that have become crowded to the bitmap."""
        if not self._loose:
            return
        offsets = np.concatenate((self._isolated, *self._loose[::-1]))
        self._loose.clear()
        self._loose_count = 0
        offsets.sort(kind="stable")  # merges runs, and most are in order
        crowded = _are_crowded(offsets)
        self._bitmap |= bitmap_of(offsets[crowded])
        self._isolated = offsets[~crowded]


def _containers(first: int, last: int) -> int:
    """Return the number of containers that [first, last] touches."""
    return (last >> _CONTAINER_BITS) - (first >> _CONTAINER_BITS) + 1


def _are_crowded(offsets: Offsets) -> npt.NDArray[np.bool_]:
    """Return for each of the ascending offsets whether its container has many of them."""
    starts = np.flatnonzero(np.diff(offsets >> _CONTAINER_BITS)) + 1
    sizes = np.diff(starts, prepend=0, append=offsets.size)
    return np.repeat(sizes >= _MIN_IN_CONTAINER, sizes)


class SetWindow:
    """View of an unchanging set for queries of mostly ascending ranges.

    It keeps part of the set as an array, so that a range needs a binary search instead of a walk through
    containers.
    """

    def __init__(self, offsets: OffsetSet) -> None:
        self._offsets = offsets
        self._values = np.empty(0, np.int64)
        self._first = self._end = 0
        self.empty = not len(offsets)

    def between(self, first: int, last: int) -> Offsets:
        """Return the values in [first, last], ascending."""
        values = self.around(first, last)
        start, end = index_range(values, first, last)
        return values[start:end]

    def around(self, first: int, last: int) -> Offsets:
        """Return the values in [first, last] and maybe adjacent ones, ascending."""
        if self.empty:
            return self._values
        if last - first >= _WINDOW:
            return self._offsets.between(first, last)
        if first < self._first or last >= self._end:
            self._first, self._end = first, first + _WINDOW
            self._values = self._offsets.between(first, first + _WINDOW - 1)
        return self._values

    def count(self, first: int, last: int) -> int:
        """Return the number of values in [first, last]."""
        return self._offsets.count(first, last)


class ArrayWindow:
    """The interface of `SetWindow` for values in an ascending array."""

    def __init__(self, values: Offsets) -> None:
        self._values = values
        self.empty = not values.size

    def between(self, first: int, last: int) -> Offsets:
        """Return the values in [first, last], ascending."""
        start, end = index_range(self._values, first, last)
        return self._values[start:end]

    def around(self, first: int, last: int) -> Offsets:
        """Return all values, as none of them has to be copied."""
        del first, last
        return self._values

    def count(self, first: int, last: int) -> int:
        """Return the number of values in [first, last]."""
        start, end = index_range(self._values, first, last)
        return int(end - start)
