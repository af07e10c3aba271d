"""Range of bytes that a stream reads for some extents of a file."""

from __future__ import annotations

from uuid import UUID

from catalog.jobs.byte_ranges import byte_range_of
from catalog.model import Extent, FileKind


def _extent(position: int, length: int) -> Extent:
    return Extent(
        topic_id=UUID(int=1),
        partition=0,
        base_offset=0,
        last_offset=0,
        record_count=0,
        min_timestamp=-1,
        max_timestamp=-1,
        file_id=UUID(int=2),
        object_name="",
        file_kind=FileKind.COMPACTED,
        position=position,
        length=length,
        index_position=0,
        index_length=0,
        offset_shift=0,
        leader_epoch=0,
        unique_keys=True,
        committed_ms=0,
    )


def test_a_byte_range_covers_the_first_to_the_last_extent() -> None:
    """The order does not matter, and bytes between extents are included; empty extents are ignored."""
    byte_range = byte_range_of([_extent(700, 100), _extent(0, 0), _extent(300, 50), _extent(300, 20)])

    assert byte_range == (300, 800)
    assert byte_range.length == 500


def test_extents_without_bytes_have_an_empty_range() -> None:
    assert byte_range_of([_extent(0, 0)]).length == 0
    assert byte_range_of([]).length == 0
