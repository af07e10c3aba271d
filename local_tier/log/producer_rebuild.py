"""Producer state of a log at an offset: from the newest snapshot below it, and the batches since.

Source: UnifiedLog.rebuildProducerState of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from local_tier.producers.batches import producer_batches
from object_format.buffers import readable
from object_format.record_batch.headers import scan_batches

if TYPE_CHECKING:
    from local_tier.producers.producer_states import ProducerStates
    from local_tier.segment.segment import LogSegment
    from local_tier.segment.segments import LogSegments

_WINDOW_BYTES: Final = 4 * 2**20


def rebuild_producer_state(
    states: ProducerStates,
    segments: LogSegments,
    *,
    log_start_offset: int,
    end_offset: int,
    now_ms: int,
    had_clean_shutdown: bool = False,
) -> None:
    """Carry `states` to `end_offset`, and write a snapshot there.

    After a clean shutdown without any snapshot there are no producers to look for.
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


def _replay(states: ProducerStates, segment: LogSegment, offset: int, end_offset: int) -> None:
    """Only what is in the segment's index of transactions is known of them already; it stays as it is."""
    while offset < end_offset:
        found = segment.read(offset, _WINDOW_BYTES, end_offset=end_offset)
        if found is None or found.next_offset == offset:
            return
        data = readable(found.data)
        for completed in states.replay(producer_batches(data, scan_batches(data))):
            states.complete(completed)
        offset = found.next_offset
        states.map_end_offset = offset
