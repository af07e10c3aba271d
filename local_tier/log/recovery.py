"""Rebuilding from record batches what a crash may have damaged: indexes, leader epochs, producer state.

A crash may leave a torn batch at the end of a segment, or garbage where the file had grown before its blocks
were written. Lengths and checksums detect both. Beyond Kafka's rule, a batch whose offsets do not follow
those before it counts as garbage, too.

Source: LogSegment.recover and UnifiedLog.rebuildProducerState of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import structlog

from local_tier.log.leader_epoch_file_cache import EpochEntry
from local_tier.producers.batches import producer_batches
from local_tier.segment.batch_scan import WINDOW_BYTES, read_whole_batches, refuse_legacy, scan_file
from object_format.buffers import readable
from object_format.errors import MalformedBatchError
from object_format.kernels.batches.append import find_epochs
from object_format.kernels.batches.headers import first_out_of_order
from object_format.record_batch.headers import first_corrupt, scan_batches

if TYPE_CHECKING:
    from local_tier.log.leader_epoch_file_cache import LeaderEpochFileCache
    from local_tier.producers.producer_state_manager import ProducerStateManager
    from local_tier.segment.log_segment import LogSegment
    from local_tier.segment.log_segments import LogSegments
    from object_format.buffers import Bytes
    from object_format.record_batch.headers import BatchRows

_log = structlog.get_logger(__name__)


def recover_segment(segment: LogSegment, states: ProducerStateManager, epochs: LeaderEpochFileCache) -> int:
    """Rebuild a segment's indexes from its batches, and return the position after the last valid one.

    `states` must be the producer state at the segment's start. `states` and `epochs` are updated to its end.
    The caller cuts off what follows. Raises SegmentOffsetOverflowError if the segment must be split first,
    and LegacyFormatError if what follows is not garbage.
    """
    segment.reset_indexes()
    position, min_offset = 0, segment.base_offset
    while position < segment.size:
        window, rows = _valid_batches(segment, position, min_offset)
        try:
            batches = producer_batches(window, rows)
        except MalformedBatchError:
            rows = _before_malformed_marker(window, rows)
            batches = producer_batches(window, rows)
        if not rows.size:
            break
        segment.index_recovered(rows, position)
        epochs.assign_recovered(epoch_changes(window, rows))
        for completed in states.replay(batches):
            segment.update_transaction_index(completed, states.last_stable_offset(completed))
            states.complete_txn(completed)
        min_offset = _end_offset(rows)
        states.map_end_offset = min_offset
        position += int(rows["size"].sum())
    if position < segment.size:
        refuse_legacy(segment.log, position)
    return position


def cut_segment(segment: LogSegment, position: int) -> None:
    """Durably cut off what follows the valid batches, so that no later power loss brings it back."""
    removed = segment.log.truncate(position)
    if removed:
        segment.log.sync()
        _log.warning("segment_truncated", segment=str(segment.path), at=position, bytes=removed)
    segment.end_recovery()


def epoch_changes(data: Bytes, rows: BatchRows) -> list[EpochEntry]:
    """Return the leader epochs of batches, each with the base offset of its first batch."""
    entries = np.empty((rows.size, 2), np.int64)
    count = find_epochs(data, rows, entries)
    return [EpochEntry(epoch, offset) for epoch, offset in entries[:count].tolist()]


def _valid_batches(segment: LogSegment, position: int, min_offset: int) -> tuple[Bytes, BatchRows]:
    """Read the next batches, and return them with the rows before the first invalid one."""
    window, rows = read_whole_batches(segment.log, position, WINDOW_BYTES)[1:3]
    disorder = first_out_of_order(rows, 0, min_offset)
    if disorder >= 0:
        rows = rows[:disorder]
    return window, rows[: first_corrupt(window, rows)]


def _before_malformed_marker(window: Bytes, rows: BatchRows) -> BatchRows:
    """Return the rows before the first control batch that cannot be read."""
    for index in range(rows.size):
        try:
            producer_batches(window, rows[index : index + 1])
        except MalformedBatchError:
            return rows[:index]
    return rows


def _end_offset(rows: BatchRows) -> int:
    return int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]) + 1


def rebuild_epochs(epochs: LeaderEpochFileCache, segments: LogSegments) -> None:
    """Rebuild the leader epochs, whose checkpoint cannot be read, from all batches of a log."""
    found: list[EpochEntry] = []
    for segment in segments.all:
        for batches in scan_file(segment.log, 0, WINDOW_BYTES):
            found += epoch_changes(batches.data, batches.rows)
    epochs.clear()
    epochs.assign_recovered(found)


def rebuild_producer_state(
    states: ProducerStateManager,
    segments: LogSegments,
    *,
    log_start_offset: int,
    end_offset: int,
    now_ms: int,
    had_clean_shutdown: bool = False,
) -> None:
    """Bring `states` to `end_offset` from the newest snapshot below it, and write a snapshot there.

    After a clean shutdown without any snapshot there are no producers to recover.
    """
    bases = segments.base_offsets[-2:]
    if had_clean_shutdown and states.snapshots.latest is None:
        for offset in (*bases, end_offset):
            states.map_end_offset = offset
            states.take_snapshot()
        return
    was_at_end = states.is_empty and states.map_end_offset >= end_offset
    states.truncate_and_reload(log_start_offset, end_offset, now_ms)
    if end_offset > states.map_end_offset and not was_at_end:
        for segment in segments.values(states.map_end_offset, end_offset):
            start = max(segment.base_offset, states.map_end_offset, log_start_offset)
            states.map_end_offset = start
            if segment.base_offset in bases:
                states.take_snapshot()
            _replay(states, segment, start, end_offset)
    states.map_end_offset = end_offset
    states.take_snapshot()


def _replay(states: ProducerStateManager, segment: LogSegment, offset: int, end_offset: int) -> None:
    """Apply the batches of a segment to `states`. The transaction index is complete and stays unchanged."""
    while offset < end_offset:
        found = segment.read(offset, WINDOW_BYTES, end_offset=end_offset)
        if found is None or found.next_offset == offset:
            return
        data = readable(found.data)
        for completed in states.replay(producer_batches(data, scan_batches(data))):
            states.complete_txn(completed)
        offset = found.next_offset
        states.map_end_offset = offset
