"""Opening a log: leftovers are resolved, segments loaded, and what may be torn is recovered.

Source: LogLoader of org.apache.kafka.storage.internals.log. With the mark of a clean shutdown nothing is read
but what indexes and snapshots say. Without it, each segment from the one of the recovery point on is read
through; where one is cut, those behind it go.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from local_tier.errors import CorruptIndexError, SegmentOffsetOverflowError
from local_tier.files import file_names
from local_tier.log.leftovers import resolve_leftovers
from local_tier.log.producer_rebuild import rebuild_producer_state
from local_tier.log.segment_files import delete_segments, delete_snapshots, split_segment
from local_tier.producers.producer_states import ProducerStates
from local_tier.segment.mapped_index import MAX_RELATIVE_OFFSET
from local_tier.segment.recovery import recover_segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from local_tier.leader_epochs import LeaderEpochs
    from local_tier.log.log_home import LogHome
    from local_tier.segment.segment import LogSegment
    from local_tier.segment.segments import LogSegments

_log = structlog.get_logger(__name__)

_OPEN_END: Final = 2**63 - 1


class LoadedOffsets(NamedTuple):
    """Where a log that was opened begins, is durable to, and ends."""

    log_start_offset: int
    recovery_point: int
    log_end_offset: int


class LogLoader:
    """Loads one log into `segments`, `states` and `epochs`, which are empty but for what their files say.

    `log_start_offset` and `recovery_point` are those of the directory's checkpoints, the latter None where it
    is unknown. `on_remaining` is told how many segments are still to be read.
    """

    def __init__(
        self,
        home: LogHome,
        segments: LogSegments,
        states: ProducerStates,
        epochs: LeaderEpochs,
        *,
        log_start_offset: int,
        recovery_point: int | None,
        had_clean_shutdown: bool,
        on_remaining: Callable[[int], None],
    ) -> None:
        self._home = home
        self._segments = segments
        self._states = states
        self._epochs = epochs
        self._log_start_offset = log_start_offset
        self._recovery_point = recovery_point or 0
        # What a clean has taken out looks as if it were lost. The clean notes the recovery point first, so
        # nothing above a known one was cleaned; by Kafka it may have been, while its checkpoint still said 0.
        may_be_cleaned = recovery_point is None or (home.config.compact and not recovery_point)
        self._gaps_are_losses = not may_be_cleaned
        self._had_clean_shutdown = had_clean_shutdown
        self._on_remaining = on_remaining
        self._recovered: ProducerStates | None = None  # of the segment that was read last

    def load(self) -> LoadedOffsets:
        """Open the log; the caller reports an OSError as a failure of the disk."""
        resolve_leftovers(self._home)
        recovery_point, end_offset = self._load_and_recover()
        self._segments.active.resize_indexes()
        start = max(self._log_start_offset, self._segments.base_offsets[0])
        self._epochs.truncate_from_end(end_offset)
        self._epochs.truncate_from_start(self._log_start_offset)
        self._states.delete_stray_snapshots(self._segments.base_offsets)
        if self._recovered is not None and self._recovered.map_end_offset == end_offset:
            self._states.adopt(self._recovered)
        rebuild_producer_state(
            self._states,
            self._segments,
            log_start_offset=start,
            end_offset=end_offset,
            now_ms=self._home.clock.now_ms(),
            had_clean_shutdown=self._had_clean_shutdown,
        )
        return LoadedOffsets(start, recovery_point, end_offset)

    def _load_and_recover(self) -> tuple[int, int]:
        while True:
            try:
                self._load_segments()
                return self._recover()
            except _TooWide as error:
                self._segments.add(error.segment)
                split_segment(self._home, self._segments, error.segment)

    def _load_segments(self) -> None:
        """In the order of offsets: a transaction may span segments."""
        home = self._home
        self._segments.close()
        self._segments.clear()
        names = home.fs.list_dir(home.directory)
        parsed = [found for found in map(file_names.parse_segment_file, names) if found is not None]
        bases = sorted(base for base, kind in parsed if kind == file_names.LOG)
        for orphan, kind in parsed:
            if kind not in {file_names.LOG, file_names.SNAPSHOT} and orphan not in bases:
                path = file_names.segment_file(home.directory, orphan, kind)
                _log.warning("orphaned_index_deleted", file=str(path))
                home.fs.unlink(path)
        present = set(parsed)
        for base, end in pairwise([*bases, _OPEN_END]):
            segment = home.open_segment(base)
            is_flushed = end <= self._recovery_point
            if (is_flushed or self._had_clean_shutdown) and not self._indexes_are_sound(segment, present):
                self._recover_segment(segment)
            self._segments.add(segment)

    def _indexes_are_sound(self, segment: LogSegment, present: set[tuple[int, str]]) -> bool:
        """Asked only where no recovery builds them anew in any case."""
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
            segment.release_indexes()
        return True

    def _recover_segment(self, segment: LogSegment) -> int:
        home = self._home
        states = ProducerStates(home.fs, home.directory, where=home.where)
        rebuild_producer_state(
            states,
            self._segments,
            log_start_offset=self._log_start_offset,
            end_offset=segment.base_offset,
            now_ms=home.clock.now_ms(),
        )
        try:
            removed = recover_segment(segment, states, self._epochs)
        except SegmentOffsetOverflowError as error:
            raise _TooWide(segment) from error
        states.take_snapshot()
        self._recovered = states
        return removed

    def _recover(self) -> tuple[int, int]:
        """The recovery point and the log end offset, once all segments are sound."""
        if not self._had_clean_shutdown:
            self._recover_unflushed()
        self._drop_all_below_start()
        if not len(self._segments):
            self._segments.add(self._home.open_segment(self._log_start_offset, is_new=True))
            return min(self._recovery_point, self._log_start_offset), self._log_start_offset
        end_offset = self._segments.active.next_offset()
        if self._had_clean_shutdown:
            return end_offset, end_offset
        # only a flush moves the recovery point on: bytes that were read may still be in memory alone
        return min(self._recovery_point, end_offset), end_offset

    def _recover_unflushed(self) -> None:
        unflushed = self._segments.values(self._recovery_point, _OPEN_END)
        for index, segment in enumerate(unflushed):
            self._on_remaining(len(unflushed) - index)
            behind = unflushed[index + 1 :]
            if self._recover_segment(segment) or (behind and self._has_lost_its_end(segment, behind[0])):
                self._drop(list(behind))
                break
        self._on_remaining(0)

    def _has_lost_its_end(self, segment: LogSegment, following: LogSegment) -> bool:
        """Whether batches are missing between two segments: a loss of power may take whole ones.

        A segment begins where the one before it ended, but for those that a clean has thinned, which are not
        told from others without a recovery point. What is too wide for one segment was never in it.
        """
        if not self._gaps_are_losses:
            return False
        if following.base_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return False
        end_offset = segment.next_offset()
        if end_offset >= following.base_offset:
            return False
        _log.warning(
            "segment_end_lost", segment=str(segment.path), end=end_offset, next=following.base_offset
        )
        return True

    def _drop_all_below_start(self) -> None:
        """A log that ends before its start has lost files: what is left of it is of no use."""
        if not len(self._segments):
            return
        end_offset = self._segments.active.next_offset()
        if end_offset >= self._log_start_offset:
            return
        _log.warning("log_lost", log=self._home.where, end=end_offset, start=self._log_start_offset)
        self._drop(list(self._segments.all))
        self._epochs.clear()
        self._states.truncate_fully_and_start_at(self._log_start_offset)

    def _drop(self, doomed: list[LogSegment]) -> None:
        for segment in doomed:
            self._segments.remove(segment.base_offset)
        delete_segments(self._home, doomed)
        self._states.snapshots.reload()
        delete_snapshots(self._home, self._states.snapshots, doomed)


class _TooWide(Exception):  # noqa: N818 -- control flow inside this module, and no error of anybody's
    """A segment must be split before it can be loaded."""

    def __init__(self, segment: LogSegment) -> None:
        super().__init__(str(segment.path))
        self.segment = segment
