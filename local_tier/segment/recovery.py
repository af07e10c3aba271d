"""Reading a segment through from its start: what is sound is indexed anew, what follows is cut off.

Source: LogSegment.recover of org.apache.kafka.storage.internals.log. A crash may leave a torn batch at the
end, or a tail of nonsense where the file had grown before its blocks were written; the checksums tell. Beyond
Kafka's rule, a batch whose offsets do not follow those before it is nonsense too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from local_tier.leader_epochs import EpochEntry
from local_tier.producers.batches import producer_batches
from object_format.errors import MalformedBatchError
from object_format.kernels.batches.append import find_epochs
from object_format.kernels.batches.headers import first_out_of_order
from object_format.kernels.batches.layout import BATCH_LENGTH, LENGTH_OVERHEAD
from object_format.record_batch.headers import first_corrupt, scan_until_malformed

if TYPE_CHECKING:
    from local_tier.leader_epochs import LeaderEpochs
    from local_tier.producers.producer_states import ProducerStates
    from local_tier.segment.segment import LogSegment
    from object_format.buffers import Bytes
    from object_format.record_batch.headers import BatchRows

_log = structlog.get_logger(__name__)

WINDOW_BYTES: Final = 4 * 2**20
"""What is read at once; a larger batch is read by itself."""


def recover_segment(segment: LogSegment, states: ProducerStates, epochs: LeaderEpochs) -> int:
    """Build the segment's indexes from its batches and cut off what is not sound; how many bytes went.

    `states` is that of the segment's start and is carried to its end, as `epochs` is. Raises
    SegmentOffsetOverflowError when offsets do not fit the indexes: the segment must be split first.
    """
    segment.forget_entries()
    position, lowest = 0, segment.base_offset
    while position < segment.size:
        window, rows = _sound_batches(segment, position, lowest)
        if not rows.size:
            break
        try:
            batches = producer_batches(window, rows)
        except MalformedBatchError:
            break
        segment.index_recovered(rows, position)
        epochs.assign_recovered(epoch_changes(window, rows))
        for completed in states.replay(batches):
            segment.note_completed(completed, states.last_stable_offset(completed))
            states.complete(completed)
        lowest = _end_offset(rows)
        states.map_end_offset = lowest
        position += int(rows["size"].sum())
    removed = segment.log.truncate(position)
    if removed:
        _log.warning("segment_tail_cut", segment=str(segment.path), at=position, bytes=removed)
    segment.become_inactive()
    return removed


def epoch_changes(data: Bytes, rows: BatchRows) -> list[EpochEntry]:
    """The leader epochs of batches, each with the base offset of the first batch of a run that has it."""
    entries = np.empty((rows.size, 2), np.int64)
    count = find_epochs(data, rows, entries)
    return [EpochEntry(epoch, offset) for epoch, offset in entries[:count].tolist()]


def _sound_batches(segment: LogSegment, position: int, lowest: int) -> tuple[Bytes, BatchRows]:
    """The next batches, and the rows of those before the first that is not sound."""
    window = segment.log.read(position, WINDOW_BYTES)
    rows, _, _ = scan_until_malformed(window)
    if not rows.size and window.size == WINDOW_BYTES:
        length = int.from_bytes(window[BATCH_LENGTH : BATCH_LENGTH + 4].tobytes(), "big", signed=True)
        if WINDOW_BYTES < LENGTH_OVERHEAD + length <= segment.size - position:
            window = segment.log.read(position, LENGTH_OVERHEAD + length)
            rows, _, _ = scan_until_malformed(window)
    disorder = first_out_of_order(rows, 0, lowest) if rows.size else -1
    if disorder >= 0:
        rows = rows[:disorder]
    return window, rows[: first_corrupt(window, rows)]


def _end_offset(rows: BatchRows) -> int:
    return int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]) + 1
