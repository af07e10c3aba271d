from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.read.caches.cache_memory import CacheMemory
from agent.read.caches.range_cache import ByteRange, RangeCache

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.anyio


def _bytes(wanted: ByteRange) -> bytes:
    return bytes(position % 251 for position in range(wanted.position, wanted.end))


def _loader(wanted: ByteRange, log: list[ByteRange]) -> Callable[[], Awaitable[bytes]]:
    async def load() -> bytes:
        log.append(wanted)
        await asyncio.sleep(0)
        return _bytes(wanted)

    return load


async def test_a_part_of_a_cached_range_costs_no_load() -> None:
    cache = RangeCache(CacheMemory(1000))
    cache.put(ByteRange("a", 100, 50), _bytes(ByteRange("a", 100, 50)))
    log: list[ByteRange] = []

    wanted = ByteRange("a", 110, 20)
    found = await cache.read(wanted, _loader(wanted, log))

    assert (bytes(found), log) == (_bytes(wanted), [])


async def test_concurrent_reads_of_the_same_range_share_one_load() -> None:
    cache = RangeCache(CacheMemory(1000))
    log: list[ByteRange] = []
    whole, part = ByteRange("a", 0, 100), ByteRange("a", 40, 10)

    results = await asyncio.gather(
        *(cache.read(wanted, _loader(wanted, log)) for wanted in (whole, whole, part, whole))
    )

    assert [bytes(found) for found in results] == [_bytes(w) for w in (whole, whole, part, whole)]
    assert (log, cache.misses, cache.joined) == ([whole], 1, 3)


async def test_a_load_continues_when_its_first_caller_is_cancelled() -> None:
    """Callers that joined the load and the cache still get its bytes."""
    cache = RangeCache(CacheMemory(1000))
    wanted = ByteRange("a", 0, 10)
    release = asyncio.Event()

    async def load() -> bytes:
        await release.wait()
        return _bytes(wanted)

    first = asyncio.ensure_future(cache.read(wanted, load))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(cache.read(wanted, load))
    await asyncio.sleep(0)
    first.cancel()
    release.set()

    assert bytes(await second) == _bytes(wanted)
    assert cache.get(wanted) is not None


async def test_a_failed_load_fails_all_callers_and_is_not_cached() -> None:
    cache = RangeCache(CacheMemory(1000))
    wanted = ByteRange("a", 0, 10)

    async def fail() -> bytes:
        await asyncio.sleep(0)
        raise OSError("gone")

    results = await asyncio.gather(cache.read(wanted, fail), cache.read(wanted, fail), return_exceptions=True)

    assert [str(result) for result in results] == ["gone", "gone"]
    assert bytes(await cache.read(wanted, _loader(wanted, []))) == _bytes(wanted)


async def test_cached_bytes_are_read_only() -> None:
    cache = RangeCache(CacheMemory(1000))
    cache.put(ByteRange("a", 0, 4), bytearray(b"silt"))
    found = cache.get(ByteRange("a", 0, 4))
    assert found is not None
    assert found.readonly


async def test_a_range_above_the_limit_is_returned_and_not_cached() -> None:
    memory = CacheMemory(5)
    cache = RangeCache(memory)
    wanted = ByteRange("a", 0, 6)
    assert bytes(await cache.read(wanted, _loader(wanted, []))) == _bytes(wanted)
    assert memory.size == 0


async def test_invalidating_an_object_leaves_the_others() -> None:
    memory = CacheMemory(1000)
    cache = RangeCache(memory)
    for name in ("a", "b"):
        cache.put(ByteRange(name, 0, 4), b"silt")
    cache.invalidate("a")
    assert cache.get(ByteRange("a", 0, 4)) is None
    assert cache.get(ByteRange("b", 0, 4)) is not None
    assert memory.size == 4


async def test_a_range_whose_batches_were_extracted_is_evicted_first() -> None:
    """Readers find the batches in another cache, which shares the memory."""
    memory = CacheMemory(100)
    cache = RangeCache(memory)
    for name in ("a", "b"):
        cache.put(ByteRange(name, 0, 40), bytes(40))
    cache.extracted([ByteRange("b", 0, 20)])
    cache.extracted([ByteRange("b", 20, 15), ByteRange("gone", 0, 5)])
    cache.put(ByteRange("c", 0, 40), bytes(40))
    found = [cache.get(ByteRange(name, 0, 1)) is not None for name in ("a", "b", "c")]
    assert found == [True, False, True]


_ranges = st.builds(ByteRange, st.sampled_from("abc"), st.integers(0, 40), st.integers(1, 30))


@given(st.integers(0, 100), st.lists(st.tuples(st.booleans(), _ranges), max_size=60))
def test_the_cache_keeps_its_limit_and_returns_the_right_bytes(
    limit: int, steps: list[tuple[bool, ByteRange]]
) -> None:
    memory = CacheMemory(limit)
    cache = RangeCache(memory)
    for is_put, wanted in steps:
        if is_put:
            cache.put(wanted, _bytes(wanted))
        else:
            found = cache.get(wanted)
            assert found is None or bytes(found) == _bytes(wanted)
        assert memory.size <= limit
