"""Batches, sections, files and byte sources for tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING
from uuid import UUID

from hypothesis import strategies as st
from pyroaring import BitMap64

from object_format.holes import holes_between
from object_format.offset_set import OffsetSet
from object_format.segment_file import (
    FileHeader,
    FileSummary,
    ForwardReader,
    SectionEntry,
    SectionFooter,
    SegmentFileWriter,
    SegmentKind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from object_format.holes import SectionHoles

FILE_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
WRITER_ID = UUID("01890a5d-0000-7000-8000-000000000001")
TOPIC = UUID("a0000000-0000-4000-8000-00000000000a")
CREATED_MS = 1_700_000_000_000

BATCH = Struct(">qiibIhiqqqhii")


def make_batch(
    base_offset: int,
    record_count: int,
    *,
    body: bytes = b"",
    timestamp: int = CREATED_MS,
    offset_count: int | None = None,
) -> bytes:
    """Return a v2 batch with a valid header, except its CRC, and `body` as records."""
    delta = (record_count if offset_count is None else offset_count) - 1
    length = BATCH.size - 12 + len(body)
    return (
        BATCH.pack(
            base_offset, length, 0, 2, 0xC0FFEE, 0, delta, timestamp, timestamp, -1, -1, -1, record_count
        )
        + body
    )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Plan of a batch: `gap` offsets before it and its `missing` last offsets have no record."""

    records: int
    missing: int = 0
    gap: int = 0
    size: int = 0
    timestamp: int = CREATED_MS


@dataclass(frozen=True, kw_only=True)
class Section:
    """Plan of a section; `batches_per_append` batches are written per append."""

    topic_id: UUID = TOPIC
    partition: int = 0
    base_offset: int = 0
    batches: tuple[Batch, ...] = (Batch(records=1),)
    tail_gap: int = 0
    unique_keys: bool = False
    stable: bool = False
    batches_per_append: int = 1

    def encoded(self) -> list[bytes]:
        found: list[bytes] = []
        offset = self.base_offset
        for number, batch in enumerate(self.batches):
            offset += batch.gap
            count = batch.records + batch.missing
            body = bytes([number % 251]) * batch.size
            found.append(
                make_batch(offset, batch.records, body=body, timestamp=batch.timestamp, offset_count=count)
            )
            offset += count
        return found

    @property
    def record_count(self) -> int:
        return sum(batch.records for batch in self.batches)

    @property
    def last_offset(self) -> int:
        used = sum(batch.gap + batch.records + batch.missing for batch in self.batches)
        return self.base_offset + used + self.tail_gap - 1

    @property
    def survivors(self) -> BitMap64:
        """Return the offsets with a record."""
        found = BitMap64()
        offset = self.base_offset
        for batch in self.batches:
            offset += batch.gap
            found.add_range(offset, offset + batch.records)
            offset += batch.records + batch.missing
        return found

    @property
    def timestamps(self) -> tuple[int, int]:
        seen = [batch.timestamp for batch in self.batches if batch.records]
        return (min(seen), max(seen)) if seen else (-1, -1)


@dataclass
class WrittenFile:
    """A file, and the summary of its writer."""

    data: bytes
    summary: FileSummary
    sections: tuple[Section, ...]
    pieces: list[bytes | memoryview] = field(default_factory=list)


def holes_at(*holes: int, span: int) -> SectionHoles:
    """Return the holes of a section of `span` offsets without records at `holes`."""
    return holes_between(OffsetSet.of(BitMap64(range(span)) - BitMap64(holes)), 0, span - 1)


def write_section(writer: SegmentFileWriter, section: Section, kind: SegmentKind) -> SectionEntry:
    writer.begin_section(section.topic_id, section.partition)
    encoded = section.encoded()
    step = section.batches_per_append
    for start in range(0, len(encoded), step):
        buffer = bytearray(b"".join(encoded[start : start + step]))
        writer.append(buffer, stable=section.stable)
    low, high = section.timestamps
    holes = holes_between(OffsetSet.of(section.survivors), section.base_offset, section.last_offset)
    return writer.end_section(
        base_offset=section.base_offset,
        last_offset=section.last_offset,
        record_count=section.record_count,
        min_timestamp=low,
        max_timestamp=high,
        unique_keys=section.unique_keys,
        holes=holes if kind is SegmentKind.COMPACTED else None,
    )


def make_writer(
    sink: Callable[[bytes | memoryview], object],
    *,
    kind: SegmentKind = SegmentKind.COMPACTED,
    block_target: int = 300,
    file_id: UUID = FILE_ID,
) -> SegmentFileWriter:
    return SegmentFileWriter(
        kind=kind,
        file_id=file_id,
        writer_id=WRITER_ID,
        created_ms=CREATED_MS,
        sink=sink,
        block_target=block_target,
    )


def write_file(
    sections: Sequence[Section],
    *,
    kind: SegmentKind = SegmentKind.COMPACTED,
    block_target: int = 300,
    file_id: UUID = FILE_ID,
) -> WrittenFile:
    pieces: list[bytes | memoryview] = []
    writer = make_writer(pieces.append, kind=kind, block_target=block_target, file_id=file_id)
    for section in sections:
        write_section(writer, section, kind)
    summary = writer.finish()
    return WrittenFile(b"".join(pieces), summary, tuple(sections), pieces)


class BytesSource:
    """Returns `data` in reads of at most `step` bytes, and counts them."""

    def __init__(self, data: bytes, step: int | None = None) -> None:
        self._data = memoryview(data)
        self._step = len(data) if step is None else step
        self.position = 0
        self.reads = 0

    def readinto(self, target: memoryview, /) -> int:
        self.reads += 1
        count = min(len(target), self._step, len(self._data) - self.position)
        target[:count] = self._data[self.position : self.position + count]
        self.position += count
        return count


@dataclass
class ReadSection:
    """Everything that a forward reader returns for a section."""

    key: tuple[UUID, int]
    data: bytes
    footer: SectionFooter
    entry: SectionEntry
    holes: BitMap64 | None


@dataclass
class ReadFile:
    header: FileHeader
    sections: list[ReadSection]


def read_file(
    data: bytes, *, step: int | None = None, size: int | None = None, read_size: int = 256
) -> ReadFile:
    """Read a whole file forward."""
    reader = ForwardReader(BytesSource(data, step), name="a.seg", size=size, read_size=read_size)
    found: list[ReadSection] = []
    while (section := reader.next_section()) is not None:
        payload = b"".join(bytes(block.payload) for block in reader.blocks())
        found.append(ReadSection(section.key, payload, reader.footer, reader.entry, reader.holes))
    return ReadFile(reader.header, found)


TIMESTAMPS = st.integers(min_value=-1, max_value=CREATED_MS + 10**6)
BATCHES = st.builds(
    Batch,
    records=st.integers(0, 50),
    missing=st.integers(1, 5),
    gap=st.integers(0, 70_000),
    size=st.one_of(st.integers(0, 120), st.integers(0, 1000)),
    timestamp=TIMESTAMPS,
)
DENSE_BATCHES = st.builds(
    Batch,
    records=st.integers(1, 50),
    size=st.one_of(st.integers(0, 120), st.integers(0, 1000)),
    timestamp=TIMESTAMPS,
)
PARTITIONS = st.integers(0, 2**31 - 1)


def _sections(
    batches: st.SearchStrategy[Batch], base_offsets: st.SearchStrategy[int]
) -> st.SearchStrategy[Section]:
    return st.builds(
        Section,
        topic_id=st.uuids(),
        partition=PARTITIONS,
        base_offset=base_offsets,
        batches=st.lists(batches, max_size=12).map(tuple),
        tail_gap=st.integers(1, 100_000),
        unique_keys=st.booleans(),
        stable=st.booleans(),
        batches_per_append=st.integers(1, 5),
    )


def _in_order(sections: list[Section]) -> list[Section]:
    return sorted(sections, key=lambda section: (section.topic_id, section.partition))


COMPACTED_SECTIONS = st.lists(
    _sections(BATCHES, st.integers(0, 2**50)),
    max_size=4,
    unique_by=lambda section: (section.topic_id, section.partition),
).map(_in_order)
INGESTION_SECTIONS = (
    st.lists(
        _sections(DENSE_BATCHES, st.just(0)),
        max_size=4,
        unique_by=lambda section: (section.topic_id, section.partition),
    )
    .map(lambda sections: [replace(section, tail_gap=0) for section in sections if section.batches])
    .map(_in_order)
)
