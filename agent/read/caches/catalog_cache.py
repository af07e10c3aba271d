"""Cached catalog metadata: the bounds and the extents of partitions.

Consistency:

- Bounds come from a lookup. This agent's own commits advance them. A notification of another agent's commit
  invalidates them, and so does a possible loss of notifications. A notification that arrives during a lookup
  prevents its result from being cached. Changes without a notification become visible after `bounds_cache_ms`
  at the latest: a log start that moved, a deleted topic, and commits of other agents to partitions for which
  no fetch has waited here within the last minutes.
- Extents expire after `extent_cache_ms`, which is well below the grace period (60 s) during which objects
  outlive their extents. Until then a compaction does no harm: only extents of topics that are not compacted
  are cached, and of those the old and the new extents have the same records. If an object is gone
  nevertheless, the reader invalidates the extents and looks them up again.

Both caches are bounded, and evict the least recently used entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from agent.cluster.commits import CommittedFile
    from catalog.model import Extent, PartitionState, SectionResult
    from core.clock import Clock


_NO_STATES: Mapping[int, tuple[float, PartitionState]] = {}


class BoundsCache:
    """Log start offsets and high watermarks of partitions. Belongs to the event loop."""

    def __init__(self, clock: Clock, *, ttl_ms: int, limit: int) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_ms / 1000
        self._limit = limit
        self._entries: OrderedDict[PartitionId, tuple[float, PartitionState]] = OrderedDict()
        # The same entries by topic, because hashing a UUID is slow.
        self._topics: dict[UUID, dict[int, tuple[float, PartitionState]]] = {}
        # By number, because two lookups of the same partitions are distinct.
        self._lookups: dict[int, set[PartitionId]] = {}
        self._lookup_ids = count()

    def get(self, partition: PartitionId) -> PartitionState | None:
        """Return the cached state of the partition, or None."""
        entry = self._entries.get(partition)
        if entry is None or entry[0] < self._clock.monotonic():
            return None
        self._entries.move_to_end(partition)
        return entry[1]

    def of_topic(self, topic_id: UUID) -> Mapping[int, tuple[float, PartitionState]]:
        """Return the cached states of a topic's partitions, with their expiry times on the clock.

        It does not count as a use of any of them. The result changes with the next commit.
        """
        return self._topics.get(topic_id, _NO_STATES)

    def _put(self, partition: PartitionId, entry: tuple[float, PartitionState]) -> None:
        self._entries[partition] = entry
        self._topics.setdefault(partition.topic_id, {})[partition.partition] = entry

    def _drop(self, partition: PartitionId) -> None:
        if self._entries.pop(partition, None) is None:
            return
        states = self._topics[partition.topic_id]
        del states[partition.partition]
        if not states:
            del self._topics[partition.topic_id]

    @contextmanager
    def lookup(self, partitions: Iterable[PartitionId]) -> Iterator[set[PartitionId]]:
        """Enclose a lookup whose result goes to `store` together with the yielded set."""
        number, wanted = next(self._lookup_ids), set(partitions)
        self._lookups[number] = wanted
        try:
            yield wanted
        finally:
            del self._lookups[number]

    def store(self, states: Iterable[PartitionState], wanted: set[PartitionId]) -> None:
        """Cache the results of a lookup, except for partitions that were invalidated during it."""
        until = self._clock.monotonic() + self._ttl_seconds
        for state in states:
            partition = PartitionId(state.topic_id, state.partition)
            if partition in wanted:
                self._put(partition, (until, state))
                self._entries.move_to_end(partition)
        while len(self._entries) > self._limit:
            self._drop(next(iter(self._entries)))

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Advance the bounds by this agent's own commits, which arrive in the order of the log."""
        del file
        for result in results:
            partition = PartitionId(result.topic_id, result.partition)
            for wanted in self._lookups.values():
                wanted.discard(partition)
            entry = self._entries.get(partition)
            if entry is None or result.high_watermark < entry[1].high_watermark:
                continue
            moved = replace(
                entry[1],
                log_start_offset=max(entry[1].log_start_offset, result.log_start_offset),
                # With transactions, only the catalog knows it: an earlier one is safe, as it never goes back.
                last_stable_offset=max(entry[1].last_stable_offset, result.log_start_offset)
                if result.has_transactions
                else result.high_watermark,
                high_watermark=result.high_watermark,
                log_end_offset=result.high_watermark,
                has_transactions=result.has_transactions,
            )
            self._put(partition, (entry[0], moved))

    def invalidate(self, partitions: Iterable[PartitionId]) -> None:
        """Remove partitions that another agent changed."""
        for partition in partitions:
            self._drop(partition)
            for wanted in self._lookups.values():
                wanted.discard(partition)

    def invalidate_all(self) -> None:
        """Remove all partitions, because any of them may have changed."""
        self._entries.clear()
        self._topics.clear()
        for wanted in self._lookups.values():
            wanted.clear()


class ExtentCache:
    """Runs of adjacent extents by partition. Belongs to the event loop."""

    def __init__(self, clock: Clock, *, ttl_ms: int, limit: int) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_ms / 1000
        self._limit = limit
        self._count = 0
        self._entries: OrderedDict[PartitionId, tuple[float, Sequence[Extent]]] = OrderedDict()

    def get(self, partition: PartitionId, offset: int) -> Sequence[Extent]:
        """Return the extent that covers `offset` and the cached extents after it, or nothing."""
        entry = self._entries.get(partition)
        if entry is None:
            return ()
        until, extents = entry
        if until < self._clock.monotonic():
            self.invalidate(partition)
            return ()
        index = bisect_right(extents, offset, key=_base_offset) - 1
        if index < 0 or extents[index].last_offset < offset:
            return ()
        self._entries.move_to_end(partition)
        return extents[index:]

    def store(self, partition: PartitionId, extents: Sequence[Extent], looked_up: float) -> None:
        """Cache the result of a lookup that began at `looked_up` on the clock."""
        self.invalidate(partition)
        if not extents:
            return
        self._entries[partition] = (looked_up + self._ttl_seconds, extents)
        self._count += len(extents)
        while self._count > self._limit:
            self.invalidate(next(iter(self._entries)))

    def clear(self) -> None:
        """Remove all extents."""
        self._entries.clear()
        self._count = 0

    def invalidate(self, partition: PartitionId) -> None:
        """Remove the extents of a partition."""
        _, extents = self._entries.pop(partition, (0.0, ()))
        self._count -= len(extents)


def _base_offset(extent: Extent) -> int:
    return extent.base_offset
