"""Reads that need no catalog: only batches that every look at the log would show."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from agent.read.caches.block_cache import BlockCache
from agent.read.caches.cache_memory import CacheMemory
from agent.read.caches.catalog_cache import BoundsCache
from agent.read.hot_tail import HotTail
from agent.read.memory_reads import MemoryRead
from agent.write.ingestion_buffer import OpenFile, Piece
from agent.write.ingestion_file import seal
from agent.write.pending_append import PendingAppend
from catalog.model import PartitionId, PartitionState, RunResult, SectionResult
from core.clock import ManualClock
from tests.agent.write.test_write_path import batches, make_topic

if TYPE_CHECKING:
    from catalog.model import Topic

pytestmark = pytest.mark.anyio


def _read(
    topic: Topic,
    *,
    committed_only: bool = False,
    in_bounds: bool = False,
    in_tail: bool = False,
    first_dirty_offset: int = 0,
    offset: int = 0,
) -> MemoryRead | None:
    """Return a read of two batches; the cached bounds, or the tail, may know of transactions."""
    validated = batches(topic, 0, "a", "b")
    file = OpenFile()
    piece = Piece(data=validated.data, batches=validated.batches, pending=PendingAppend(2), first_batch=0)
    file.add(topic.topic_id, 0, piece)
    sealed = seal(file, file_id=UUID(int=1), session_id=UUID(int=9), created_ms=1)
    result = SectionResult(
        topic_id=topic.topic_id,
        partition=0,
        log_start_offset=0,
        high_watermark=2,
        leader_epoch=0,
        runs=(RunResult(base_offset=0),),
        has_transactions=in_tail,
    )
    tail, clock = HotTail(1 << 20), ManualClock()
    tail.committed(sealed, [result])
    bounds = BoundsCache(clock, ttl_ms=1000, limit=10)
    state = PartitionState(
        topic_id=topic.topic_id,
        partition=0,
        log_start_offset=0,
        last_stable_offset=2,
        high_watermark=2,
        log_end_offset=2,
        first_dirty_offset=first_dirty_offset,
        leader_epoch=0,
        has_transactions=in_bounds,
    )
    with bounds.lookup([PartitionId(topic.topic_id, 0)]) as undisturbed:
        bounds.store([state], undisturbed)
    read = MemoryRead(
        tail, BlockCache(CacheMemory(0)), bounds, clock.monotonic(), 1 << 20, committed_only=committed_only
    )
    return read if read.take(topic, [(0, offset, 1 << 20, -1)]) else None


async def test_the_tail_of_a_compacted_topic_is_never_sufficient() -> None:
    """Its batches may have been replaced by a compaction, which the agent does not learn."""
    assert _read(make_topic(1, cleanup_policy="compact"), committed_only=False) is None
    read = _read(make_topic(1), committed_only=False)
    assert read is not None
    assert read.served == 1


@pytest.mark.parametrize(
    ("first_dirty_offset", "offset", "is_sufficient"),
    [(0, 0, True), (1, 0, False), (1, 1, True), (2, 1, False), (2, 2, True)],
)
async def test_offsets_that_were_deduplicated_are_not_read_from_memory(
    first_dirty_offset: int, offset: int, *, is_sufficient: bool
) -> None:
    """The topic was compacted for a while, and memory has batches of the time before."""
    read = _read(make_topic(1), first_dirty_offset=first_dirty_offset, offset=offset)
    assert (read is not None) is is_sufficient


async def test_committed_records_are_read_from_memory_only_without_transactions() -> None:
    assert _read(make_topic(1), committed_only=True, in_bounds=True) is None
    for committed_only, in_tail, is_sufficient in (
        (True, False, True),
        (True, True, False),
        (False, True, True),
    ):
        read = _read(make_topic(1), committed_only=committed_only, in_tail=in_tail)
        assert (read is not None) is is_sufficient
