"""Each predicate reports its violation, and none for a valid catalog."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from catalog.invariants import (
    bounds_never_go_back,
    bounds_ordered,
    claims_are_of_open_jobs,
    extents_cover_log,
    garbage_is_unneeded,
    record_counts_agree,
    sizes_add_up,
)
from catalog.jobs.planning_queries import PartitionSize
from catalog.model import Extent, FileKind, PartitionState

if TYPE_CHECKING:
    from catalog.invariants import Violation

_TOPIC = UUID(int=1)
_STATE = PartitionState(
    topic_id=_TOPIC,
    partition=0,
    log_start_offset=2,
    last_stable_offset=10,
    high_watermark=10,
    log_end_offset=10,
    first_dirty_offset=5,
    leader_epoch=0,
)
_EXTENT = Extent(
    topic_id=_TOPIC,
    partition=0,
    base_offset=0,
    last_offset=4,
    record_count=5,
    min_timestamp=0,
    max_timestamp=0,
    file_id=UUID(int=2),
    object_name="x",
    file_kind=FileKind.COMPACTED,
    position=0,
    length=7,
    index_position=0,
    index_length=0,
    offset_shift=0,
    leader_epoch=0,
    unique_keys=False,
    committed_ms=0,
)
_SECOND = _EXTENT._replace(base_offset=5, last_offset=9, file_kind=FileKind.INGESTION)
_SIZE = PartitionSize(
    state=_STATE, live_bytes=14, dirty_bytes=7, dirty_since_ms=0, ingestion_extents=1, compacted_extents=1
)


def _names(*found: list[Violation]) -> set[str]:
    return {violation.invariant for violations in found for violation in violations}


def test_a_valid_catalog_has_no_violations() -> None:
    extents = [_EXTENT, _SECOND]
    claim = {UUID(int=3): {(_TOPIC, 0, 0)}}
    assert not _names(
        bounds_ordered(_STATE),
        bounds_never_go_back(_STATE, _STATE),
        extents_cover_log(_STATE, extents),
        record_counts_agree(_EXTENT),
        record_counts_agree(_EXTENT, 0),
        sizes_add_up(_SIZE, extents),
        garbage_is_unneeded([UUID(int=9)], extents, []),
        claims_are_of_open_jobs([_EXTENT._replace(claimed_by=UUID(int=3)), _SECOND], claim),
    )


def test_bounds_out_of_order_are_reported() -> None:
    for wrong in (
        replace(_STATE, log_start_offset=11),
        replace(_STATE, high_watermark=9),
        replace(_STATE, first_dirty_offset=11),
    ):
        assert _names(bounds_ordered(wrong)) == {"bounds_ordered"}


def test_a_bound_that_decreases_is_reported() -> None:
    (violation,) = bounds_never_go_back(_STATE, replace(_STATE, log_start_offset=1))
    assert "log_start_offset went from 2 to 1" in violation.found


def test_gaps_and_overlaps_are_reported() -> None:
    for wrong in (
        [],
        [_EXTENT],
        [_SECOND],
        [_EXTENT, _SECOND._replace(base_offset=6)],
        [_EXTENT, _SECOND._replace(base_offset=4)],
        [_EXTENT, _SECOND._replace(last_offset=10)],
    ):
        assert _names(extents_cover_log(_STATE, wrong)) == {"extents_cover_log"}
    assert not extents_cover_log(replace(_STATE, log_start_offset=10), [])


def test_a_gap_below_the_log_start_is_allowed() -> None:
    """Retention may not have removed older extents yet; they must not overlap."""
    removed_soon = _EXTENT._replace(last_offset=1)
    state = replace(_STATE, log_start_offset=_SECOND.base_offset)
    assert not extents_cover_log(state, [removed_soon, _SECOND])
    assert _names(extents_cover_log(state, [removed_soon, removed_soon._replace(base_offset=1), _SECOND]))


def test_wrong_counts_are_reported() -> None:
    assert _names(record_counts_agree(_EXTENT._replace(record_count=6))) == {"record_counts_agree"}
    assert _names(record_counts_agree(_EXTENT, 1)) == {"record_counts_agree"}
    assert _names(sizes_add_up(_SIZE, [_EXTENT])) == {"sizes_add_up"}


def test_needed_garbage_and_stale_claims_are_reported() -> None:
    file_id = _EXTENT.file_id
    assert _names(garbage_is_unneeded([file_id], [_EXTENT], [])) == {"garbage_is_unneeded"}
    assert _names(garbage_is_unneeded([file_id], [], [file_id])) == {"garbage_is_unneeded"}
    claimed = _EXTENT._replace(claimed_by=UUID(int=3))
    assert _names(claims_are_of_open_jobs([claimed], {})) == {"claims_are_of_open_jobs"}
    assert _names(claims_are_of_open_jobs([claimed], {UUID(int=3): set()})) == {"claims_are_of_open_jobs"}
