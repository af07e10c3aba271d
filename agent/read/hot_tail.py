"""The newest batches that this agent committed, in memory, ready to be handed out.

A producer's buffer becomes part of an ingestion file without a copy, and of the tail once the file is
committed: real offsets and epoch are written into the batches where they lie (the file has been put, nobody
else reads them), and fetches hand out views of the same bytes.

What the tail has of an offset is what the log has, and stays so while the topic is not compacted: committed
records never change, and where the log begins is asked elsewhere. Of a compacted topic a batch is what the
log has only while the offset lies in the file that brought it; `read` may be told to look at one file alone.

Bounded by bytes, a batch's own cost included: the oldest files go first, whoever reads them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from catalog.model import PartitionId
from object_format.record_batch.headers import set_base_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from agent.cluster.commits import AppendedBatches, CommittedFile
    from catalog.model import SectionResult

# About what the lists, the view and the share in its file cost beside the bytes of a batch.
BATCH_COST = 256
_MAX_BATCHES = 4096
_MIN_COMPACTION = 1024


class TailRead(NamedTuple):
    """Consecutive batches, from the one with the offset that was asked for; `next_offset` is behind them."""

    batches: list[memoryview]
    size: int
    next_offset: int


# A named tuple's own constructor is a Python function, and every partition of every fetch needs one.
_tail_read = partial(tuple.__new__, TailRead)


@dataclass(slots=True)
class PartitionTail:
    """The batches of one partition in offset order; those before `first` are gone."""

    bases: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    views: list[memoryview] = field(default_factory=list)
    files: list[UUID] = field(default_factory=list)
    first: int = 0

    def drop(self, count: int) -> None:
        """Forget the `count` oldest batches."""
        end = self.first + count
        self.views[self.first : end] = [_NOTHING] * count
        self.first = end
        if end >= _MIN_COMPACTION or end == len(self.bases):
            del self.bases[:end], self.lasts[:end], self.views[:end], self.files[:end]
            self.first = 0


_NOTHING = memoryview(b"")
_NO_TAILS: Mapping[int, PartitionTail] = {}


class HotTail:
    """The newest batches by partition. Belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.hits = 0
        self._topics: dict[UUID, dict[int, PartitionTail]] = {}  # a UUID is slow to look up
        self._files: deque[list[tuple[PartitionId, int, int]]] = deque()

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Keep what was appended; told of every committed file in commit order."""
        if self.limit == 0:
            return
        kept: list[tuple[PartitionId, int, int]] = []
        file_id = file.commit.file_id
        for section, result in zip(file.sections, results, strict=True):
            partition = PartitionId(result.topic_id, result.partition)
            count, size = self._keep(partition, section.appended(result), result.leader_epoch, file_id)
            if count:
                kept.append((partition, count, size))
        self._files.append(kept)
        self.size += sum(size for _, _, size in kept)
        while self.size > self.limit:
            self._drop_oldest()

    def _keep(
        self, partition: PartitionId, appended: AppendedBatches, leader_epoch: int, file_id: UUID
    ) -> tuple[int, int]:
        """Put the offsets into the batches and keep them: how many, and what they cost."""
        batches, bases, offset_counts = appended
        count = len(batches)
        if not count:  # they are in the file and not in the log
            return 0, 0
        set_base_offsets(batches, bases, leader_epoch)
        tails = self._topics.setdefault(partition.topic_id, {})
        tail = tails.get(partition.partition)
        if tail is None:
            tail = tails[partition.partition] = PartitionTail()
        tail.bases += bases
        tail.lasts += [base + taken - 1 for base, taken in zip(bases, offset_counts, strict=True)]
        tail.views += [batch.toreadonly() for batch in batches]
        tail.files += [file_id] * count
        return count, sum(map(len, batches)) + BATCH_COST * count

    def read(
        self, partition: PartitionId, offset: int, max_bytes: int, *, file_id: UUID | None = None
    ) -> TailRead | None:
        """Batches from the one with `offset` on, at least one and about `max_bytes`; None without that one.

        With `file_id`, batches of that file alone.
        """
        tail = self.partition_tails(partition.topic_id).get(partition.partition)
        return None if tail is None else self.read_partition(tail, offset, max_bytes, file_id=file_id)

    def partition_tails(self, topic_id: UUID) -> Mapping[int, PartitionTail]:
        """What is held of a topic, by partition; to be used at once."""
        return self._topics.get(topic_id, _NO_TAILS)

    def read_partition(
        self, tail: PartitionTail, offset: int, max_bytes: int, *, file_id: UUID | None = None
    ) -> TailRead | None:
        """As `read`, of one of the `tails`."""
        bases, lasts, views = tail.bases, tail.lasts, tail.views
        first = bisect_right(bases, offset, tail.first) - 1
        if first < tail.first or lasts[first] < offset:
            return None
        if file_id is not None and tail.files[first] != file_id:
            return None
        size = len(views[first])
        end = first + 1
        most = min(len(bases), first + _MAX_BATCHES) if size < max_bytes else end
        while end < most and bases[end] == lasts[end - 1] + 1:
            more = size + len(views[end])
            if more > max_bytes or (file_id is not None and tail.files[end] != file_id):
                break
            size = more
            end += 1
        self.hits += 1
        return _tail_read((views[first:end], size, lasts[end - 1] + 1))

    def _drop_oldest(self) -> None:
        for partition, count, size in self._files.popleft():
            tails = self._topics[partition.topic_id]
            tail = tails[partition.partition]
            tail.drop(count)
            self.size -= size
            if not tail.bases:
                del tails[partition.partition]
                if not tails:
                    del self._topics[partition.topic_id]
