"""Opens a segment file from its end, with one ranged read."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.errors import InvalidInputError
from object_format.segment_file.block_checker import BlockChecker
from object_format.segment_file.block_payloads import SectionEntry, Trailer
from object_format.segment_file.checksum import file_seed
from object_format.segment_file.errors import NeedMoreTail
from object_format.segment_file.layout import (
    BLOCK_HEADER,
    DIRECTORY_ENTRY,
    FILE_HEADER,
    MAGIC,
    TRAILER_LENGTH,
    BlockType,
)

if TYPE_CHECKING:
    from uuid import UUID

    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """Locations of all sections of a file; sections are sorted by (topic id, partition)."""

    file_id: UUID
    size: int
    position: int
    length: int
    sections: tuple[SectionEntry, ...]

    def find(self, topic_id: UUID, partition: int) -> SectionEntry | None:
        """Return the section of a partition, or None."""
        key = (topic_id, partition)
        location = bisect_left(self.sections, key, key=lambda entry: entry.key)
        found = self.sections[location : location + 1]
        return found[0] if found and found[0].key == key else None


def read_directory(tail: Buffer, *, name: str, size: int, file_id: UUID | None = None) -> Directory:
    """Return the directory of the file `name` of `size` bytes, from the file's last bytes.

    A tail of `directory_length` (see `FileSummary`) plus `TRAILER_LENGTH` bytes is always sufficient. If the
    tail is too short, NeedMoreTail contains the required length. `file_id` is compared with the file's id if
    it is given. Raises CorruptSegmentError.
    """
    data = memoryview(tail)
    if len(data) > size:
        raise InvalidInputError(f"a tail of {len(data)} bytes is longer than its file of {size} bytes")
    checker = BlockChecker(file=name, seed=0)
    trailer = _read_trailer(data, checker, size)
    if file_id is not None and trailer.file_id != file_id:
        raise checker.corrupt(f"the file is {trailer.file_id}, not {file_id}", size - TRAILER_LENGTH)
    need = trailer.directory_length + TRAILER_LENGTH
    if len(data) < need:
        raise NeedMoreTail(name, need)
    block = data[len(data) - need : len(data) - TRAILER_LENGTH]
    payload = checker.single_block(block, trailer.directory_position, BlockType.DIRECTORY)
    return Directory(
        file_id=trailer.file_id,
        size=size,
        position=trailer.directory_position,
        length=trailer.directory_length,
        sections=_read_entries(payload, checker, trailer.directory_position),
    )


def _read_trailer(data: memoryview, checker: BlockChecker, size: int) -> Trailer:
    """Return the verified trailer, and set the checker's seed to that of the trailer's file id."""
    position = size - TRAILER_LENGTH
    if position < 0:
        raise checker.corrupt(f"{size} bytes are too short for a segment file", 0)
    if len(data) < TRAILER_LENGTH:
        raise NeedMoreTail(checker.file, TRAILER_LENGTH)
    block = data[-TRAILER_LENGTH:]
    try:
        trailer = Trailer.unpack(block[BLOCK_HEADER.size :])
    except ValueError as error:
        raise checker.corrupt(str(error), position) from error
    checker.seed = file_seed(trailer.file_id)
    checker.single_block(block, position, BlockType.TRAILER)
    if trailer.size != size:
        raise checker.corrupt(f"the file has {size} bytes, its trailer says {trailer.size}", position)
    return trailer


def _read_entries(payload: memoryview, checker: BlockChecker, position: int) -> tuple[SectionEntry, ...]:
    entries: list[SectionEntry] = []
    end = len(MAGIC) + BLOCK_HEADER.size + FILE_HEADER.size
    for start in range(0, len(payload), DIRECTORY_ENTRY.size):
        location = position + BLOCK_HEADER.size + start
        try:
            entry = SectionEntry.unpack(payload[start : start + DIRECTORY_ENTRY.size])
        except ValueError as error:
            raise checker.corrupt(str(error), location) from error
        if entries and entry.key <= entries[-1].key:
            raise checker.corrupt("sections are not in ascending order", location)
        if entry.position < end or entry.position + entry.length > position:
            raise checker.corrupt(
                f"section {entry.topic_id}/{entry.partition} overlaps another part", location
            )
        entries.append(entry)
        end = entry.position + entry.length
    return tuple(entries)
