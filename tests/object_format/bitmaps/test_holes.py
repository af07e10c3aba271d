"""Holes: the complement of survivors, and its serialization."""

from __future__ import annotations

import struct
import tracemalloc
from array import array
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64
from typing_extensions import override

from core.errors import CorruptDataError, FatalError, InvalidInputError
from object_format import holes as holes_module
from object_format.holes import holes_between, no_holes, parse_holes, survivors_between
from object_format.limits import MAX_SPAN
from object_format.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Callable

BASES = st.integers(0, 2**60)
SPANS = st.one_of(st.integers(1, 300), st.integers(1, 2**22))
BOUNDARIES = [0, 2**16, 2**17, 2**20, 2**32 - 2**16, 2**32, 2**32 + 2**16, 2**33]


def serialized(holes: BitMap64) -> bytes:
    """Return the library's serialization in its smallest form."""
    holes.run_optimize()
    return bytes(holes.serialize())


@st.composite
def bitmaps(draw: st.DrawFn) -> BitMap64:
    """Return runs, scattered values and dense alternations, so that every kind of container occurs."""
    found = BitMap64()
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.sampled_from([0, 65_530, 2**32 - 3, 2**40])) + draw(st.integers(0, 1000))
        match draw(st.integers(0, 2)):
            case 0:
                found.add_range(start, start + draw(st.integers(1, 200_000)))
            case 1:
                found |= BitMap64(array("Q", range(start, start + draw(st.integers(1, 20_000)), 2)))
            case _:
                found |= BitMap64(
                    [start + step for step in draw(st.lists(st.integers(0, 60_000), max_size=9))]
                )
    return found


def slow_holes(survivors: BitMap64, base: int, last: int) -> BitMap64:
    """Compute the holes with bitmap operations of the library."""
    window = BitMap64()
    window.add_range(base, last + 1)
    return (window - survivors).shift(-base)


def _written(survivors: BitMap64, base: int, last: int) -> BitMap64:
    """Return the written holes, which must be consistent and equal to the library's bytes."""
    holes = holes_between(OffsetSet.of(survivors), base, last)
    data = b"".join(holes.parts)
    parsed = parse_holes(data, span=last - base + 1)
    assert (holes.count, holes.span) == (len(parsed), last - base + 1)
    assert data == serialized(BitMap64(parsed))
    return parsed


@given(base=BASES, span=SPANS, data=st.data())
def test_holes_are_the_complement_of_the_survivors(base: int, span: int, data: st.DataObject) -> None:
    inside = st.integers(base, base + span - 1)
    chosen = data.draw(st.lists(inside, max_size=30))
    outside = [base + span, base + span + 70_000] + ([base - 1] if base else [])
    survivors = BitMap64(chosen + outside)

    holes = _written(survivors, base, base + span - 1)

    assert len(holes) == span - len(set(chosen))
    assert not any(offset - base in holes for offset in chosen)
    assert survivors_between(holes, base, base + span - 1) == BitMap64(chosen)


@given(
    base=st.sampled_from([0, 5, 2**16, 2**32 - 70_000, 2**33 - 3]),
    groups=st.lists(
        st.tuples(
            st.sampled_from(BOUNDARIES),
            st.integers(-2, 2),
            st.sampled_from([1, 2, 3000, 70_000, 140_000]),
            st.sampled_from([1, 2, 3, 20, 66_000]),
        ),
        max_size=4,
    ),
    end=st.sampled_from(BOUNDARIES),
    beyond=st.integers(-2, 2),
)
def test_holes_equal_the_slow_model_around_container_and_group_boundaries(
    base: int, groups: list[tuple[int, int, int, int]], end: int, beyond: int
) -> None:
    """The survivors are dense or sparse, in runs or scattered."""
    survivors = BitMap64()
    for boundary, step, count, gap in groups:
        first = max(base + boundary + step, 0)
        if gap == 1:
            survivors.add_range(first, first + count)
        else:
            width = min(count, 3000 if gap > 100 else count) * gap
            survivors |= BitMap64(np.arange(first, first + width, gap, dtype=np.uint64))
    last = base + max(end + beyond, 0)

    assert _written(survivors, base, last) == slow_holes(survivors, base, last)


@pytest.mark.parametrize(
    "survivors", [[65_536], [65_535, 65_536, 65_537], [65_536, 131_072], [0, 65_536, 70_000]]
)
@pytest.mark.parametrize("base", [0, 2**32 - 65_536])
def test_a_survivor_that_begins_a_container_is_no_hole(base: int, survivors: list[int]) -> None:
    present = BitMap64([base + each for each in survivors])

    assert _written(present, base, base + 200_000) == slow_holes(present, base, base + 200_000)


@pytest.mark.parametrize("span", [1, 2, 65_535, 65_536, 65_537, 2**32 - 1, 2**32, 2**32 + 1, 2**33])
def test_holes_without_survivors_without_holes_and_with_one_survivor(span: int) -> None:
    base = 2**32 - 70_000
    everything = BitMap64()
    everything.add_range(base, base + span)

    assert _written(BitMap64(), base, base + span - 1) == slow_holes(BitMap64(), base, base + span - 1)
    assert not _written(everything, base, base + span - 1)
    for offset in {base, base + span // 2, base + span - 1}:
        one = BitMap64([offset])
        assert _written(one, base, base + span - 1) == slow_holes(one, base, base + span - 1)


def test_containers_take_the_same_form_as_in_the_library() -> None:
    """Arrays hold up to 4,096 holes, bitmaps more, and runs are used if they are smaller."""
    for count in (1, 2, 3, 2047, 2048, 4095, 4096, 4097, 32_768):
        for step in (2, 3, 16):
            if count * step <= 65_536:
                holes = BitMap64(np.arange(0, count * step, step, dtype=np.uint64))
                every = BitMap64()
                every.add_range(0, 65_536)
                assert _written(every - holes, 0, 65_535) == holes
                assert _written(holes, 0, 65_535) == every - holes


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("runs", [0, 1, 2, 9])
def test_headers_of_all_numbers_of_containers_equal_those_of_the_library(count: int, runs: int) -> None:
    """The first containers consist of runs, the others of values."""
    holes = BitMap64()
    for number in range(count):
        holes.add_range(number << 16, (number << 16) + (9 if number < runs else 1))
    everything = BitMap64()
    everything.add_range(0, count << 16)

    assert _written(everything - holes, 0, (count << 16) - 1) == holes


@pytest.mark.parametrize("span", [2**32, 2**32 + 2**20, 2 * 2**32])
def test_a_group_without_survivors_is_one_part(span: int) -> None:
    """No part is empty, as each is compressed."""
    holes = holes_between(OffsetSet(), 0, span - 1)

    groups = -(-span // 2**32)
    assert all(holes.parts)
    assert len(holes.parts) == 1 + 2 * groups


def test_a_kernel_without_enough_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bitmap of holes would lack the last ones."""
    monkeypatch.setattr(holes_module, "write_complement", lambda *_: (-1, 0))

    with pytest.raises(FatalError, match="do not fit the output buffer"):
        holes_between(OffsetSet.of(BitMap64([7])), 0, 9)


@pytest.mark.parametrize("gap", [70_000, 10_000_000])
def test_scattered_survivors_take_few_bytes(gap: int) -> None:
    """The size is a few bytes for each survivor and each 65,536 offsets, and no part is large."""
    survivors = BitMap64(np.arange(0, 2000 * gap, gap, dtype=np.uint64))
    containers = (2000 * gap >> 16) + 1

    holes = holes_between(OffsetSet.of(survivors), 0, 2000 * gap - 1)

    assert sum(map(len, holes.parts)) <= 4 * 2000 + 15 * containers + 100
    assert max(map(len, holes.parts)) <= 1 << 20
    assert len(holes.parts) <= 100 + (2000 * gap >> 30)


@given(holes=bitmaps())
def test_parsing_is_the_inverse_of_serializing(holes: BitMap64) -> None:
    expected = BitMap64(holes)

    data = serialized(holes)

    assert parse_holes(data, span=2**41) == expected
    assert parse_holes(memoryview(bytearray(data)), span=2**41) == expected


def test_a_billion_consecutive_holes_take_little_space() -> None:
    holes = holes_between(OffsetSet.of(BitMap64([5])), 0, 10**9)

    assert sum(map(len, holes.parts)) < 300_000


class CountingSet(OffsetSet):
    """Counts the ranges that are read."""

    ranges = 0

    @override
    def bitmap_between(self, first: int, last: int) -> BitMap64:
        self.ranges += 1
        return super().bitmap_between(first, last)


def test_offsets_before_a_far_survivor_are_not_read() -> None:
    survivors = CountingSet()
    survivors.add(np.array([10**9]))

    assert holes_between(survivors, 0, 10**9).count == 10**9
    assert survivors.ranges == 1


def test_no_holes_are_eight_zero_bytes() -> None:
    assert b"".join(holes_between(OffsetSet.of(BitMap64([7])), 7, 7).parts) == bytes(8)
    assert no_holes(1) == holes_between(OffsetSet.of(BitMap64([7])), 7, 7)


@pytest.mark.parametrize(("base", "last"), [(5, 4), (-1, 4)])
def test_an_invalid_range_is_rejected(base: int, last: int) -> None:
    with pytest.raises(InvalidInputError, match="cannot cover"):
        holes_between(OffsetSet.of(BitMap64()), base, last)
    with pytest.raises(InvalidInputError, match="cannot cover"):
        survivors_between(BitMap64(), base, last)


def test_sections_may_be_at_high_offsets() -> None:
    base = 2**62

    assert holes_between(OffsetSet.of(BitMap64([base + 3])), base, base + 9).count == 9
    assert list(survivors_between(BitMap64([3]), base, base + 4)) == [base, base + 1, base + 2, base + 4]


def test_a_hole_beyond_the_section_is_rejected() -> None:
    data = serialized(BitMap64([3, 9]))

    assert parse_holes(data, span=10) == BitMap64([3, 9])
    with pytest.raises(CorruptDataError, match="hole 9 is beyond the section's 9 offsets"):
        parse_holes(data, span=9)


SAMPLES = [
    serialized(BitMap64([1, 2, 3, 70_000, 2**33])),
    serialized(BitMap64(array("Q", range(0, 20_000, 2)))),
    serialized(BitMap64(array("Q", [*range(100, 9000), *range(2**32, 2**32 + 70_000)]))),
    bytes(8),
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_trailing_bytes_are_rejected(sample: bytes) -> None:
    with pytest.raises(CorruptDataError, match="holes"):
        parse_holes(sample + b"\0", span=2**40)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_truncated_bitmap_is_rejected(sample: bytes) -> None:
    for length in {*range(min(len(sample), 60)), len(sample) // 2, len(sample) - 1}:
        with pytest.raises(CorruptDataError, match="holes"):
            parse_holes(sample[:length], span=2**40)


@given(
    sample=st.sampled_from(SAMPLES),
    edits=st.lists(st.tuples(st.integers(0, 80), st.binary(max_size=8)), min_size=1, max_size=3),
)
def test_a_modified_bitmap_is_rejected_or_read_exactly(sample: bytes, edits: list[tuple[int, bytes]]) -> None:
    data = bytearray(sample)
    for position, patch in edits:
        data[position : position + len(patch)] = patch
    try:
        holes = parse_holes(data, span=2**40)
    except CorruptDataError:
        return
    assert bytes(holes.serialize()) == data
    assert all(hole < 2**40 for hole, _ in zip(holes, range(1000), strict=False))


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_rejected(data: bytes) -> None:
    if data == bytes(8):
        return
    with pytest.raises(CorruptDataError, match="holes"):
        parse_holes(b"\xf0" + data, span=2**63)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<Q", 2**64 - 1),
        struct.pack("<QIII", 1, 0, 12346, 2**32 - 1),
        struct.pack("<QII", 2**40, 0, 12347 | 0xFFFF << 16),
    ],
)
def test_a_huge_count_does_not_allocate_memory(head: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(CorruptDataError, match="holes"):
        parse_holes(head + bytes(100), span=2**63)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1_000_000


@pytest.mark.parametrize("complement", [holes_between, survivors_between])
def test_a_span_above_the_limit_is_rejected(
    complement: Callable[[BitMap64, int, int], object],
) -> None:
    """A footer can state any span, and a bitmap of the whole range takes memory in proportion to it."""
    for last in (MAX_SPAN, 2**62):
        with pytest.raises(InvalidInputError, match="exceeds the limit"):
            complement(BitMap64(), 0, last)
