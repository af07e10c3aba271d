"""Bitmaps built in bulk are equal to bitmaps that the library builds value by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap64
from typing_extensions import override

from object_format.bitmaps import bitmap_between, bitmap_of, values_between
from object_format.kernels.bitmaps.roaring import serialize, serialized_size
from object_format.offset_set import OffsetSet, SetWindow

CLUSTERS = st.lists(
    st.tuples(st.sampled_from([0, 65_530, 2**32 - 5, 2**40, 2**61]), st.integers(0, 9000), st.integers(1, 7)),
    max_size=4,
)


def serialized(values: npt.NDArray[np.int64]) -> bytes:
    """Return what the kernel writes to memory of the needed size, which is not zeroed."""
    memory = np.full(serialized_size(values) + 8, 0xEE, np.uint8)
    serialize(values, memory[:-8])
    assert (memory[-8:] == 0xEE).all()
    return memory[:-8].tobytes()


@given(CLUSTERS)
def test_the_library_reads_bitmaps_that_the_kernel_writes(clusters: list[tuple[int, int, int]]) -> None:
    values = sorted(
        {value for start, count, step in clusters for value in range(start, start + count * step, step)}
    )
    array = np.array(values, np.int64)
    bitmap = bitmap_of(array)
    assert bitmap == BitMap64(values)
    assert len(bitmap) == len(values)
    assert serialized(array) == BitMap64(values, optimize=False).serialize()


def test_both_kinds_of_containers_are_written() -> None:
    """Arrays contain up to 4096 values, bitmaps more."""
    for count in (1, 4095, 4096, 4097, 65_535, 65_536, 65_537):
        values = np.arange(count, dtype=np.int64) + 2**33
        assert bitmap_of(values) == BitMap64(range(2**33, 2**33 + count))


NEAR_OR_FAR = st.sampled_from([0, 1, 2**20 - 1, 2**20, 2**20 + 1, 2**33, 2**62]) | st.integers(0, 2**62)


@given(st.sets(NEAR_OR_FAR), NEAR_OR_FAR | st.just(-5), NEAR_OR_FAR)
@example({0, 2**20}, 0, 2**20)
@example({0, 2**20, 2**20 + 1}, 0, 2**20)
@example({0, 3, 2**20}, -5, 3)
def test_values_between_returns_the_values_of_the_range(values: set[int], one: int, other: int) -> None:
    first, last = sorted((one, other))
    expected = sorted(value for value in values if first <= value <= last)
    assert values_between(BitMap64(values), first, last).tolist() == expected
    assert list(bitmap_between(BitMap64(values), first, last)) == expected


@given(CLUSTERS, st.integers(0, 2**34), st.integers(0, 2**34))
def test_bitmap_between_returns_the_values_of_the_range(
    clusters: list[tuple[int, int, int]], one: int, other: int
) -> None:
    bitmap = BitMap64()
    for start, count, step in clusters:
        bitmap.add_range(start, start + count * step)
    first, last = sorted((one, other))
    expected = BitMap64()
    expected.add_range(first, last + 1)

    assert bitmap_between(bitmap, first, last) == bitmap & expected
    assert bitmap_between(bitmap, last, first - 1) == BitMap64()
    assert values_between(bitmap, first, last).tolist() == (bitmap & expected).to_array().tolist()


class CountingBitmap(BitMap64):
    """Counts lookups of constant cost, and rejects operations whose cost depends on the position."""

    look_ups = 0

    @override
    def __and__(self, other: Any) -> Any:
        self.look_ups += 1 + (int(other.max()) - int(other.min()) >> 20)
        return super().__and__(other)

    @override
    def next_set_bit(self, value: int) -> int:
        self.look_ups += 1
        return super().next_set_bit(value)

    @override
    def rank(self, value: int) -> int:
        raise AssertionError(f"all before {value} is counted")

    @override
    def range_cardinality(self, range_start: int, range_end: int) -> int:
        raise AssertionError(f"all before {range_start} and {range_end} is counted")

    @override
    def __getitem__(self, value: Any) -> Any:
        raise AssertionError(f"all before {value} is counted")


@pytest.mark.parametrize("gap", [1, 1000, 70_000, 5_000_000])
def test_lookups_of_ascending_ranges_are_linear(gap: int) -> None:
    """Twice as many values cost twice as many lookups, independent of their distance."""

    def cost(count: int) -> int:
        bitmap = CountingBitmap(np.arange(0, count * gap, gap, dtype=np.uint64).tolist())
        window = SetWindow(OffsetSet.of(bitmap))
        found = [window.between(first * gap, (first + 100) * gap - 1) for first in range(0, count, 100)]
        assert np.concatenate(found).tolist() == list(range(0, count * gap, gap))
        return bitmap.look_ups

    assert cost(2000) <= 2 * 2000 + 100
    assert cost(4000) <= 2 * cost(2000) + 10


@pytest.mark.parametrize("start", [0, 10**9])
def test_ranges_near_each_other_cost_one_lookup(start: int) -> None:
    """The window has the values behind the first range, too."""

    def cost(ranges: int) -> int:
        bitmap = CountingBitmap(range(start, start + 100_000))
        window = SetWindow(OffsetSet.of(bitmap))
        for first in range(start, start + 100 * ranges, 100):
            assert window.between(first, first + 99).tolist() == list(range(first, first + 100))
        return bitmap.look_ups

    assert cost(1000) == cost(1)


def test_a_range_that_is_asked_for_again_costs_nothing() -> None:
    bitmap = CountingBitmap(range(100_000))
    window = SetWindow(OffsetSet.of(bitmap))
    window.between(5, 99)
    before = bitmap.look_ups

    assert window.between(5, 99).tolist() == list(range(5, 100))
    assert bitmap.look_ups == before


@pytest.mark.parametrize("containers", [1, 2, 5])
def test_bitmap_between_costs_a_lookup_for_each_container(containers: int) -> None:
    """One more finds that there are no others, and one selects the values."""
    bitmap = CountingBitmap()
    bitmap.add_range(70_000, 2**20)
    last = 70_000 + (containers - 1) * 65_536

    assert len(bitmap_between(bitmap, 0, last)) == last - 70_000 + 1
    assert bitmap.look_ups == containers + 2


@pytest.mark.parametrize("span", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1])
def test_a_range_of_about_a_window_has_all_of_its_values(span: int) -> None:
    window = SetWindow(OffsetSet.of(BitMap64([5, 5 + span, 6 + span])))

    assert window.between(5, 5 + span).tolist() == [5, 5 + span]


def test_the_first_value_behind_a_window_is_read() -> None:
    end = 1 << 18
    window = SetWindow(OffsetSet.of(BitMap64([0, end - 1, end, end + 1])))

    assert window.between(0, 9).tolist() == [0]
    assert window.between(1, end - 1).tolist() == [end - 1]
    assert window.between(1, end).tolist() == [end - 1, end]


@pytest.mark.parametrize("end", [64 * 64 + 1, 64 * 65, 64 * 66])
@pytest.mark.parametrize("others", [[], [5000], [5119, 5120, 65_535], [1 << 16]])
@pytest.mark.parametrize("first", [0, 63, 64, 100])
def test_words_of_a_container_change_no_others(first: int, end: int, others: list[int]) -> None:
    values = np.array([*range(first, first + end), *others], np.int64)
    values = np.unique(values)

    assert serialized(values) == BitMap64(values.tolist(), optimize=False).serialize()


@pytest.mark.parametrize(
    ("first", "end"), [(0, 4096), (0, 65_536), (60_000, 65_536), (65_535, 65_536), (65_000, 140_000)]
)
@pytest.mark.parametrize("base", [0, 2**32, 3 * 2**32 - 100_000, 2**62])
def test_the_bytes_are_those_of_the_library(first: int, end: int, base: int) -> None:
    values = np.arange(base + first, base + end)

    assert serialized(values) == BitMap64(values.tolist(), optimize=False).serialize()
