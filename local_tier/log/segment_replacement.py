"""Deleting and replacing segments so that a crash at any step does no harm.

The steps of a replacement, in the order on which safety depends:

1. New segments are written completely, in files with the suffix `.cleaned`. After a crash before the next
   step, they are deleted at the next start.
2. Their files are renamed to `.swap`, the last segment first. While a `.cleaned` file is left, a start
   deletes it and each `.swap` file at or after its offset: the old segments still exist.
3. The directory is synced. From here on a start completes the replacement: it deletes the files of old
   segments that the `.swap` files cover, and removes the suffix.
4. The old segments are renamed to `.deleted`. They are unlinked after `file.delete.delay.ms`, when their
   readers have finished.
5. The suffix `.swap` is removed and the directory is synced.

Source: LocalLog and LogLoader of org.apache.kafka.storage.internals.log; KAFKA-6264.
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
    """Rename segments, which are no longer listed, to `.deleted`, and unlink them later or `immediately`."""
    for segment in segments_to_delete:
        if segment.suffix != DELETED:
            segment.change_suffix(DELETED)

    def unlink() -> None:
        for segment in segments_to_delete:
            segment.update_directory(context.directory)  # it may have been renamed since
            segment.delete()

    if immediately:
        unlink()
    elif segments_to_delete:
        context.schedule_once("delete-segments", unlink, context.config.file_delete_delay_ms)


def delete_snapshots(
    context: LogContext, snapshots: ProducerSnapshots, removed_segments: Sequence[LogSegment]
) -> None:
    """Delete the producer snapshots of deleted segments after the same delay."""
    marked = [snapshots.mark_deleted(segment.base_offset) for segment in removed_segments]
    paths = [path for path in marked if path is not None]

    def unlink() -> None:
        for path in paths:
            # the directory may have been renamed since
            context.file_system.unlink(context.directory / path.name, missing_ok=True)

    if paths:
        context.schedule_once("delete-snapshots", unlink, context.config.file_delete_delay_ms)


def new_cleaned_segment(context: LogContext, base_offset: int) -> LogSegment:
    """Create an empty segment that is not part of the log. Older files of that name are deleted."""
    context.delete_segment_files(base_offset, CLEANED)
    return context.open_segment(base_offset, suffix=CLEANED)


def replace_segments(
    context: LogContext, segments: LogSegments, new: Sequence[LogSegment], old: Sequence[LogSegment]
) -> list[LogSegment]:
    """Replace the segments `old` by `new`, which are synced and have the suffix `.cleaned`.

    Old segments that have left the list are skipped: another operation deletes them. Returns the old segments
    whose base offset no new segment has.
    """
    new_segments = sorted(new, key=lambda segment: segment.base_offset)
    old_segments = sorted(
        (segment for segment in old if segments.get(segment.base_offset) is segment),
        key=lambda segment: segment.base_offset,
    )
    for segment in reversed(new_segments):
        segment.change_suffix(SWAP)
    context.file_system.sync_dir(context.directory)
    for segment in new_segments:
        segments.add(segment)
    bases = {segment.base_offset for segment in new_segments}
    removed_segments = [segment for segment in old_segments if segment.base_offset not in bases]
    for segment in removed_segments:
        segments.remove(segment.base_offset)
    delete_segments(context, old_segments)
    for segment in new_segments:
        segment.change_suffix("")
    context.file_system.sync_dir(context.directory)
    return removed_segments


def split_segment(context: LogContext, segments: LogSegments, wide: LogSegment) -> list[LogSegment]:
    """Replace a segment whose offsets span too much by several segments, and return them (KAFKA-6264)."""
    _log.debug("segment_split", segment=str(wide.path))
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
    """Copy the batches in order. A new part begins where an offset is too far from the last part's base."""
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
    """Complete or undo the replacements that a crash interrupted. Afterwards no file has a suffix.

    - `.deleted` files are deleted.
    - `.cleaned` files are deleted, and so is each `.swap` file at or after the first of them: its replacement
      cannot be completed.
    - Other `.swap` files are complete: the segments that they cover are deleted, and they become segments.
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
    """Delete what the new segments cover, then remove the suffix, of the files of batches first."""
    logs = [name for name in swaps if name.endswith(LOG + SWAP)]
    spans = [(swaps[name], _end_offset(context, name, swaps[name])) for name in logs]
    first, end = min((s[0] for s in spans), default=2**63), max((s[1] for s in spans), default=-1)
    for name in _names(context):
        parsed = parse_segment_file(name)
        if parsed is not None and first <= parsed[0] < end:
            _delete(context, [name])
    for name in [*logs, *(name for name in swaps if name not in logs)]:
        _log.debug("swap_completed", log=context.log_name, file=name)
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
    """Return the names of segments' files with that suffix, and their base offsets."""
    parsed = {
        name: parse_segment_file(name.removesuffix(suffix))
        for name in _names(context)
        if name.endswith(suffix)
    }
    return {name: found[0] for name, found in parsed.items() if found is not None}


def _delete(context: LogContext, names: list[str]) -> None:
    for name in names:
        _log.debug("temporary_file_deleted", log=context.log_name, file=name)
        context.file_system.unlink(context.directory / name, missing_ok=True)
