from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from hypothesis import given
from hypothesis import strategies as st

from agent.read.caches.cache_memory import CacheMemory
from agent.read.caches.range_cache import ByteRange, RangeCache
from agent.read.object_reader import ObjectReader, RangeRequest, coalesce

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from agent.runtime.health import CallHealth
    from agent.runtime.pools import Pools
    from object_store.interface import ObjectStore

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


def _content(name: str, position: int, length: int) -> bytes:
    return bytes((ord(name[-1]) + each) % 251 for each in range(position, position + length))


class _Store:
    def read_range(self, name: str, position: int, length: int, **_: object) -> bytes:
        return _content(name, position, length)


class _Pool:
    async def run(self, call: Callable[[], bytes]) -> bytes:
        await asyncio.sleep(0)  # all reads are under way together
        return call()


def _reader(gap: int, limit: int) -> ObjectReader:
    pool = _Pool()
    return ObjectReader(
        cast("ObjectStore", _Store()),
        RangeCache(CacheMemory(0)),
        cast("Pools", SimpleNamespace(hot_reads=pool, cold_reads=pool)),
        gap=gap,
        limit=limit,
        health=cast("CallHealth", SimpleNamespace(succeeded=lambda: None)),
    )


@given(_ranges, st.integers(0, 50), st.integers(1, 200))
def test_every_range_has_its_own_bytes(ranges: list[ByteRange], gap: int, limit: int) -> None:
    wanted = [RangeRequest(each, is_hot=each.length % 2 == 0) for each in ranges]
    expected = [_content(each.object_name, each.position, each.length) for each in ranges]
    assert list(map(bytes, asyncio.run(_reader(gap, limit).read(wanted)))) == expected
    found = asyncio.run(_reader(gap, limit).read_each(wanted))
    assert [bytes(each) for each in found if isinstance(each, memoryview)] == expected


def test_a_read_of_many_objects_compares_few_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch may need thousands of them, and other requests wait for the event loop meanwhile."""
    comparisons = 0
    covers = ByteRange.covers

    def counting(self: ByteRange, other: ByteRange) -> bool:
        nonlocal comparisons
        comparisons += 1
        return covers(self, other)

    monkeypatch.setattr(ByteRange, "covers", counting)
    wanted = [RangeRequest(ByteRange(f"object {number}", 5, 10), is_hot=False) for number in range(300)]
    found = asyncio.run(_reader(10, 100).read_each(wanted))
    assert [bytes(each) for each in found if isinstance(each, memoryview)] == [
        _content(each.range.object_name, 5, 10) for each in wanted
    ]
    assert comparisons <= 3 * len(wanted)
