"""The checksum kernel agrees with the library, with and without the processor's instruction."""

from __future__ import annotations

from unittest.mock import patch

import crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.kernels.hashing.crc32c import extend_by_range, extend_by_tables

MASK = 2**32 - 1


@given(st.binary(max_size=100), st.integers(0, 100), st.integers(0, 100), st.integers(0, MASK))
def test_a_range_extends_the_checksum(data: bytes, first: int, last: int, before: int) -> None:
    start, end = sorted(min(each, len(data)) for each in (first, last))

    assert extend_by_range(before, readable(data), start, end) == crc32c.crc32c(data[start:end], before)


@given(st.binary(min_size=8, max_size=200), st.integers(0, 7), st.integers(0, MASK))
def test_tables_do_the_work_of_the_instruction(data: bytes, start: int, before: int) -> None:
    start = min(start, len(data) - 8)
    words = (len(data) - start) // 8

    after = int(extend_by_tables(np.uint64(before ^ MASK), readable(data), start, words)) ^ MASK

    assert after == crc32c.crc32c(data[start : start + 8 * words], before)


@given(st.binary(max_size=40), st.integers(0, 7), st.integers(0, MASK))
def test_a_processor_without_the_instruction_computes_the_same(data: bytes, start: int, before: int) -> None:
    start = min(start, len(data))
    with patch.dict(extend_by_range.py_func.__globals__, {"_HAS_INSTRUCTION": False}):
        after = extend_by_range.py_func(before, readable(data), start, len(data))

    assert after == crc32c.crc32c(data[start:], before)
