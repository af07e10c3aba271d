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

from local_tier.files.file_names import CLEANED, DELETED, LOG, SWAP, parse_segment_file
from local_tier.segment.append_file import AppendFile
from local_tier.segment.batch_scan import WINDOW_BYTES, end_of_batches, scan_file
from local_tier.segment.mapped_index import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local_tier.log.log_context import LogContext
    from local_tier.producers.snapshots import ProducerSnapshots
    from local_tier.segment.log_segment import LogSegment
    from local_tier.segment.log_segments import LogSegments

_log = structlog.get_logger(__name__)


def delete_segments(
    context: LogContext, segments_to_delete: Sequence[LogSegment], *, immediately: bool = False
) -> None:
    """Rename segments that are no longer listed to `.deleted`, and unlink them later (or `at_once`)."""
    for segment in segments_to_delete:
        if segment.suffix != DELETED:
            segment.change_suffix(DELETED)

    def unlink() -> None:
        for segment in segments_to_delete:
            segment.update_directory(context.directory)  # it may have another name by then
            segment.delete()

    if immediately:
        unlink()
    elif segments_to_delete:
        context.schedule_once("delete-segments", unlink, context.config.file_delete_delay_ms)


def delete_snapshots(context: LogContext, snapshots: ProducerSnapshots, gone: Sequence[LogSegment]) -> None:
    """Delete the producer snapshots of segments that are gone, as late as those."""
    marked = [snapshots.mark_deleted(segment.base_offset) for segment in gone]
    paths = [path for path in marked if path is not None]

    def unlink() -> None:
        for path in paths:
            # the directory may have another name by then
            context.file_system.unlink(context.directory / path.name, missing_ok=True)

    if paths:
        context.schedule_once("delete-snapshots", unlink, context.config.file_delete_delay_ms)


def new_cleaned_segment(context: LogContext, base_offset: int) -> LogSegment:
    """An empty segment to write to that is not part of the log; an older one of that name is deleted."""
    context.delete_segment_files(base_offset, CLEANED)
    return context.open_segment(base_offset, suffix=CLEANED, is_new=True)


def replace_segments(
    context: LogContext, segments: LogSegments, new: Sequence[LogSegment], old: Sequence[LogSegment]
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
    context.file_system.sync_dir(context.directory)
    for segment in fresh:
        segments.add(segment)
    bases = {segment.base_offset for segment in fresh}
    gone = [segment for segment in stale if segment.base_offset not in bases]
    for segment in gone:
        segments.remove(segment.base_offset)
    delete_segments(context, stale)
    for segment in fresh:
        segment.change_suffix("")
    context.file_system.sync_dir(context.directory)
    return gone


def split_segment(context: LogContext, segments: LogSegments, wide: LogSegment) -> list[LogSegment]:
    """Replace a segment whose offsets span too much by several; they are returned (KAFKA-6264)."""
    _log.info("segment_split", segment=str(wide.path))
    parts: list[LogSegment] = []
    try:
        _copy_in_parts(context, wide, parts)
        for part in parts:
            part.become_inactive()
            part.sync()
            status = context.file_system.status(wide.path)
            if status is not None:
                part.set_modified(status.modified_ms)
    except BaseException:
        for part in parts:
            part.delete()
        raise
    replace_segments(context, segments, parts, [wide])
    return parts


def _copy_in_parts(context: LogContext, wide: LogSegment, parts: list[LogSegment]) -> None:
    """Copy batches in order; a new part begins where offsets are too far from the last one's base."""
    for batches in scan_file(wide.log, 0, WINDOW_BYTES):
        data, rows = batches.data, batches.rows
        last_offsets = rows["base_offset"] + rows["last_offset_delta"]
        start = 0
        while start < rows.size:
            if not parts or int(last_offsets[start]) - parts[-1].base_offset > MAX_RELATIVE_OFFSET:
                parts.append(new_cleaned_segment(context, int(rows["base_offset"][start])))
            rest = last_offsets[start:] - parts[-1].base_offset <= MAX_RELATIVE_OFFSET
            end = start + int(np.count_nonzero(rest))
            first, last = rows[start], rows[end - 1]
            piece = data.data[int(first["position"]) : int(last["position"]) + int(last["size"])]
            parts[-1].append(int(last_offsets[end - 1]), piece, rows[start:end])
            start = end


def recover_interrupted_replacements(context: LogContext) -> None:
    """Finish or undo what was under way: afterwards no file has a suffix.

    `.deleted` goes. `.cleaned` goes, and with it each `.swap` at or behind the first of them: that exchange
    had not come so far that it could be finished. Other `.swap` files are whole: the segments that they
    cover go, and they become segments.
    """
    _delete(context, [name for name in _names(context) if name.endswith(DELETED)])
    cleaned = _with_suffix(context, CLEANED)
    first_cleaned = min(cleaned.values(), default=2**63)
    swaps = _with_suffix(context, SWAP)
    _delete(context, [name for name, offset in swaps.items() if offset >= first_cleaned])
    _delete(context, list(cleaned))
    whole = {name: offset for name, offset in swaps.items() if offset < first_cleaned}
    if whole:
        _complete_swap(context, whole)
        context.file_system.sync_dir(context.directory)


def _complete_swap(context: LogContext, swaps: dict[str, int]) -> None:
    """Delete what the new segments cover, then take their suffix away: of the batches first."""
    logs = [name for name in swaps if name.endswith(LOG + SWAP)]
    spans = [(swaps[name], _end_offset(context, name, swaps[name])) for name in logs]
    first, end = min((s[0] for s in spans), default=2**63), max((s[1] for s in spans), default=-1)
    for name in _names(context):
        parsed = parse_segment_file(name)
        if parsed is not None and first <= parsed[0] < end:
            _delete(context, [name])
    for name in [*logs, *(name for name in swaps if name not in logs)]:
        _log.info("swap_completed", log=context.log_name, file=name)
        context.file_system.rename(context.directory / name, context.directory / name.removesuffix(SWAP))


def _end_offset(context: LogContext, name: str, base_offset: int) -> int:
    file = AppendFile(context.file_system, context.directory / name)
    try:
        return end_of_batches(file, 0, base_offset)
    finally:
        file.close()


def _names(context: LogContext) -> list[str]:
    return context.file_system.list_dir(context.directory)


def _with_suffix(context: LogContext, suffix: str) -> dict[str, int]:
    """Names of segments' files with that suffix, and their base offsets."""
    parsed = {
        name: parse_segment_file(name.removesuffix(suffix))
        for name in _names(context)
        if name.endswith(suffix)
    }
    return {name: found[0] for name, found in parsed.items() if found is not None}


def _delete(context: LogContext, names: list[str]) -> None:
    for name in names:
        _log.info("temporary_file_deleted", log=context.log_name, file=name)
        context.file_system.unlink(context.directory / name, missing_ok=True)
