"""Opening a log: resolve interrupted replacements, load the segments, and recover those that may be damaged.

After a clean shutdown, only indexes and snapshots are read. Otherwise each segment from the one of the
recovery point on is read completely. If one must be cut, all later segments are deleted. Their removal is
durable before the cut, and the cut before anything is appended. A second power loss therefore brings no
dropped batch back.

Source: LogLoader of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from local_tier.errors import CorruptIndexError, InconsistentTopicError, SegmentOffsetOverflowError
from local_tier.files import file_names
from local_tier.files.metadata_files import read_topic_id, write_topic_id
from local_tier.log.leader_epoch_file_cache import LeaderEpochFileCache
from local_tier.log.local_log import LocalLog
from local_tier.log.log_context import LogContext
from local_tier.log.recovery import cut_segment, rebuild_epochs, rebuild_producer_state, recover_segment
from local_tier.log.segment_replacement import (
    delete_segments,
    delete_snapshots,
    recover_interrupted_replacements,
    split_segment,
)
from local_tier.log.unified_log import UnifiedLog
from local_tier.producers.producer_state_manager import PRODUCER_EXPIRY_MS, ProducerStateManager
from local_tier.segment.batch_scan import refuse_legacy
from local_tier.segment.log_segments import LogSegments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.scheduler import Scheduler
    from local_tier.segment.log_segment import LogSegment
    from local_tier.topic_partition import TopicPartition

_log = structlog.get_logger(__name__)

_OPEN_END: Final = 2**63 - 1


class LoadedOffsets(NamedTuple):
    """The offsets of a log after it was loaded."""

    log_start_offset: int
    recovery_point: int
    log_end_offset: int


class LogLoader:
    """Loads one log into `segments`, `states` and `epochs`.

    `log_start_offset` and `recovery_point` come from the checkpoints of the log directory.
    `on_segments_remaining` gets the number of segments that must still be read.
    """

    def __init__(
        self,
        context: LogContext,
        segments: LogSegments,
        states: ProducerStateManager,
        epochs: LeaderEpochFileCache,
        *,
        log_start_offset: int,
        recovery_point: int,
        had_clean_shutdown: bool,
        on_segments_remaining: Callable[[int], None],
    ) -> None:
        self._context = context
        self._segments = segments
        self._producer_states = states
        self._leader_epochs = epochs
        self._log_start_offset = log_start_offset
        self._recovery_point = recovery_point
        self._had_clean_shutdown = had_clean_shutdown
        self._on_remaining = on_segments_remaining
        self._recovered: ProducerStateManager | None = None  # at the end of the last recovered segment

    def load(self) -> LoadedOffsets:
        """Load the log. The caller reports an OSError as a failure of the disk."""
        recover_interrupted_replacements(self._context)
        recovery_point, end_offset = self._load_and_recover()
        self._segments.active.resize_indexes()
        if self._leader_epochs.is_lost:
            rebuild_epochs(self._leader_epochs, self._segments)
        start = max(self._log_start_offset, self._segments.base_offsets[0])
        self._leader_epochs.truncate_from_end(end_offset)
        self._leader_epochs.truncate_from_start(self._log_start_offset)
        self._producer_states.snapshots.delete_stray_snapshots(self._segments.base_offsets)
        if self._recovered is not None and self._recovered.map_end_offset == end_offset:
            self._producer_states.copy_from(self._recovered)
        rebuild_producer_state(
            self._producer_states,
            self._segments,
            log_start_offset=start,
            end_offset=end_offset,
            now_ms=self._context.clock.now_ms(),
            had_clean_shutdown=self._had_clean_shutdown,
        )
        return LoadedOffsets(start, recovery_point, end_offset)

    def _load_and_recover(self) -> tuple[int, int]:
        while True:
            try:
                self._load_segments()
                return self._recover()
            except _SegmentOverflow as error:
                self._segments.add(error.segment)
                split_segment(self._context, self._segments, error.segment)

    def _load_segments(self) -> None:
        """Load the segments in offset order, as a transaction may span several."""
        context = self._context
        self._segments.close()
        self._segments.clear()
        names = context.file_system.list_dir(context.directory)
        parsed = [found for found in map(file_names.parse_segment_file, names) if found is not None]
        bases = sorted(base for base, kind in parsed if kind == file_names.LOG)
        for orphan, kind in parsed:
            if kind not in {file_names.LOG, file_names.SNAPSHOT} and orphan not in bases:
                path = file_names.segment_file(context.directory, orphan, kind)
                _log.warning("orphaned_index_deleted", file=str(path))
                context.file_system.unlink(path)
        present = set(parsed)
        for base, end in pairwise([*bases, _OPEN_END]):
            segment = context.open_segment(base)
            refuse_legacy(segment.log, 0)
            is_flushed = end <= self._recovery_point
            if (is_flushed or self._had_clean_shutdown) and not self._indexes_are_sound(segment, present):
                cut_segment(segment, self._recover_segment(segment))
            self._segments.add(segment)

    def _indexes_are_sound(self, segment: LogSegment, present: set[tuple[int, str]]) -> bool:
        """Check the indexes of a segment that will not be recovered anyway."""
        base = segment.base_offset
        if not {(base, file_names.OFFSET_INDEX), (base, file_names.TIME_INDEX)} <= present:
            _log.warning("index_missing", segment=str(segment.path))
            return False
        try:
            segment.transaction_index.sanity_check()
            segment.offset_index.sanity_check()
            segment.time_index.sanity_check()
        except CorruptIndexError as error:
            _log.warning("index_corrupt", segment=str(segment.path), reason=str(error))
            return False
        finally:
            segment.close_indexes()
        return True

    def _recover_segment(self, segment: LogSegment) -> int:
        """Rebuild a segment's indexes; return the position after its last valid batch."""
        context = self._context
        states = ProducerStateManager(context.file_system, context.directory, log_name=context.log_name)
        rebuild_producer_state(
            states,
            self._segments,
            log_start_offset=self._log_start_offset,
            end_offset=segment.base_offset,
            now_ms=context.clock.now_ms(),
        )
        try:
            end = recover_segment(segment, states, self._leader_epochs)
        except SegmentOffsetOverflowError as error:
            raise _SegmentOverflow(segment) from error
        states.take_snapshot()
        self._recovered = states
        return end

    def _recover(self) -> tuple[int, int]:
        """Return the recovery point and the log end offset after all segments were recovered."""
        if not self._had_clean_shutdown:
            self._recover_unflushed()
        self._discard_log_below_start()
        if not len(self._segments):
            first = self._context.open_segment(self._log_start_offset)
            first.mark_appended(None)
            self._segments.add(first)
            return min(self._recovery_point, self._log_start_offset), self._log_start_offset
        end_offset = self._segments.active.next_offset()
        if self._had_clean_shutdown:
            return end_offset, end_offset
        # only a flush advances the recovery point: bytes that were read may be in the page cache only
        return min(self._recovery_point, end_offset), end_offset

    def _recover_unflushed(self) -> None:
        unflushed = self._segments.values(self._recovery_point, _OPEN_END)
        for index, segment in enumerate(unflushed):
            self._on_remaining(len(unflushed) - index)
            following = unflushed[index + 1 :]
            end = self._recover_segment(segment)
            is_torn = end < segment.size
            if is_torn:
                self._discard(list(following))
            cut_segment(segment, end)
            if not is_torn and self._lacks_batches_before(segment, following):
                self._discard(list(following))
                is_torn = True
            if is_torn:
                break
        self._on_remaining(0)

    def _lacks_batches_before(self, segment: LogSegment, following: Sequence[LogSegment]) -> bool:
        """Return True if a power loss removed batches between a segment and those that follow.

        A gap in the offsets alone is no proof: a cleaning leaves gaps, too, in this engine and in Kafka's. It
        is one only between files that this engine created for its own appends, each where the one before it
        ended. A cleaning replaces the files, and Kafka does not mark its own.
        """
        if not following or segment.next_offset() >= following[0].base_offset:
            return False
        if not segment.is_appended or not all(b.continues(a) for a, b in pairwise([segment, *following])):
            return False
        _log.warning(
            "batches_missing_between_segments",
            segment=str(segment.path),
            end=segment.next_offset(),
            next=following[0].base_offset,
        )
        return True

    def _discard_log_below_start(self) -> None:
        """Drop the whole log if it ends below its start: its files were lost, and the rest is of no use."""
        if not len(self._segments):
            return
        end_offset = self._segments.active.next_offset()
        if end_offset >= self._log_start_offset:
            return
        _log.warning(
            "log_ends_below_its_start",
            log=self._context.log_name,
            end=end_offset,
            start=self._log_start_offset,
        )
        self._discard(list(self._segments.all))
        self._leader_epochs.clear()
        self._producer_states.truncate_fully_and_start_at(self._log_start_offset)

    def _discard(self, segments_to_delete: list[LogSegment]) -> None:
        for segment in segments_to_delete:
            self._segments.remove(segment.base_offset)
        delete_segments(self._context, segments_to_delete)
        if segments_to_delete:
            self._context.file_system.sync_dir(self._context.directory)
        self._producer_states.snapshots.reload()
        delete_snapshots(self._context, self._producer_states.snapshots, segments_to_delete)


class _SegmentOverflow(Exception):  # noqa: N818 -- control flow within this module, not an error
    """A segment must be split before it can be loaded."""

    def __init__(self, segment: LogSegment) -> None:
        super().__init__(str(segment.path))
        self.segment = segment


def open_log(
    file_system: FileSystem,
    directory: Path,
    config: LogConfig,
    *,
    topic_partition: TopicPartition,
    clock: Clock,
    ids: Ids,
    scheduler: Scheduler,
    on_failure: Callable[[Path, OSError], None],
    log_start_offset: int,
    recovery_point: int,
    had_clean_shutdown: bool,
    topic_id: UUID | None = None,
    on_segments_remaining: Callable[[int], None] = lambda _: None,
    producer_expiry_ms: int = PRODUCER_EXPIRY_MS,
) -> UnifiedLog:
    """Open the log in `directory`, creating the directory if needed, and recover the log if needed.

    `log_start_offset` and `recovery_point` come from the checkpoints of the log directory. The high watermark
    starts at the log start offset; the caller moves it.

    `on_failure` is called with the parent directory when the disk fails. `on_segments_remaining` gets the
    number of segments that must still be read. Raises LogDirectoryOfflineError, and InconsistentTopicError if
    the directory belongs to a topic with another id.
    """
    context = LogContext(
        file_system=file_system,
        directory=directory,
        topic_partition=topic_partition,
        config=config,
        clock=clock,
        ids=ids,
        scheduler=scheduler,
        on_failure=on_failure,
    )
    with context.disk_operation("opening"):
        if file_system.status(directory) is None:
            file_system.make_dir(directory)
            file_system.sync_dir(directory.parent)
        known_id = _check_topic_id(file_system, directory, topic_id)
        segments = LogSegments()
        states = ProducerStateManager(
            file_system, directory, log_name=context.log_name, expiry_ms=producer_expiry_ms
        )
        epochs = LeaderEpochFileCache(file_system, directory, context)
        loader = LogLoader(
            context,
            segments,
            states,
            epochs,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            had_clean_shutdown=had_clean_shutdown,
            on_segments_remaining=on_segments_remaining,
        )
        offsets = loader.load()
    local = LocalLog(
        context, segments, recovery_point=offsets.recovery_point, log_end_offset=offsets.log_end_offset
    )
    return UnifiedLog(
        context, local, states, epochs, log_start_offset=offsets.log_start_offset, topic_id=known_id
    )


def _check_topic_id(file_system: FileSystem, directory: Path, topic_id: UUID | None) -> UUID | None:
    """Return the topic id of the directory, and write it if it is missing: it must precede all records."""
    known = read_topic_id(file_system, directory)
    if known is None and topic_id is not None:
        write_topic_id(file_system, directory, topic_id)
        return topic_id
    if topic_id is not None and known != topic_id:
        raise InconsistentTopicError(
            f"{directory} has the log of topic id {known}, not of {topic_id}",
            remedy="the topic was deleted and created again: move the directory away",
        )
    return known
