"""Planning of the byte ranges that a fetch reads: arithmetic over extents, limits and indexes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.read.batch_slicing import ExtentPart, ServedBatches
from agent.read.caches.range_cache import ByteRange
from catalog.model import PartitionId
from object_format.segment_file import VERSION, SectionIndex, UnsupportedFormatError, check_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from catalog.model import AbortedTransaction, Extent, PartitionState, Topic
    from core.errors import SiltstoneError


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFetch:
    """A fetch from one partition: batches from the one with `offset` on, about `max_bytes` of them.

    With `committed_only`, it ends at the last stable offset instead of the high watermark, and the result
    names the aborted transactions.
    """

    topic: Topic
    partition: int
    offset: int
    max_bytes: int
    committed_only: bool = False

    def end_of(self, state: PartitionState) -> int:
        """Return the offset at which the fetch ends."""
        return state.last_stable_offset if self.committed_only else state.high_watermark

    @property
    def partition_id(self) -> PartitionId:
        """The identifier of the partition in the catalog."""
        return PartitionId(self.topic.topic_id, self.partition)

    @property
    def partition_name(self) -> str:
        """The name of the partition in messages."""
        return f"{self.topic.name}-{self.partition}"


@dataclass(slots=True)
class Cursor:
    """The progress of a fetch in one partition.

    `used` are the extents that it has looked up, if the result depends on them (`needs_extents`). `late` is
    set if a disk has not responded in time. There may be records then, and this fetch does not return them.
    """

    fetch: PartitionFetch
    served: ServedBatches
    state: PartitionState | None = None
    error: SiltstoneError | None = None
    late: SiltstoneError | None = None
    extents: Sequence[Extent] = ()
    used: list[Extent] = field(default_factory=list)
    # Of a local topic; those of an object topic are looked up when all cursors are done.
    aborted: Sequence[AbortedTransaction] = ()
    limit: int = 0
    # The offset up to which batches were read from objects, which may be more than is served.
    extracted: int = -1
    # Grows while the ranges that were read hold no batch: a long hole within an indexed section.
    read_factor: int = 1

    @classmethod
    def at(cls, fetch: PartitionFetch) -> Cursor:
        """Return a cursor that has read nothing yet."""
        return cls(fetch, ServedBatches(fetch.offset))

    @property
    def needs_extents(self) -> bool:
        """Return True if batches are those of the log only while their extents are.

        In a compacted topic, later extents lack superseded records. In a partition with transactions, later
        extents lack aborted ones, and then the catalog does not name these any more.
        """
        return self.fetch.topic.config.compacts or self.has_aborted

    @property
    def has_aborted(self) -> bool:
        """Return True if a reader of committed records may meet aborted ones."""
        return self.fetch.committed_only and self.state is not None and self.state.has_transactions

    @property
    def is_done(self) -> bool:
        """Return True if there is a result, or nothing more to read."""
        return (
            self.error is not None
            or bool(self.served.runs)
            or self.served.is_cut
            or (self.state is not None and self.served.next_offset >= self.fetch.end_of(self.state))
        )

    def take_share(self, left: int) -> int:
        """Set the limit to what the partition may take of the `left` bytes; return what it takes at most."""
        self.limit = min(self.fetch.max_bytes, max(left, 0))
        expected = sum(extent.length for extent in self.needed_extents())
        return min(max(self.limit, 1), expected)

    def drop_served(self) -> None:
        """Serve nothing, because the first batch exceeds what the other partitions of the response leave."""
        self.served = ServedBatches(self.fetch.offset, is_cut=True)

    def stop(self, error: SiltstoneError) -> None:
        """Serve nothing from here on. If the position has not moved, the error becomes the result."""
        if self.served.next_offset == self.fetch.offset:
            self.error = error
        else:
            self.served.is_cut = True

    def stop_before(self, extent: Extent, error: SiltstoneError) -> None:
        """Drop the extents from this one on. If it is the one to read next, serve nothing from here on."""
        if extent.base_offset <= self.served.next_offset:
            self.stop(error)
        self.extents = [each for each in self.extents if each.base_offset < extent.base_offset]

    def drop_unsupported(self) -> None:
        """Drop the extents from the first one on whose file this version cannot read.

        If that is the one to read next, its error becomes the result.
        """
        for number, extent in enumerate(self.extents):
            if extent.control is not None or (
                extent.format.version == VERSION and not extent.format.required_features
            ):
                continue  # on the path of every fetch, so without a call
            try:
                check_readable(extent)
            except UnsupportedFormatError as error:
                if number == 0:
                    self.error = error
                self.extents = self.extents[:number]
                return

    def needed_extents(self) -> list[Extent]:
        """Return the extents to read in this round, in offset order and without a gap."""
        needed: list[Extent] = []
        position = self.served.next_offset
        size = 0
        for extent in self.extents:
            if extent.last_offset < position:
                continue
            if extent.base_offset > position or (needed and size >= self.limit):
                break
            needed.append(extent)
            position = extent.last_offset + 1
            size += extent.length
        return needed


@dataclass(slots=True)
class CursorPlan:
    """One round of one cursor: extents with the part to read of each (None if it has no records)."""

    cursor: Cursor
    steps: list[tuple[Extent, ExtentPart | None]] = field(default_factory=list)


def with_room(cursors: Sequence[Cursor], max_bytes: int) -> Iterator[tuple[Cursor, int]]:
    """Yield the cursors that are not done, each with the bytes that the cursors before it leave.

    Cursors may be served between two steps. The first partition with records may exceed the limit, so that
    each fetch makes progress. A cursor does not count those behind it, even if a faster source has served
    them already: they would keep it waiting for as long as they have records. `within_limits` drops what
    does not fit.
    """
    left = max_bytes
    for cursor in cursors:
        if left <= 0 and left < max_bytes:
            return
        if not cursor.is_done:
            yield cursor, left
        left -= cursor.served.size


def assign_limits(cursors: Sequence[Cursor], max_bytes: int) -> list[Cursor]:
    """Set the limits of the cursors that extents can serve as `with_room` does; return these cursors."""
    chosen: list[Cursor] = []
    shares = 0
    for cursor, room in with_room(cursors, max_bytes):
        left = room - shares
        if cursor.needed_extents() and (left > 0 or left == max_bytes):
            shares += cursor.take_share(left)
            chosen.append(cursor)
    return chosen


def check_readable(extent: Extent) -> None:
    """Raise UnsupportedFormatError if this version cannot read the extent's file."""
    check_format(extent.object_name, extent.format.version, extent.format.required_features)


def index_range(extent: Extent) -> ByteRange:
    """Return the byte range of the extent's sparse index. Raises UnsupportedFormatError."""
    check_readable(extent)
    return ByteRange(extent.object_name, extent.index_position, extent.index_length)


def data_range(extent: Extent) -> ByteRange:
    """Return the byte range of all the extent's blocks. Raises UnsupportedFormatError."""
    check_readable(extent)
    return ByteRange(extent.object_name, extent.position, extent.length)


def parse_index(extent: Extent, block: memoryview) -> SectionIndex:
    """Parse the sparse index of the extent's section."""
    return SectionIndex.parse(
        block,
        name=extent.object_name,
        file_id=extent.file_id,
        position=extent.index_position,
        section=(extent.topic_id, extent.partition),
    )


def plan_cursor(cursor: Cursor, indexes: Mapping[ByteRange, SectionIndex]) -> CursorPlan:
    """Return what to read for `cursor` in this round."""
    plan = CursorPlan(cursor)
    size = 0
    for extent in cursor.needed_extents():
        first_offset = max(cursor.served.next_offset, extent.base_offset)
        if extent.length == 0:
            plan.steps.append((extent, None))
            continue
        index = indexes.get(index_range(extent)) if extent.index_length else None
        part = _part(extent, first_offset, index, max(cursor.limit - size, 0) * cursor.read_factor)
        plan.steps.append((extent, part))
        size += part.range.length
        if not part.reaches_end:
            break
    return plan


def _part(extent: Extent, first_offset: int, index: SectionIndex | None, max_bytes: int) -> ExtentPart:
    if index is None:
        return ExtentPart(extent=extent, range=data_range(extent), first_offset=first_offset)
    position, length = index.range_for_offset(first_offset - extent.offset_shift, max_bytes)
    return ExtentPart(
        extent=extent,
        range=ByteRange(extent.object_name, extent.position + position, length),
        first_offset=first_offset,
        reaches_end=position + length >= extent.length,
    )
