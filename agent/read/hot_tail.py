"""The newest batches that this agent committed, in memory.

A producer's buffer becomes part of an ingestion file without a copy, and part of the tail once the file is
committed. The final offsets and the epoch are written into the batches in place, as the file is uploaded and
has no other reader. Fetches return views of the same bytes.

Batches in the tail are those of the log as long as the topic is not compacted, because committed records
never change. Aborted ones may be gone, and the catalog may not name their transaction any more. So a reader
of committed records gets only batches of a given file, once the partition has had a transaction. The log
start offset is checked elsewhere. A batch of a compacted topic is that of the log only while its offset lies
in the file that brought it. `read` can therefore be restricted to one file.

The size is bounded, including an overhead for each batch. The oldest files are evicted first. A view keeps
the whole buffer of its request in memory, with batches that the catalog rejected, or that are in other files.
If the batches of a file are less than half of a buffer, the tail therefore has copies of them. Otherwise the
whole buffer counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from catalog.model import PartitionId
from object_format.record_batch.headers import set_base_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.cluster.commits import AppendedBatches, CommittedFile
    from catalog.model import SectionResult

# Approximate overhead of a batch in the lists, its view, and its part of the file's bookkeeping.
BATCH_OVERHEAD = 256
_MAX_BATCHES = 4096
_MIN_COMPACTION = 1024


class TailRead(NamedTuple):
    """Consecutive batches from the requested offset on; `next_offset` is the offset after the last."""

    batches: list[memoryview]
    size: int
    next_offset: int


# The constructor of a named tuple is a Python function, and every partition of every fetch needs one.
_tail_read = partial(tuple.__new__, TailRead)


@dataclass(slots=True)
class PartitionTail:
    """The batches of one partition in offset order. Those before index `first` are evicted.

    `has_transactions` is True if some of them, or of those that were evicted before, may be transactional.
    """

    bases: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    views: list[memoryview] = field(default_factory=list)
    files: list[UUID] = field(default_factory=list)
    first: int = 0
    has_transactions: bool = False

    def drop(self, count: int) -> None:
        """Evict the `count` oldest batches."""
        end = self.first + count
        self.views[self.first : end] = [_NOTHING] * count
        self.first = end
        if end >= _MIN_COMPACTION or end == len(self.bases):
            del self.bases[:end], self.lasts[:end], self.views[:end], self.files[:end]
            self.first = 0


class _Buffers:
    """The buffers that the batches of one file are views of, and what the tail needs of them."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        self._sizes: dict[int, int] = {}

    def count(self, batches: Sequence[memoryview]) -> None:
        """Count batches as parts of their buffers. Call this for all sections before `compact`."""
        used, sizes = self._used, self._sizes
        for batch in batches:
            key = id(batch.obj)
            if key not in sizes:
                sizes[key] = memoryview(batch.obj).nbytes
                used[key] = 0
            used[key] += len(batch)

    def compact(self, batches: Sequence[memoryview]) -> list[memoryview]:
        """Return read-only views of the batches, copies where most of the buffer is not needed."""
        used, sizes = self._used, self._sizes
        return [
            batch.toreadonly() if 2 * used[key] >= sizes[key] else memoryview(bytes(batch))
            for batch in batches
            for key in (id(batch.obj),)
        ]

    @property
    def size(self) -> int:
        """Bytes that stay in memory: whole buffers, and copies."""
        return sum(
            size if 2 * self._used[key] >= size else self._used[key] for key, size in self._sizes.items()
        )


_NOTHING = memoryview(b"")
_NO_FILE: Final = UUID(int=0)
_NO_TAILS: Mapping[int, PartitionTail] = {}


class HotTail:
    """The newest batches by partition. Belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.hits = 0
        self._topics: dict[UUID, dict[int, PartitionTail]] = {}  # hashing a UUID is slow
        self._files: deque[tuple[list[tuple[PartitionId, int]], int]] = deque()

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Add the appended batches of a committed file. Files arrive in commit order."""
        if self.limit == 0:
            return
        sections = [
            (result, appended)
            for section, result in zip(file.sections, results, strict=True)
            if (appended := section.appended(result)).batches  # the catalog rejected the others
        ]
        for result, (batches, bases, _) in sections:
            set_base_offsets(batches, bases, result.leader_epoch)
        buffers = _Buffers()
        for _, appended in sections:
            buffers.count(appended.batches)
        kept: list[tuple[PartitionId, int]] = []
        for result, appended in sections:
            partition = PartitionId(result.topic_id, result.partition)
            self._keep(partition, appended, buffers.compact(appended.batches), file.commit.file_id)
            if result.has_transactions:
                self._topics[partition.topic_id][partition.partition].has_transactions = True
            kept.append((partition, len(appended.batches)))
        size = buffers.size + BATCH_OVERHEAD * sum(count for _, count in kept)
        self._files.append((kept, size))
        self.size += size
        while self.size > self.limit:
            self._drop_oldest()

    def append(self, partition: PartitionId, offset: int, batch: memoryview) -> None:
        """Add a control batch, which has no file, if the tail of its partition ends directly before it."""
        tail = self.partition_tails(partition.topic_id).get(partition.partition)
        if tail is None or not tail.bases or tail.lasts[-1] + 1 != offset:
            return
        tail.bases.append(offset)
        tail.lasts.append(offset)
        tail.views.append(batch.toreadonly())
        tail.files.append(_NO_FILE)
        size = len(batch) + BATCH_OVERHEAD
        self._files.append(([(partition, 1)], size))
        self.size += size
        while self.size > self.limit:
            self._drop_oldest()

    def _keep(
        self,
        partition: PartitionId,
        appended: AppendedBatches,
        views: Sequence[memoryview],
        file_id: UUID,
    ) -> None:
        """Add the batches, whose offsets are set; `views` are their bytes."""
        _, bases, offset_counts = appended
        tails = self._topics.setdefault(partition.topic_id, {})
        tail = tails.get(partition.partition)
        if tail is None:
            tail = tails[partition.partition] = PartitionTail()
        tail.bases += bases
        tail.lasts += [base + taken - 1 for base, taken in zip(bases, offset_counts, strict=True)]
        tail.views += views
        tail.files += [file_id] * len(views)

    def read(
        self,
        partition: PartitionId,
        offset: int,
        max_bytes: int,
        *,
        file_id: UUID | None = None,
        last_offset: int | None = None,
        plain_only: bool = False,
    ) -> TailRead | None:
        """Return batches from the one with `offset` on: at least one, and about `max_bytes`.

        Returns None if the tail does not have that batch. With `file_id`, it returns batches of that file
        only, and with `last_offset` only batches up to that offset. With `plain_only`, it returns none of a
        partition that may have transactional ones.
        """
        tail = self.partition_tails(partition.topic_id).get(partition.partition)
        if tail is None or (plain_only and tail.has_transactions):
            return None
        return self.read_partition(tail, offset, max_bytes, file_id=file_id, last_offset=last_offset)

    def partition_tails(self, topic_id: UUID) -> Mapping[int, PartitionTail]:
        """Return the tails of a topic's partitions. They change with the next commit."""
        return self._topics.get(topic_id, _NO_TAILS)

    def read_partition(
        self,
        tail: PartitionTail,
        offset: int,
        max_bytes: int,
        *,
        file_id: UUID | None = None,
        last_offset: int | None = None,
    ) -> TailRead | None:
        """Do the same as `read` for a partition tail at hand."""
        bases, lasts, views = tail.bases, tail.lasts, tail.views
        first = bisect_right(bases, offset, tail.first) - 1
        if first < tail.first or lasts[first] < offset:
            return None
        if file_id is not None and tail.files[first] != file_id:
            return None
        size = len(views[first])
        end = first + 1
        limit = min(len(bases), first + _MAX_BATCHES) if size < max_bytes else end
        if last_offset is not None:
            limit = min(limit, bisect_right(lasts, last_offset, first))
        while end < limit and bases[end] == lasts[end - 1] + 1:
            more = size + len(views[end])
            if more > max_bytes or (file_id is not None and tail.files[end] != file_id):
                break
            size = more
            end += 1
        self.hits += 1
        return _tail_read((views[first:end], size, lasts[end - 1] + 1))

    def clear(self) -> None:
        """Evict everything."""
        self._topics.clear()
        self._files.clear()
        self.size = 0

    def _drop_oldest(self) -> None:
        kept, size = self._files.popleft()
        self.size -= size
        for partition, count in kept:
            tails = self._topics[partition.topic_id]
            tail = tails[partition.partition]
            tail.drop(count)
            if not tail.bases:
                del tails[partition.partition]
                if not tails:
                    del self._topics[partition.topic_id]
