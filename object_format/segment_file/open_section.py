"""The section that a writer is in: pending batches, the index so far, and what its end must agree with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import InvalidInputError
from object_format.holes import SectionHoles, no_holes
from object_format.segment_file.block_borders import BATCHES, FIRST_OFFSET, LAST_OFFSET, RECORDS, BlockCutter
from object_format.segment_file.layout import MAX_INT64, SegmentKind

if TYPE_CHECKING:
    from object_format.segment_file.payloads import SectionHeader


class OpenSection:
    """State of one section; `data_position` is where its first DATA block begins, or would."""

    def __init__(self, header: SectionHeader, data_position: int, block_target: int) -> None:
        self.header = header
        self.data_position = data_position
        self.cutter = BlockCutter(block_target)
        self.pending: list[bytes | memoryview] = []
        self.index = bytearray()

    def check_end(
        self,
        kind: SegmentKind,
        base_offset: int,
        last_offset: int,
        record_count: int,
        holes: SectionHoles | None,
    ) -> SectionHoles | None:
        """The holes to write, when the caller's numbers agree with the batches; else InvalidInputError."""
        if not 0 <= base_offset <= last_offset <= MAX_INT64:
            raise InvalidInputError(f"a section cannot run from offset {base_offset} to {last_offset}")
        counted = self.cutter.get(RECORDS)
        if counted != record_count:
            raise InvalidInputError(f"{record_count} records, but the batch headers count {counted}")
        first, last = self.cutter.get(FIRST_OFFSET), self.cutter.get(LAST_OFFSET)
        if self.cutter.get(BATCHES) and not base_offset <= first <= last <= last_offset:
            raise InvalidInputError(
                f"batches hold offsets {first} to {last}, the section only {base_offset} to {last_offset}"
            )
        span = last_offset - base_offset + 1
        if record_count > span:
            raise InvalidInputError(f"{record_count} records do not fit {span} offsets")
        if kind is SegmentKind.COMPACTED:
            return _checked_holes(no_holes(span) if holes is None else holes, span, record_count)
        if base_offset != 0 or holes is not None:
            raise InvalidInputError("a section of an ingestion file begins at offset 0 and has no holes")
        return None


def _checked_holes(holes: SectionHoles, span: int, record_count: int) -> SectionHoles:
    if holes.span != span:
        raise InvalidInputError(f"holes of {holes.span} offsets are not those of a section of {span}")
    if holes.count != span - record_count:
        raise InvalidInputError(f"{record_count} records and {holes.count} holes do not make {span} offsets")
    return holes
