"""Batches that were read from objects are kept verified, with final offsets, for all readers."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agent.read.caches.block_cache import BlockCache, VerifiedBlock
from agent.read.caches.cache_memory import CacheMemory
from catalog.model import PartitionId

_SIZE = 10
_PARTITION = PartitionId(UUID(int=1), 0)


def _block(first: int, *lasts: int, end: int | None = None) -> VerifiedBlock:
    """Return a block of batches of ten bytes; each byte is the last offset of its batch."""
    data = b"".join(bytes([last]) * _SIZE for last in lasts)
    starts = [number * _SIZE for number in range(len(lasts) + 1)]
    return VerifiedBlock(first, end or lasts[-1] + 1, memoryview(data), starts, list(lasts))


def _cache(*blocks: VerifiedBlock, limit: int = 1 << 20) -> BlockCache:
    cache = BlockCache(CacheMemory(limit))
    for block in blocks:
        cache.put(_PARTITION, block)
    return cache


def _read(cache: BlockCache, offset: int, max_bytes: int, end: int = 1000) -> tuple[list[int], int] | None:
    """Return the last offsets of the batches, and the offset after them."""
    cached = cache.of_topic(_PARTITION.topic_id).get(_PARTITION.partition)
    found = cache.read(cached, offset, max_bytes, end)
    if found is None:
        return None
    data = b"".join(found.batches)
    assert found.size == len(data)
    return list(data[::_SIZE]), found.next_offset


def test_a_read_continues_in_the_next_block_up_to_its_limit() -> None:
    cache = _cache(_block(0, 1, 3), _block(4, 5, 9))
    assert _read(cache, 0, 40) == ([1, 3, 5, 9], 10)
    assert _read(cache, 2, 39) == ([3, 5, 9], 10)
    assert _read(cache, 2, 29) == ([3, 5], 6)
    assert _read(cache, 2, 0) == ([3], 4)  # a fetch makes progress
    assert _read(cache, 10, 40) is None


def test_a_read_ends_where_blocks_are_missing() -> None:
    cache = _cache(_block(0, 1, 3), _block(6, 7))
    assert _read(cache, 0, 100) == ([1, 3], 4)
    assert _read(cache, 4, 100) is None
    assert _read(cache, 6, 100) == ([7], 8)


def test_offsets_without_records_are_skipped_within_a_block_only() -> None:
    """A block says that it has all batches of its offsets, so those between them have no records."""
    cache = _cache(_block(0, 1, 8, end=12), _block(12, 15))
    assert _read(cache, 4, 100) == ([8, 15], 16)
    assert _read(cache, 9, 100) == ([15], 16)
    assert _read(_cache(_block(0, 1, 8, end=12)), 9, 100) is None


def test_no_block_beyond_the_end_of_the_log_is_read() -> None:
    cache = _cache(_block(0, 1, 3), _block(4, 5, 9))
    assert _read(cache, 0, 100, end=9) == ([1, 3], 4)
    assert _read(cache, 0, 100, end=3) is None


def test_a_small_part_of_a_block_does_not_retain_the_block() -> None:
    block = _block(0, 1, 3, 5, 7)
    assert block.part(1, 3).obj is block.data.obj
    small = block.part(1, 2)
    assert (bytes(small), small.nbytes) == (bytes([3]) * _SIZE, memoryview(small.obj).nbytes)


def test_the_least_recently_used_blocks_are_evicted() -> None:
    blocks = [_block(2 * number, 2 * number + 1) for number in range(3)]
    cache = _cache(*blocks[:2], limit=2 * blocks[0].memory)
    assert _read(cache, 0, 5) == ([1], 2)
    cache.put(_PARTITION, blocks[2])
    assert [_read(cache, offset, 5) for offset in (0, 2, 4)] == [([1], 2), None, ([5], 6)]


def test_cleared_blocks_are_gone_and_release_their_memory() -> None:
    cache = _cache(_block(0, 1), _block(2, 3))
    before = cache.generation
    cache.clear()
    assert (_read(cache, 0, 5), cache.memory.size, cache.generation) == (None, 0, before + 1)


@given(st.integers(0, 6000), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), max_size=40))
def test_the_cache_keeps_its_limit_and_returns_the_batches_of_the_log(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    """Blocks overlap as those of readers that began at different blocks of a section."""
    cache = _cache(limit=limit)
    for first, count in steps:
        cache.put(_PARTITION, _block(first, *range(first, first + count)))
        assert cache.memory.size <= limit
        for offset in range(30):
            found = _read(cache, offset, 45)
            if found is not None:
                assert found[0] == list(range(offset, found[1]))
    cached = cache.of_topic(_PARTITION.topic_id).get(_PARTITION.partition)
    held = [] if cached is None else cached.blocks
    assert sum(block.memory for block in held) == cache.memory.size
