"""Bitmaps built in bulk are the bitmaps that the library builds one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from object_format.bitmaps import bitmap_of, values_between

CLUSTERS = st.lists(
    st.tuples(st.sampled_from([0, 65_530, 2**32 - 5, 2**40, 2**61]), st.integers(0, 9000), st.integers(1, 7)),
    max_size=4,
)


@given(CLUSTERS)
def test_the_library_reads_what_the_kernel_writes(clusters: list[tuple[int, int, int]]) -> None:
    values = sorted(
        {value for start, count, step in clusters for value in range(start, start + count * step, step)}
    )
    bitmap = bitmap_of(np.array(values, np.int64))
    assert bitmap == BitMap64(values)
    assert len(bitmap) == len(values)


def test_every_kind_of_container() -> None:
    """Arrays hold up to 4096 values, bitmaps more."""
    for count in (1, 4095, 4096, 4097, 65_535, 65_536, 65_537):
        values = np.arange(count, dtype=np.int64) + 2**33
        assert bitmap_of(values) == BitMap64(range(2**33, 2**33 + count))


@given(st.sets(st.integers(0, 2**62)), st.integers(0, 2**62), st.integers(0, 2**62))
def test_values_between_bounds(values: set[int], one: int, other: int) -> None:
    first, last = sorted((one, other))
    found = values_between(BitMap64(values), first, last)
    assert found.tolist() == sorted(value for value in values if first <= value <= last)
