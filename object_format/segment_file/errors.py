"""What can be wrong with a segment file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import CorruptDataError, InvalidInputError

if TYPE_CHECKING:
    from uuid import UUID

    Section = tuple[UUID, int]


class CorruptSegmentError(CorruptDataError):
    """Bytes of a segment file are not what a writer of this version wrote.

    `file` is the name that the reader was given, `section` the (topic id, partition) that was being read, or
    None outside any section, and `position` the byte of the file where the wrong thing begins.
    """

    def __init__(
        self,
        what: str,
        *,
        file: str,
        position: int,
        section: Section | None = None,
        remedy: str | None = None,
    ) -> None:
        location = f"section {section[0]}/{section[1]}, " if section is not None else ""
        super().__init__(f"segment file {file}: {location}byte {position}: {what}", remedy=remedy)
        self.file = file
        self.section = section
        self.position = position


class NeedMoreTail(InvalidInputError):  # noqa: N818  not a fault: it tells how long the next tail read must be
    """The tail at hand does not reach back to the directory; its last `length` bytes would."""

    def __init__(self, file: str, length: int) -> None:
        super().__init__(
            f"segment file {file}: the directory begins before the bytes at hand",
            remedy=f"read the last {length} bytes",
        )
        self.file = file
        self.length = length
