"""Deleting segments, and putting new ones in the place of old ones, so that a crash at any step does no harm.

Source: LocalLog of org.apache.kafka.storage.internals.log. The order is what safety hangs on:

1. New segments are written whole under names that end in `.cleaned`. A crash before the next step: they are
   deleted at the next start.
2. They are renamed to `.swap`, the last one first. As long as one `.cleaned` file is left, a start deletes it
   and each `.swap` at or behind it: the old segments are still there.
3. The directory is synced. From here on a start goes forward: it deletes the old files that `.swap` files
   cover, and takes the suffix away.
4. The old segments are renamed to `.deleted`, and unlinked after `file.delete.delay.ms`, when their readers
   are done.
5. The suffix `.swap` is taken away, and the directory synced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import structlog

from local_tier.errors import CorruptLogError
from local_tier.files.file_names import CLEANED, DELETED, SWAP
from local_tier.segment.mapped_index import MAX_RELATIVE_OFFSET
from local_tier.segment.recovery import WINDOW_BYTES
from object_format.record_batch.headers import scan_until_malformed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local_tier.log.log_home import LogHome
    from local_tier.producers.snapshots import ProducerSnapshots
    from local_tier.segment.segment import LogSegment
    from local_tier.segment.segments import LogSegments

_log = structlog.get_logger(__name__)


def delete_segments(home: LogHome, doomed: Sequence[LogSegment], *, at_once: bool = False) -> None:
    """Rename segments that are no longer listed to `.deleted`, and unlink them later (or `at_once`)."""
    for segment in doomed:
        if segment.suffix != DELETED:
            segment.change_suffix(DELETED)

    def unlink() -> None:
        for segment in doomed:
            segment.moved(home.directory)  # it may have another name by then
            segment.delete()

    if at_once:
        unlink()
    elif doomed:
        home.schedule_once("delete-segments", unlink, home.config.file_delete_delay_ms)


def delete_snapshots(home: LogHome, snapshots: ProducerSnapshots, gone: Sequence[LogSegment]) -> None:
    """Delete the producer snapshots of segments that are gone, as late as those."""
    marked = [snapshots.mark_deleted(segment.base_offset) for segment in gone]
    paths = [path for path in marked if path is not None]

    def unlink() -> None:
        for path in paths:
            # the directory may have another name by then
            home.fs.unlink(home.directory / path.name, missing_ok=True)

    if paths:
        home.schedule_once("delete-snapshots", unlink, home.config.file_delete_delay_ms)


def new_cleaned_segment(home: LogHome, base_offset: int) -> LogSegment:
    """An empty segment to write to that is not part of the log; an older one of that name is deleted."""
    home.delete_segment_files(base_offset, CLEANED)
    return home.open_segment(base_offset, suffix=CLEANED, is_new=True)


def replace_segments(
    home: LogHome, segments: LogSegments, new: Sequence[LogSegment], old: Sequence[LogSegment]
) -> list[LogSegment]:
    """Put `new`, whose files are `.cleaned` and synced, in the place of `old`.

    Old segments that left the list meanwhile are passed over: somebody else deletes them. Returns the old
    ones whose base offset no new one has.
    """
    fresh = sorted(new, key=lambda segment: segment.base_offset)
    stale = sorted(
        (segment for segment in old if segments.get(segment.base_offset) is segment),
        key=lambda segment: segment.base_offset,
    )
    for segment in reversed(fresh):
        segment.change_suffix(SWAP)
    home.fs.sync_dir(home.directory)
    for segment in fresh:
        segments.add(segment)
    bases = {segment.base_offset for segment in fresh}
    gone = [segment for segment in stale if segment.base_offset not in bases]
    for segment in gone:
        segments.remove(segment.base_offset)
    delete_segments(home, stale)
    for segment in fresh:
        segment.change_suffix("")
    home.fs.sync_dir(home.directory)
    return gone


def split_segment(home: LogHome, segments: LogSegments, wide: LogSegment) -> list[LogSegment]:
    """Replace a segment whose offsets span too much by several; they are returned (KAFKA-6264)."""
    _log.info("segment_split", segment=str(wide.path))
    parts: list[LogSegment] = []
    try:
        _copy_in_parts(home, wide, parts)
        for part in parts:
            part.become_inactive()
            part.sync()
            status = home.fs.status(wide.path)
            if status is not None:
                part.set_modified(status.modified_ms)
    except BaseException:
        for part in parts:
            part.delete()
        raise
    replace_segments(home, segments, parts, [wide])
    return parts


def _copy_in_parts(home: LogHome, wide: LogSegment, parts: list[LogSegment]) -> None:
    """Copy batches in order; a new part begins where offsets are too far from the last one's base."""
    position = 0
    while position < wide.size:
        window = wide.log.read(position, WINDOW_BYTES)
        rows, _, _ = scan_until_malformed(window)
        if not rows.size:
            window = wide.log.read(position, wide.size - position)
            rows, _, _ = scan_until_malformed(window)
            rows = rows[:1]
        if not rows.size:
            raise CorruptLogError(f"there is no record batch at byte {position} of {wide.path}")
        last = rows["base_offset"] + rows["last_offset_delta"]
        if not parts or int(last[0]) - parts[-1].base_offset > MAX_RELATIVE_OFFSET:
            parts.append(new_cleaned_segment(home, int(rows["base_offset"][0])))
        fitting = int(np.count_nonzero(last - parts[-1].base_offset <= MAX_RELATIVE_OFFSET))
        rows = rows[:fitting]
        size = int(rows["size"].sum())
        parts[-1].append(int(last[fitting - 1]), window[:size].data, rows)
        position += size
