"""Cache of batches that were read from the object store: verified, with final offsets, ready to be sent.

A block of batches is verified, copied and patched by the first fetch that reads it. All later fetches get
views of that copy, like views of the hot tail. The same rule of validity holds as for the tail: committed
records never change, so cached batches are those of the log as long as the topic is not compacted and the
leader epoch lasts. A compaction may remove transactional batches, and the partition then has no transactions
any more. So readers of committed records get only blocks without such batches, and none while the partition
has transactions. The caller checks the latter, the log start offset and the end of the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from agent.read.hot_tail import TailRead

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from agent.read.caches.cache_memory import CacheMemory
    from catalog.model import PartitionId

BLOCK_OVERHEAD = 1024
"""Approximate bytes that a block takes apart from its batches."""

BATCH_OVERHEAD = 96
"""Approximate bytes that a batch takes in the lists of its block."""

_MAX_BLOCKS_OF_A_READ = 1024


@dataclass(slots=True, eq=False)
class VerifiedBlock:
    """Consecutive batches with their final offsets, which have been verified.

    They are all batches of [first_offset, next_offset). `starts` are their positions in `data` and the size
    of `data`, and `lasts` their last offsets. `has_transactions` is True if some of them are transactional.
    """

    first_offset: int
    next_offset: int
    data: memoryview
    starts: list[int]
    lasts: list[int]
    has_transactions: bool = False

    def select(self, offset: int, max_bytes: int) -> tuple[int, int]:
        """Return the number of the first batch from `offset` on, and that of the first one that is too much.

        Both are equal if not even one batch fits, or there is none.
        """
        first = bisect_left(self.lasts, offset)
        end = bisect_right(self.starts, self.starts[first] + max_bytes) - 1
        return first, max(end, first)

    def part(self, first: int, end: int) -> memoryview:
        """Return the batches [first, end), read-only: a view if they are at least half of the block.

        A smaller part is copied, because a view retains the whole block.
        """
        start, stop = self.starts[first], self.starts[end]
        if 2 * (stop - start) >= len(self.data):
            return self.data[start:stop]
        return memoryview(bytes(self.data[start:stop]))

    @property
    def memory(self) -> int:
        """Bytes that the block takes."""
        return len(self.data) + BLOCK_OVERHEAD + BATCH_OVERHEAD * len(self.lasts)


@dataclass(slots=True)
class PartitionBlocks:
    """The cached blocks of one partition by their first offsets, which are ascending."""

    first_offsets: list[int] = field(default_factory=list)
    blocks: list[VerifiedBlock] = field(default_factory=list)


_NONE: Mapping[int, PartitionBlocks] = {}


class BlockCache:
    """The blocks that were used last, by partition. Belongs to the event loop."""

    def __init__(self, memory: CacheMemory) -> None:
        self.hits = 0
        self.generation = 0
        self.memory = memory
        self._topics: dict[UUID, dict[int, PartitionBlocks]] = {}  # hashing a UUID is slow

    def put(self, partition: PartitionId, block: VerifiedBlock) -> None:
        """Cache a block in place of one with the same first offset."""
        if block.memory > self.memory.limit:
            return
        cached = self._topics.setdefault(partition.topic_id, {}).setdefault(
            partition.partition, PartitionBlocks()
        )
        at = bisect_left(cached.first_offsets, block.first_offset)
        if at < len(cached.blocks) and cached.first_offsets[at] == block.first_offset:
            self.memory.remove(cached.blocks[at])
            cached.blocks[at] = block
        else:
            cached.first_offsets.insert(at, block.first_offset)
            cached.blocks.insert(at, block)
        self.memory.add(block, block.memory, partial(self._drop, partition, block.first_offset))

    def of_topic(self, topic_id: UUID) -> Mapping[int, PartitionBlocks]:
        """Return the cached blocks of a topic's partitions. They change with the next read."""
        return self._topics.get(topic_id, _NONE)

    def read(
        self,
        cached: PartitionBlocks | None,
        offset: int,
        max_bytes: int,
        end: int,
        *,
        plain_only: bool = False,
    ) -> TailRead | None:
        """Return batches from the one with `offset` on: at least one, and about `max_bytes`.

        It reads only blocks that end at or before the offset `end`, and with `plain_only` only those without
        transactional batches. Returns None if there is no such batch.
        """
        if cached is None:
            return None
        runs: list[memoryview] = []
        size = 0
        while len(runs) < _MAX_BLOCKS_OF_A_READ:
            at = bisect_right(cached.first_offsets, offset) - 1
            if at < 0 or not offset < cached.blocks[at].next_offset <= end:
                break
            block = cached.blocks[at]
            if plain_only and block.has_transactions:
                break
            first, stop = block.select(offset, max(max_bytes - size, 0))
            count = len(block.lasts)
            if stop == first < count:
                if runs:
                    break
                stop += 1
            if first < count:
                runs.append(block.part(first, stop))
                size += len(runs[-1])
            self.memory.use(block)
            offset = block.next_offset if stop == count else block.lasts[stop - 1] + 1
            if stop < count:
                break
        if not runs:
            return None
        self.hits += 1
        return TailRead(runs, size, offset)

    def clear(self) -> None:
        """Remove everything, because a new leader epoch began. Blocks of earlier reads must not be added."""
        self.generation += 1
        for partitions in self._topics.values():
            for cached in partitions.values():
                for block in cached.blocks:
                    self.memory.remove(block)
        self._topics.clear()

    def _drop(self, partition: PartitionId, first_offset: int) -> None:
        partitions = self._topics[partition.topic_id]
        cached = partitions[partition.partition]
        at = bisect_left(cached.first_offsets, first_offset)
        del cached.first_offsets[at], cached.blocks[at]
        if not cached.blocks:
            del partitions[partition.partition]
            if not partitions:
                del self._topics[partition.topic_id]
