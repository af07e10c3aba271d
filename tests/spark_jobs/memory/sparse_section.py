"""A partition with few remaining records, far apart, as compaction leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from catalog.model import OutputExtent
from object_format.bitmaps import bitmap_of
from object_format.holes import holes_between
from object_format.offset_set import OffsetSet
from object_format.record_batch.records import encode_batch
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_store.accounting import Purpose
from object_store.names import compacted_name

if TYPE_CHECKING:
    from catalog.model import PartitionId
    from tests.spark_jobs.reference_log import ReferenceLog


def write_sparse_section(log: ReferenceLog, partition_id: PartitionId, count: int, gap: int) -> None:
    """Start a partition of `log` with the output of an earlier job: `count` records, `gap` offsets apart.

    Keys have 16 digits. The log's reference model does not know these records.
    """
    file_id, attempt_id = log.ids.new_uuid(), log.ids.new_uuid()
    name = compacted_name(log.ids.new_uuid(), attempt_id, file_id)
    pieces: list[bytes] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.COMPACTED,
        file_id=file_id,
        writer_id=attempt_id,
        created_ms=log.clock.now_ms(),
        sink=lambda data: pieces.append(bytes(data)),
    )
    writer.begin_section(partition_id.topic_id, partition_id.partition)
    for first in range(0, count, 100):
        keys = [b"%016d" % each for each in range(first, first + 100)]
        deltas = np.arange(0, 100 * gap, gap)
        writer.append(
            encode_batch([1000] * 100, keys, [b""] * 100, base_offset=first * gap, offset_deltas=deltas)
        )
    end = count * gap
    offsets = bitmap_of(np.arange(0, end, gap))
    entry = writer.end_section(
        base_offset=0,
        last_offset=end - 1,
        record_count=count,
        min_timestamp=1000,
        max_timestamp=1000,
        unique_keys=True,
        holes=holes_between(OffsetSet.of(offsets), 0, end - 1),
    )
    log.sizes[file_id] = writer.finish().size
    log.store.put(name, pieces, purpose=Purpose.COMPACTION)
    output = OutputExtent(
        topic_id=entry.topic_id,
        partition=entry.partition,
        base_offset=0,
        last_offset=end - 1,
        record_count=count,
        min_timestamp=1000,
        max_timestamp=1000,
        position=entry.data_position,
        length=entry.data_length,
        index_position=entry.index_position,
        index_length=entry.index_length,
        unique_keys=True,
    )
    log.extents[partition_id].append(log.extent_of(output, file_id, name))
    log.ends[partition_id] = end
