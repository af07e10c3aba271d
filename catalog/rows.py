"""Conversions of result rows to values of `catalog.model` that several packages need."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
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
    if producer_id is None:
        name, kind = row.object_name, _KINDS[row.kind]
        file_format, control = _format(row.format_version, row.required_features, row.kernel_digest), None
    else:
        name, kind, file_format = "", FileKind.CONTROL, _format()
        control = ControlBatch(producer_id, row.control_producer_epoch, row.control_commits)
    claimed_by = getattr(row, "claimed_by", None)
    return Extent._make((*_columns_of(row), name, kind, file_format, claimed_by, control, 0))


_columns_of: Final = attrgetter(*Extent._fields[: Extent._fields.index("object_name")])
"""The values of a row that an extent has under the same names, in its order."""


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
