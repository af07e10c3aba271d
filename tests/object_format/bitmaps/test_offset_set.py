"""Sets of offsets have the same contents in every form, and take little memory."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from object_format.offset_set import OffsetSet, SetWindow

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
    for first, last in (drawn, (0, 2 * GAP), (GAP, GAP), (5, 100), *((max(a, 0), b) for a, b in borders)):
        within = sorted(each for each in model if first <= each <= last)
        assert found.between(first, last).tolist() == within
        assert SetWindow(found).between(first, last).tolist() == within
        assert found.count(first, last) == len(within)
        assert list(found.restricted(first, last)) == within
        assert list(found.bitmap_between(first, min(last, first + 200_000))) == [
            each for each in within if each <= first + 200_000
        ]
        assert found.next_offset(first) == min((each for each in model if each >= first), default=None)
    assert OffsetSet.deserialize(found.serialize()) == found
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
