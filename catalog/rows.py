"""Conversions of result rows to values of `catalog.model` that several packages need."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.config.values import TopicConfig
from catalog.model import ControlBatch, Extent, FileFormat, FileKind, PartitionState, Topic

if TYPE_CHECKING:
    from catalog.database.connection import Row
    from catalog.model import PartitionId

_format = lru_cache(maxsize=256)(FileFormat)
_KINDS = {kind.value: kind for kind in FileKind}
NO_FILE: Final = UUID(int=0)
"""The file of the extent of a control batch."""


def format_params(given: FileFormat) -> dict[str, object]:
    """Return the parameters of `insert_file` for a file's format."""
    return {
        "format_version": given.version,
        "required_features": given.required_features,
        "kernel_digest": given.kernel_digest,
    }


def topic_from_row(row: Row) -> Topic:
    """Convert a row of `topics`; its settings were validated when they were set."""
    return Topic(
        topic_id=row.topic_id,
        name=row.name,
        partition_count=row.partition_count,
        config=TopicConfig.from_stored(row.config),
        created_ms=row.created_ms,
    )


def state_from_row(row: Row) -> PartitionState:
    """Convert a row of `partitions`; further columns are ignored."""
    return PartitionState(
        topic_id=row.topic_id,
        partition=row.partition,
        log_start_offset=row.log_start_offset,
        last_stable_offset=row.last_stable_offset,
        high_watermark=row.high_watermark,
        log_end_offset=row.log_end_offset,
        first_dirty_offset=row.first_dirty_offset,
        leader_epoch=row.leader_epoch,
        has_transactions=row.has_transactions,
    )


def extent_from_row(row: Row) -> Extent:
    """Convert a row of `extents` joined with `files`; `claimed_by` and the control columns are optional."""
    producer_id = getattr(row, "control_producer_id", None)
    if producer_id is not None:
        control = ControlBatch(producer_id, row.control_producer_epoch, row.control_commits)
        return _extent(row, "", FileKind.CONTROL, _format(), control)
    file_format = _format(row.format_version, row.required_features, row.kernel_digest)
    return _extent(row, row.object_name, _KINDS[row.kind], file_format, None)


def control_extent(
    partition: PartitionId, offset: int, control: ControlBatch, leader_epoch: int, committed_ms: int
) -> Extent:
    """Return the extent of a control batch."""
    return Extent(
        topic_id=partition.topic_id,
        partition=partition.partition,
        base_offset=offset,
        last_offset=offset,
        record_count=0,
        min_timestamp=-1,
        max_timestamp=-1,
        file_id=NO_FILE,
        object_name="",
        file_kind=FileKind.CONTROL,
        position=0,
        length=0,
        index_position=0,
        index_length=0,
        offset_shift=0,
        leader_epoch=leader_epoch,
        unique_keys=False,
        committed_ms=committed_ms,
        control=control,
    )


def _extent(
    row: Row, object_name: str, kind: FileKind, file_format: FileFormat, control: ControlBatch | None
) -> Extent:
    return Extent(
        topic_id=row.topic_id,
        partition=row.partition,
        base_offset=row.base_offset,
        last_offset=row.last_offset,
        record_count=row.record_count,
        min_timestamp=row.min_timestamp,
        max_timestamp=row.max_timestamp,
        file_id=row.file_id,
        object_name=object_name,
        file_kind=kind,
        position=row.position,
        length=row.length,
        index_position=row.index_position,
        index_length=row.index_length,
        offset_shift=row.offset_shift,
        leader_epoch=row.leader_epoch,
        unique_keys=row.unique_keys,
        committed_ms=row.committed_ms,
        claimed_by=getattr(row, "claimed_by", None),
        format=file_format,
        control=control,
    )
