"""What this agent knows of partitions without asking the catalog: their bounds and their extents.

How it is kept true:

- Bounds are what a look-up brought, moved on by this agent's own commits, and forgotten at any word of a
  commit by another agent, or when words may have been missed. A word that comes during a look-up keeps its
  answer from being remembered. What no notification tells (a log start that moved, a topic that was
  deleted) is seen after `ttl_ms` at the latest.
- Extents are forgotten after `ttl_ms`, which is well below the grace (60 s) for which objects outlive the
  extents that named them. Until then a swap does no harm: of topics that are not compacted, for which alone
  they are remembered, both sides of a swap hold the same records. An object that is gone nevertheless makes a
  reader forget the extents and look them up again.

Both are bounded; what was not used for the longest time goes first.
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
    """Where partitions begin and end. Belongs to the event loop."""

    def __init__(self, clock: Clock, *, ttl_ms: int, limit: int) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_ms / 1000
        self._limit = limit
        self._known: OrderedDict[PartitionId, tuple[float, PartitionState]] = OrderedDict()
        # The same by topic: a UUID is slow to look up.
        self._topics: dict[UUID, dict[int, tuple[float, PartitionState]]] = {}
        # By number, for look-ups of the same partitions are equal and yet not the same.
        self._lookups: dict[int, set[PartitionId]] = {}
        self._lookup_ids = count()

    def get(self, partition: PartitionId) -> PartitionState | None:
        """The state of the partition, if it is known."""
        known = self._known.get(partition)
        if known is None or known[0] < self._clock.monotonic():
            return None
        self._known.move_to_end(partition)
        return known[1]

    def of_topic(self, topic_id: UUID) -> Mapping[int, tuple[float, PartitionState]]:
        """What is known of a topic's partitions, and until when on the clock; to be used at once.

        For who looks up many: it does not count as a use of any of them.
        """
        return self._topics.get(topic_id, _NO_STATES)

    def _put(self, partition: PartitionId, known: tuple[float, PartitionState]) -> None:
        self._known[partition] = known
        self._topics.setdefault(partition.topic_id, {})[partition.partition] = known

    def _drop(self, partition: PartitionId) -> None:
        if self._known.pop(partition, None) is None:
            return
        states = self._topics[partition.topic_id]
        del states[partition.partition]
        if not states:
            del self._topics[partition.topic_id]

    @contextmanager
    def lookup(self, partitions: Iterable[PartitionId]) -> Iterator[set[PartitionId]]:
        """Around a look-up, whose answer goes to `remember` together with the set that this gives."""
        number, wanted = next(self._lookup_ids), set(partitions)
        self._lookups[number] = wanted
        try:
            yield wanted
        finally:
            del self._lookups[number]

    def store(self, states: Iterable[PartitionState], wanted: set[PartitionId]) -> None:
        """Keep the answers of a look-up, but for those that something was heard of meanwhile."""
        until = self._clock.monotonic() + self._ttl_seconds
        for state in states:
            partition = PartitionId(state.topic_id, state.partition)
            if partition in wanted:
                self._put(partition, (until, state))
                self._known.move_to_end(partition)
        while len(self._known) > self._limit:
            self._drop(next(iter(self._known)))

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """This agent's own commits: they come in the log's order, and tell all."""
        del file
        for result in results:
            partition = PartitionId(result.topic_id, result.partition)
            for wanted in self._lookups.values():
                wanted.discard(partition)
            known = self._known.get(partition)
            if known is None or result.high_watermark < known[1].high_watermark:
                continue
            moved = replace(
                known[1],
                log_start_offset=max(known[1].log_start_offset, result.log_start_offset),
                last_stable_offset=result.high_watermark,
                high_watermark=result.high_watermark,
                log_end_offset=result.high_watermark,
            )
            self._put(partition, (known[0], moved))

    def invalidate(self, partitions: Iterable[PartitionId]) -> None:
        """Somebody else changed them."""
        for partition in partitions:
            self._drop(partition)
            for wanted in self._lookups.values():
                wanted.discard(partition)

    def invalidate_all(self) -> None:
        """Somebody may have changed anything."""
        self._known.clear()
        self._topics.clear()
        for wanted in self._lookups.values():
            wanted.clear()


class ExtentCache:
    """Runs of neighbouring extents by partition. Belongs to the event loop."""

    def __init__(self, clock: Clock, *, ttl_ms: int, limit: int) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_ms / 1000
        self._limit = limit
        self._count = 0
        self._known: OrderedDict[PartitionId, tuple[float, Sequence[Extent]]] = OrderedDict()

    def get(self, partition: PartitionId, offset: int) -> Sequence[Extent]:
        """The extent that covers `offset`, and what is known after it; empty when that is not known."""
        known = self._known.get(partition)
        if known is None:
            return ()
        until, extents = known
        if until < self._clock.monotonic():
            self.invalidate(partition)
            return ()
        index = bisect_right(extents, offset, key=_base_offset) - 1
        if index < 0 or extents[index].last_offset < offset:
            return ()
        self._known.move_to_end(partition)
        return extents[index:]

    def store(self, partition: PartitionId, extents: Sequence[Extent], looked_up: float) -> None:
        """Keep the answer of a look-up that began at `looked_up` on the clock."""
        self.invalidate(partition)
        if not extents:
            return
        self._known[partition] = (looked_up + self._ttl_seconds, extents)
        self._count += len(extents)
        while self._count > self._limit:
            self.invalidate(next(iter(self._known)))

    def invalidate(self, partition: PartitionId) -> None:
        """Look them up again."""
        _, extents = self._known.pop(partition, (0.0, ()))
        self._count -= len(extents)


def _base_offset(extent: Extent) -> int:
    return extent.base_offset
