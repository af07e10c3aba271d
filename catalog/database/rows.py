"""Turns rows into the values of `catalog.model`; each function names the columns it expects, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.config.topic_config import TopicConfig
from catalog.model import Extent, FileKind, PartitionState, Topic

if TYPE_CHECKING:
    from catalog.database.connection import Row

_KINDS = {kind.value: kind for kind in FileKind}


def topic_of(row: Row) -> Topic:
    """topic_id, name, partition_count, config, created_ms; settings were validated when they were set."""
    topic_id, name, partition_count, config, created_ms = row
    return Topic(
        topic_id=topic_id,
        name=name,
        partition_count=partition_count,
        config=TopicConfig.stored(config),
        created_ms=created_ms,
    )


def state_of(row: Row) -> PartitionState:
    """topic_id, partition, log_start, last_stable, high_watermark, log_end, first_dirty, leader_epoch."""
    return PartitionState(
        topic_id=row[0],
        partition=row[1],
        log_start_offset=row[2],
        last_stable_offset=row[3],
        high_watermark=row[4],
        log_end_offset=row[5],
        first_dirty_offset=row[6],
        leader_epoch=row[7],
    )


def extent_of(row: Row) -> Extent:
    """The columns of `extents_from`; one more, if there, is the job that claims the extent."""
    return Extent(
        topic_id=row[0],
        partition=row[1],
        base_offset=row[2],
        last_offset=row[3],
        record_count=row[4],
        min_timestamp=row[5],
        max_timestamp=row[6],
        file_id=row[7],
        object_name=row[8],
        file_kind=_KINDS[row[9]],
        position=row[10],
        length=row[11],
        index_position=row[12],
        index_length=row[13],
        offset_shift=row[14],
        leader_epoch=row[15],
        unique_keys=row[16],
        committed_ms=row[17],
        claimed_by=row[18] if len(row) > 18 else None,
    )
