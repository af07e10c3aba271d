"""Payloads of fixed layout, as values.

`unpack` is the inverse of `pack`. It takes a payload of the right length whose checksum has been verified,
and raises ValueError for a field value that no writer writes. Readers add the file, section and position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from uuid import UUID

from object_format.segment_file.layout import (
    BLOCK_HEADER,
    DIRECTORY_ENTRY,
    END_MAGIC,
    FILE_HEADER,
    IGNORED_SECTION_FLAGS,
    SECTION_FOOTER,
    SECTION_HEADER,
    TRAILER,
    TRAILER_LENGTH,
    UNIQUE_KEYS,
    VERSION,
    SegmentKind,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


def _require_zero(name: str, value: int) -> None:
    if value != 0:
        raise ValueError(f"{name} has bits set that are reserved in version {VERSION}: {value:#x}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """FILE_HEADER payload: identity, writer, time of creation (milliseconds since the epoch), and features.

    Both kinds of features are bits. A reader ignores optional features that it does not know, and must know
    all required ones (`object_format.segment_file.features`).
    """

    kind: SegmentKind
    file_id: UUID
    writer_id: UUID
    created_ms: int
    required_features: int = 0
    optional_features: int = 0

    def pack(self) -> bytes:
        """Return the payload."""
        return FILE_HEADER.pack(
            VERSION,
            self.kind,
            self.optional_features,
            self.required_features,
            self.created_ms,
            self.file_id.bytes,
            self.writer_id.bytes,
        )

    @classmethod
    def unpack(cls, payload: Buffer) -> Self:
        """Parse a payload whose version has been checked."""
        _, kind, optional, required, created_ms, file_id, writer_id = FILE_HEADER.unpack(payload)
        return cls(
            kind=SegmentKind(kind),
            file_id=UUID(bytes=file_id),
            writer_id=UUID(bytes=writer_id),
            created_ms=created_ms,
            required_features=required,
            optional_features=optional,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionHeader:
    """SECTION_HEADER payload, and the section's position in the file."""

    topic_id: UUID
    partition: int
    position: int

    @property
    def key(self) -> tuple[UUID, int]:
        """Sort key of sections."""
        return self.topic_id, self.partition

    def pack(self) -> bytes:
        """Return the payload."""
        return SECTION_HEADER.pack(self.topic_id.bytes, self.partition, 0)

    @classmethod
    def unpack(cls, payload: Buffer, position: int) -> Self:
        """Parse a payload."""
        topic_id, partition, flags = SECTION_HEADER.unpack(payload)
        _require_zero("SECTION_HEADER", flags)
        if partition < 0:
            raise ValueError(f"partition {partition} is negative")
        return cls(topic_id=UUID(bytes=topic_id), partition=partition, position=position)


def _check_offsets(base_offset: int, last_offset: int, record_count: int, *, has_data: bool) -> None:
    """Check the relations between the fields of a section."""
    if not 0 <= base_offset <= last_offset:
        raise ValueError(f"offsets run from {base_offset} to {last_offset}")
    if not 0 <= record_count <= last_offset - base_offset + 1:
        raise ValueError(f"{record_count} records at offsets {base_offset} to {last_offset}")
    if record_count > 0 and not has_data:
        raise ValueError(f"{record_count} records in a section without DATA")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionFooter:
    """SECTION_FOOTER payload.

    Offsets are relative to the section in an ingestion file, and absolute in a compacted file. `data_length`
    is the size of the section's DATA blocks including their headers. Timestamps are in milliseconds; both are
    -1 if there is no record. `ignored_flags` are flags that this version does not know and need not know.
    """

    base_offset: int
    last_offset: int
    record_count: int
    batch_count: int
    data_length: int
    min_timestamp: int
    max_timestamp: int
    unique_keys: bool
    ignored_flags: int = 0

    def pack(self) -> bytes:
        """Return the payload."""
        return SECTION_FOOTER.pack(
            self.base_offset,
            self.last_offset,
            self.record_count,
            self.batch_count,
            self.data_length,
            self.min_timestamp,
            self.max_timestamp,
            (UNIQUE_KEYS if self.unique_keys else 0) | self.ignored_flags,
            0,
        )

    @classmethod
    def unpack(cls, payload: Buffer) -> Self:
        """Parse a payload."""
        base, last, records, batches, data_length, oldest, newest, flags, reserved = SECTION_FOOTER.unpack(
            payload
        )
        _require_zero("SECTION_FOOTER", flags & ~(UNIQUE_KEYS | IGNORED_SECTION_FLAGS) | reserved)
        _check_offsets(base, last, records, has_data=data_length > 0)
        if batches < 0 or (batches > 0) != (data_length > 0):
            raise ValueError(f"{batches} batches in {data_length} bytes of DATA")
        return cls(
            base_offset=base,
            last_offset=last,
            record_count=records,
            batch_count=batches,
            data_length=data_length,
            min_timestamp=oldest,
            max_timestamp=newest,
            unique_keys=flags & UNIQUE_KEYS != 0,
            ignored_flags=flags & IGNORED_SECTION_FLAGS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionEntry:
    """One entry of the DIRECTORY: locations of a section's parts, and fields of its footer.

    Positions count from byte 0 of the file, and lengths include block headers. A missing part has position 0
    and length 0. [data_position, data_position + data_length) contains DATA blocks only.
    """

    topic_id: UUID
    partition: int
    position: int
    length: int
    data_position: int
    data_length: int
    index_position: int
    index_length: int
    holes_position: int
    holes_length: int
    base_offset: int
    last_offset: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    unique_keys: bool
    ignored_flags: int = 0

    @property
    def key(self) -> tuple[UUID, int]:
        """Sort key of sections."""
        return self.topic_id, self.partition

    @classmethod
    def of(
        cls,
        header: SectionHeader,
        footer: SectionFooter,
        *,
        end: int,
        data_position: int,
        index: tuple[int, int],
        holes: tuple[int, int],
    ) -> Self:
        """Return the entry of a section that ends at `end`; `index` and `holes` are (position, length)."""
        return cls(
            topic_id=header.topic_id,
            partition=header.partition,
            position=header.position,
            length=end - header.position,
            data_position=data_position if footer.data_length else 0,
            data_length=footer.data_length,
            index_position=index[0],
            index_length=index[1],
            holes_position=holes[0],
            holes_length=holes[1],
            base_offset=footer.base_offset,
            last_offset=footer.last_offset,
            record_count=footer.record_count,
            min_timestamp=footer.min_timestamp,
            max_timestamp=footer.max_timestamp,
            unique_keys=footer.unique_keys,
            ignored_flags=footer.ignored_flags,
        )

    def pack(self) -> bytes:
        """Return the 128 bytes of the entry."""
        return DIRECTORY_ENTRY.pack(
            self.topic_id.bytes,
            self.partition,
            (UNIQUE_KEYS if self.unique_keys else 0) | self.ignored_flags,
            self.position,
            self.length,
            self.data_position,
            self.data_length,
            self.index_position,
            self.index_length,
            self.holes_position,
            self.holes_length,
            self.base_offset,
            self.last_offset,
            self.record_count,
            self.min_timestamp,
            self.max_timestamp,
        )

    @classmethod
    def unpack(cls, data: Buffer) -> Self:
        """Parse an entry, and check that the section's parts are inside the section."""
        topic_id, partition, flags, *fields = DIRECTORY_ENTRY.unpack(data)
        _require_zero("DIRECTORY entry", flags & ~(UNIQUE_KEYS | IGNORED_SECTION_FLAGS))
        position, length, *parts = fields[:8]
        base, last, records, oldest, newest = fields[8:]
        if partition < 0:
            raise ValueError(f"partition {partition} is negative")
        _check_offsets(base, last, records, has_data=parts[1] > 0)
        for part, part_length in zip(parts[::2], parts[1::2], strict=True):
            inside = position < part and part + part_length <= position + length
            if not (inside if part_length else part == 0):
                raise ValueError(
                    f"bytes {part}+{part_length} are not inside their section {position}+{length}"
                )
        return cls(
            topic_id=UUID(bytes=topic_id),
            partition=partition,
            position=position,
            length=length,
            data_position=parts[0],
            data_length=parts[1],
            index_position=parts[2],
            index_length=parts[3],
            holes_position=parts[4],
            holes_length=parts[5],
            base_offset=base,
            last_offset=last,
            record_count=records,
            min_timestamp=oldest,
            max_timestamp=newest,
            unique_keys=flags & UNIQUE_KEYS != 0,
            ignored_flags=flags & IGNORED_SECTION_FLAGS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trailer:
    """TRAILER payload; `directory_length` is the length of the whole DIRECTORY block."""

    file_id: UUID
    directory_position: int
    directory_length: int
    section_count: int
    size: int

    def pack(self) -> bytes:
        """Return the payload."""
        return TRAILER.pack(
            self.file_id.bytes,
            self.directory_position,
            self.directory_length,
            self.section_count,
            self.size,
            END_MAGIC,
        )

    @classmethod
    def unpack(cls, payload: Buffer) -> Self:
        """Parse a payload, and check that its fields agree with each other."""
        file_id, position, length, count, size, magic = TRAILER.unpack(payload)
        if magic != END_MAGIC:
            raise ValueError("the file does not end like a segment file")
        if length != BLOCK_HEADER.size + count * DIRECTORY_ENTRY.size:
            raise ValueError(f"a directory of {length} bytes cannot hold {count} sections")
        if position + length + TRAILER_LENGTH != size:
            raise ValueError(f"a directory at {position}+{length} does not end a file of {size} bytes")
        return cls(
            file_id=UUID(bytes=file_id),
            directory_position=position,
            directory_length=length,
            section_count=count,
            size=size,
        )


def file_id_of(file_header: Buffer) -> UUID:
    """Return the file id of an unverified FILE_HEADER payload, which its own checksum depends on."""
    return UUID(bytes=FILE_HEADER.unpack(file_header)[5])
