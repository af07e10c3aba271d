from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.read.caches.range_cache import ByteRange
from agent.read.object_reader import coalesce

_ranges = st.lists(st.builds(ByteRange, st.sampled_from("ab"), st.integers(0, 200), st.integers(1, 50)))


def test_adjacent_ranges_of_one_object_become_one_read() -> None:
    ranges = [ByteRange("a", 100, 10), ByteRange("a", 0, 10), ByteRange("a", 12, 8), ByteRange("b", 20, 5)]
    assert coalesce(ranges, gap=2, limit=1000) == [
        ByteRange("a", 0, 20),
        ByteRange("a", 100, 10),
        ByteRange("b", 20, 5),
    ]


def test_a_read_does_not_grow_beyond_the_limit() -> None:
    ranges = [ByteRange("a", 0, 10), ByteRange("a", 10, 10), ByteRange("a", 20, 30)]
    assert coalesce(ranges, gap=0, limit=20) == [ByteRange("a", 0, 20), ByteRange("a", 20, 30)]


@given(_ranges, st.integers(0, 50), st.integers(1, 200))
def test_every_range_lies_within_one_read(ranges: list[ByteRange], gap: int, limit: int) -> None:
    joined = coalesce(ranges, gap=gap, limit=limit)
    assert all(any(read.covers(each) for read in joined) for each in ranges)
    assert len(joined) <= len(ranges)
    assert all(read.length <= limit or read in ranges for read in joined)
