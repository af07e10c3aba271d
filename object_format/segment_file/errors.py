"""Errors of reading segment files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import CorruptDataError, InvalidInputError

if TYPE_CHECKING:
    from uuid import UUID

    Section = tuple[UUID, int]


class CorruptSegmentError(CorruptDataError):
    """Bytes of a segment file violate the specification.

    `file` is the name that the reader was given, `section` the (topic id, partition) of the current section
    or None outside of sections, and `position` the byte of the file where the violation starts.
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


class NeedMoreTail(InvalidInputError):  # noqa: N818  not a fault: it contains the length of the next read
    """The tail does not contain the whole directory; the last `length` bytes of the file do."""

    def __init__(self, file: str, length: int) -> None:
        super().__init__(
            f"segment file {file}: the directory starts before the given bytes",
            remedy=f"read the last {length} bytes",
        )
        self.file = file
        self.length = length
