"""What a forward reader has seen of the section it is in, and the order its blocks must have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from object_format.segment_file.layout import INDEX_ENTRY, INDEX_HEADER, SegmentKind
from object_format.segment_file.payloads import SectionEntry

if TYPE_CHECKING:
    from object_format.segment_file.block import BlockChecker
    from object_format.segment_file.layout import BlockHeader
    from object_format.segment_file.payloads import SectionFooter, SectionHeader


class PassingSection:
    """Takes note of one block after the other, each before its payload is read."""

    def __init__(self, header: SectionHeader, kind: SegmentKind, checker: BlockChecker) -> None:
        self.header = header
        self.holes_payload: bytes | None = None
        self.footer: SectionFooter | None = None
        self.entry: SectionEntry | None = None
        self._compacted = kind is SegmentKind.COMPACTED
        self._checker = checker
        self._data_position = 0
        self._data_length = 0
        self._data_blocks = 0
        self._index = (0, 0)
        self._holes = (0, 0)

    @property
    def holes_position(self) -> int:
        """Where the HOLES block begins."""
        return self._holes[0]

    def note_data(self, block: BlockHeader, position: int) -> None:
        """DATA blocks follow one another, before index and holes."""
        follows = self._data_length == 0 or self._data_position + self._data_length == position
        if not follows or self._index[1] or self._holes[1]:
            raise self._checker.out_of_place(block, position)
        if block.length == 0:
            raise self._checker.corrupt("a DATA block without batches", position)
        self._data_position = self._data_position or position
        self._data_length += block.size
        self._data_blocks += 1

    def note_index(self, block: BlockHeader, position: int) -> None:
        """One at most, behind the DATA blocks, with an entry for each."""
        if not self._compacted or self._index[1] or self._holes[1]:
            raise self._checker.out_of_place(block, position)
        if block.length != INDEX_HEADER.size + self._data_blocks * INDEX_ENTRY.size or not self._data_blocks:
            raise self._checker.corrupt(
                f"an index of {block.length} bytes for {self._data_blocks} DATA blocks", position
            )
        self._index = (position, block.size)

    def note_holes(self, block: BlockHeader, position: int) -> None:
        """One at most, behind the index."""
        if not self._compacted or self._holes[1]:
            raise self._checker.out_of_place(block, position)
        self._holes = (position, block.size)

    def end(self, footer: SectionFooter, position: int, end: int) -> SectionEntry:
        """Hold the footer, which began at `position`, against what passed; returns the section's entry."""
        if self._compacted and not self._holes[1]:
            raise self._checker.corrupt("a compacted section without HOLES", position)
        if self._compacted and self._data_blocks and not self._index[1]:
            raise self._checker.corrupt("a compacted section without SECTION_INDEX", position)
        if footer.data_length != self._data_length:
            raise self._checker.corrupt(
                f"the footer counts {footer.data_length} bytes of DATA, there are {self._data_length}",
                position,
            )
        self.footer = footer
        self.entry = SectionEntry.of(
            self.header,
            footer,
            end=end,
            data_position=self._data_position,
            index=self._index,
            holes=self._holes,
        )
        return self.entry
