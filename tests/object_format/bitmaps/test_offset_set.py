"""Sets of offsets have the same contents in every form, and take little memory."""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from object_format import offset_set
from object_format.bitmaps import bitmap_of
from object_format.offset_set import ArrayWindow, OffsetSet, SetWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

ISOLATED = 2_000_000
GAP = 70_000  # more offsets than one container covers
CHUNK = 1 << 17


class _MemoryUse(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple((f"field_{number}", ctypes.c_size_t) for number in range(10))


def allocated_bytes() -> int:
    """Return the memory that this process has allocated, also in C."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _MemoryUse
    used = library.mallinfo2()
    return int(used.field_7 + used.field_4)  # from the heap (uordblks), and mapped (hblkhd)


def memory_of(make: Callable[[], object]) -> int:
    """Return the bytes that an object takes; skip the test if the C library does not count them."""
    make()  # the first call may also take memory that the libraries keep
    gc.collect()
    try:
        before = allocated_bytes()
    except AttributeError:
        pytest.skip("this C library does not count its allocations")
    made = make()
    used = allocated_bytes() - before
    del made
    return used


def set_of(*parts: npt.NDArray[np.int64]) -> OffsetSet:
    made = OffsetSet()
    for part in parts:
        made.add(part)
    made.pack()
    return made


def runs() -> st.SearchStrategy[list[list[int]]]:
    """Return disjoint ascending runs: dense, sparse and mixed, also within one container."""
    offsets = st.one_of(
        st.sets(st.integers(0, 300), max_size=60),
        st.sets(st.integers(0, 40).map(lambda each: each * GAP), max_size=30),
        st.sets(st.integers(2**40, 2**40 + 200_000), max_size=60),
    )
    return st.lists(offsets, max_size=6).map(
        lambda drawn: [sorted(each - set().union(*drawn[:index])) for index, each in enumerate(drawn)]
    )


@given(runs(), st.integers(0, 2**41), st.integers(0, 2**41))
def test_a_set_equals_its_model(parts: list[list[int]], one: int, other: int) -> None:
    found, model = OffsetSet(), set[int]()
    for part in parts:
        found.add(np.array(part, np.int64))
        model.update(part)
        assert len(found) == len(model)
    assert list(found) == sorted(model)
    found.pack()
    assert list(found) == sorted(model)
    borders = [(each + low, each + high) for each in sorted(model)[:5] for low, high in ((-9, -1), (1, 9))]
    drawn = (min(one, other), max(one, other))
    array = ArrayWindow(np.array(sorted(model), np.int64))
    assert SetWindow(found).empty == array.empty == (not model)
    for first, last in (
        drawn,
        (-3, 50),
        (0, 2 * GAP),
        (GAP, GAP),
        (5, 100),
        *((max(a, 0), b) for a, b in borders),
    ):
        within = sorted(each for each in model if first <= each <= last)
        assert found.between(first, last).tolist() == within
        for window in (SetWindow(found), array):
            assert window.between(first, last).tolist() == within
            assert set(within) <= set(window.around(first, last).tolist()) <= model
            assert window.count(max(first, 0), last) == len(within)
        assert found.count(max(first, 0), last) == len(within)
        assert list(found.restricted(first, last)) == within
        assert list(found.bitmap_between(first, min(last, first + 200_000))) == [
            each for each in within if each <= first + 200_000
        ]
        following = [each for each in model if each >= first]
        assert found.next_offset(max(first, 0)) == min(following, default=None)
    assert OffsetSet.deserialize(found.serialize()) == found
    assert found != set_of(np.array(sorted(model ^ {7}), np.int64))
    assert set(BitMap64.deserialize(found.serialize())) == model
    if model:
        assert found.max() == max(model)
    joined = OffsetSet.of(BitMap64([2**42, 2**43]))
    joined.update(found)
    assert list(joined) == [*sorted(model), 2**42, 2**43]


def test_a_set_with_ranges_has_all_their_offsets() -> None:
    found = OffsetSet()
    found.add_range(10, 200_000)
    found.add(np.array([5, 300_000, 10**10]))
    assert len(found) == 200_000 - 10 + 3
    assert found.between(199_998, 10**11).tolist() == [199_998, 199_999, 300_000, 10**10]


def test_offsets_that_fill_a_container_one_by_one_move_to_the_bitmap() -> None:
    found = OffsetSet()
    for offset in range(1000, 0, -1):
        found.add(np.array([offset, offset + 10 * GAP]))
    assert list(found) == [*range(1, 1001), *range(1 + 10 * GAP, 1001 + 10 * GAP)]


@pytest.mark.parametrize("offsets", [[0], [2**40], [3, 2**40], [2**40, 2**40 + 1], list(range(100))])
def test_the_highest_offset_is_found_in_every_form(offsets: list[int]) -> None:
    ranged = OffsetSet()
    ranged.add_range(offsets[-1], offsets[-1] + 1)
    assert ranged.max() == offsets[-1]
    ranged.add(np.array(offsets[:-1], np.int64))
    assert ranged.max() == set_of(np.array(offsets)).max() == offsets[-1]


def test_a_set_equals_no_object_of_another_type() -> None:
    assert set_of(np.array([1, 2])) != [1, 2]
    assert set_of(np.array([1, 2])) == set_of(np.array([2]), np.array([1]))


def test_additions_are_sorted_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each addition makes one bitmap, and each sort another one."""
    made = []

    def counted(values: npt.NDArray[np.int64]) -> BitMap64:
        made.append(values.size)
        return bitmap_of(values)

    monkeypatch.setattr(offset_set, "bitmap_of", counted)

    set_of(*np.arange(0, 3000 * GAP, GAP, dtype=np.int64).reshape(-1, 3))

    assert len(made) == 1000 + 1


@pytest.mark.parametrize("scattered", [False, True])
def test_two_million_isolated_offsets_take_24_bytes_each_at_most(*, scattered: bool) -> None:
    """This is the memory of the set, and while it is built, newest offsets first or in alternate runs."""
    chunks = [
        np.arange(first, min(first + CHUNK, ISOLATED), dtype=np.int64) * GAP
        for first in range(0, ISOLATED, CHUNK)
    ]
    chunks = [each[half::2] for half in (0, 1) for each in chunks] if scattered else chunks[::-1]
    try:
        before = allocated_bytes()
    except AttributeError:
        pytest.skip("this C library does not count its allocations")
    found, peak = OffsetSet(), 0
    for chunk in chunks:
        found.add(chunk)
        peak = max(peak, allocated_bytes() - before)
    found.pack()
    used = allocated_bytes() - before
    assert len(found) == ISOLATED
    assert used < 9 * ISOLATED
    assert max(peak, used) < 24 * ISOLATED


@pytest.mark.parametrize(("count", "bound"), [(1, 9), (15, 8.2), (16, 7.85), (32, 7)])
def test_containers_take_the_smaller_form(count: int, bound: float) -> None:
    """An offset takes 8 bytes, or less if its container has many of them."""
    offsets = (np.arange(50_000)[:, None] * 65_536 + np.arange(count) * 50).ravel()

    assert memory_of(lambda: set_of(offsets)) < bound * offsets.size


def test_each_container_takes_its_own_form() -> None:
    """Containers with 60 offsets and with one alternate."""
    crowded = (np.arange(0, 10_000, 2)[:, None] * 65_536 + np.arange(60)).ravel()
    isolated = np.arange(1, 10_000, 2) * 65_536
    bound = 1.1 * (memory_of(lambda: bitmap_of(crowded)) + isolated.nbytes)

    offsets = np.sort(np.concatenate((crowded, isolated)))

    assert memory_of(lambda: set_of(offsets)) < bound
    assert memory_of(lambda: OffsetSet.deserialize(bitmap_of(offsets).serialize())) < bound


def test_offsets_that_are_added_one_by_one_take_little_memory() -> None:
    """They are not in bitmaps, which take ten times as much as an array."""
    offsets = np.arange(0, 3000 * GAP, GAP)

    assert memory_of(lambda: set_of(*offsets[:, None])) < 30 * offsets.size


@pytest.mark.parametrize("gap", [1, 1024])  # the second has 64 offsets in a container
@pytest.mark.parametrize("first", [0, 2**40])
def test_dense_offsets_are_added_without_a_copy(first: int, gap: int) -> None:
    offsets = np.arange(first, first + 200_000 * gap, gap)[: 200_000 // 64 * 64]
    bitmap = bitmap_of(offsets)

    def peak(make: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            make()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(lambda: OffsetSet.of(bitmap)) < offsets.size
    assert peak(lambda: set_of(offsets)) < 5 * offsets.size


def test_an_empty_window_has_no_values() -> None:
    window = SetWindow(OffsetSet())

    assert window.empty
    assert window.around(0, 9).size == window.between(0, 9).size == 0
