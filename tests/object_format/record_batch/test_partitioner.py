"""Keys are assigned to the same partitions as by Kafka's clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInputError
from object_format.record_batch.partitioner import murmur2, partition_for_keys


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_has_the_values_of_kafkas_tests(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


@given(st.lists(st.none() | st.binary(max_size=20)), st.integers(1, 1000))
def test_many_keys_are_partitioned_like_single_keys(keys: list[bytes | None], partition_count: int) -> None:
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int32)
    starts = (np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)).astype(np.int64)
    found = partition_for_keys(b"".join(key or b"" for key in keys), starts, lengths, partition_count)
    assert found.tolist() == [
        -1 if key is None else (murmur2(key) & 0x7FFFFFFF) % partition_count for key in keys
    ]


def test_a_key_outside_of_the_buffer_has_no_partition() -> None:
    starts = np.array([0, 3, -1, 2**62], np.int64)
    assert partition_for_keys(b"abc", starts, np.array([4, 1, 1, 2], np.int32), 5).tolist() == [-1] * 4


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match="at least one partition"):
        partition_for_keys(b"", np.zeros(0, np.int64), np.zeros(0, np.int32), 0)
    with pytest.raises(InvalidInputError, match="2 lengths"):
        partition_for_keys(b"k", np.zeros(1, np.int64), np.zeros(2, np.int32), 3)
