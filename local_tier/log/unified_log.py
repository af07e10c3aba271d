"""The log of one partition, with Kafka's semantics on top of segments on disk.

One thread at a time changes a log, under its lock. Readers take no lock. The offsets that they see never go
back, except by a truncation of a follower. At all times

    log start offset ≤ last stable offset ≤ high watermark ≤ log end offset

Source: UnifiedLog of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from core.errors import OffsetOutOfRangeError
from local_tier.errors import OffsetsOutOfOrderError
from local_tier.files.file_system import remove_tree
from local_tier.files.process_limits import Reserve, process_limits
from local_tier.log import retention
from local_tier.log.append_checks import (
    CheckedBatches,
    ProducerUpdates,
    check_as_follower,
    check_as_leader,
    check_producers,
)
from local_tier.log.recovery import epoch_changes, rebuild_producer_state
from local_tier.log.segment_replacement import (
    delete_snapshots,
    new_cleaned_segment,
    replace_segments,
    split_segment,
)
from local_tier.producers.producer_state_entry import AppendOrigin, LastRecord, OpenTxn
from local_tier.segment.log_segment import RollParams
from local_tier.segment.mapped_index import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from uuid import UUID

    from typing_extensions import Buffer

    from local_tier.config import LogConfig
    from local_tier.log.leader_epoch_file_cache import EpochEntry, LeaderEpochFileCache
    from local_tier.log.local_log import LocalLog, LogRead
    from local_tier.log.log_context import LogContext
    from local_tier.log.retention import SegmentPredicate
    from local_tier.producers.producer_state_entry import ProducerStateEntry
    from local_tier.producers.producer_state_manager import ProducerStateManager
    from local_tier.segment.log_segment import LogSegment
    from local_tier.segment.time_index import TimestampOffset
    from local_tier.segment.transaction_index import AbortedTxn
    from local_tier.topic_partition import TopicPartition
    from object_format.record_batch.append_rules import AppendRules

_log = structlog.get_logger(__name__)

_NO_TIMESTAMP = -1
_ROLL_RESERVE = Reserve(descriptors=8, maps=4)
"""At least what a roll takes: the log, two indexes with their maps, a snapshot, and the directory.

The indexes of the segment before it are mapped again.
"""


class Isolation(Enum):
    """The end of what a reader may see."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    TXN_COMMITTED = "txn_committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAppendInfo:
    """The offsets of appended batches, or of the first append of a duplicate.

    `log_append_time` is -1 unless the log assigns the timestamps.
    """

    first_offset: int
    last_offset: int
    log_start_offset: int
    log_append_time: int = _NO_TIMESTAMP
    is_duplicate: bool = False


class UnifiedLog:
    """The log of one partition. `log_loader.open_log` opens it."""

    def __init__(
        self,
        context: LogContext,
        local: LocalLog,
        states: ProducerStateManager,
        epochs: LeaderEpochFileCache,
        *,
        log_start_offset: int,
        topic_id: UUID | None,
    ) -> None:
        self.topic_id = topic_id
        self._context = context
        self._local_log = local
        self._producer_states = states
        self._leader_epochs = epochs
        self._lock = threading.RLock()
        self._flush_lock = threading.Lock()
        self._log_start_offset = log_start_offset
        self._high_watermark = log_start_offset
        self._first_unstable_offset: int | None = None
        self._update_first_unstable_offset()

    @property
    def topic_partition(self) -> TopicPartition:
        """The name of the log."""
        return self._context.topic_partition

    @property
    def directory(self) -> Path:
        """The partition directory."""
        return self._context.directory

    @property
    def config(self) -> LogConfig:
        """The configuration of the log."""
        return self._context.config

    @property
    def is_offline(self) -> bool:
        """True if the disk has failed."""
        return self._context.is_offline

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._local_log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """The offset below which records are replicated and never truncated."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset below which no transaction is open: the end for readers of committed data."""
        high_watermark, unstable = self._high_watermark, self._first_unstable_offset
        return high_watermark if unstable is None else min(high_watermark, unstable)

    @property
    def recovery_point(self) -> int:
        """The offset below which records are durable."""
        return self._local_log.recovery_point

    @property
    def unflushed_records(self) -> int:
        """The number of offsets that are not durable yet."""
        return self._local_log.unflushed_records

    @property
    def last_flush_ms(self) -> int:
        """The time when the recovery point last advanced, in milliseconds since the Unix epoch."""
        return self._local_log.last_flush_ms

    @property
    def size(self) -> int:
        """The size of all segments in bytes."""
        return self._local_log.segments.size_in_bytes

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """The segments in offset order; the last is the active one."""
        return self._local_log.segments.all

    @property
    def active_segment(self) -> LogSegment:
        """The segment that takes appends."""
        return self._local_log.segments.active

    @property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """The leader epochs with their first offsets."""
        return self._leader_epochs.entries

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        *,
        at_least_one: bool = True,
    ) -> LogRead:
        """Read whole batches from the one that contains or follows `offset`, as far as the isolation allows.

        Returns at most `max_bytes`, but with `at_least_one` also a first batch that is larger. With
        TXN_COMMITTED, `aborted` of the result names the transactions whose records the reader must skip.
        Raises OffsetOutOfRangeError below the log start offset and above the log end offset.
        """
        self._context.check_open()
        if offset < self._log_start_offset:
            raise self._out_of_range(offset)
        with_aborted = isolation is Isolation.TXN_COMMITTED
        end_offset = {
            Isolation.LOG_END: self.log_end_offset,
            Isolation.HIGH_WATERMARK: self._high_watermark,
            Isolation.TXN_COMMITTED: self.last_stable_offset,
        }[isolation]
        with self._context.disk_operation("read"), process_limits.refusing():
            return self._local_log.read(
                offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one, with_aborted=with_aborted
            )

    def collect_aborted(self, first_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap [first_offset, end_offset)."""
        with self._context.disk_operation("read"), process_limits.refusing():
            return self._local_log.collect_aborted(first_offset, end_offset)

    def offset_for_timestamp(self, timestamp: int, first_offset: int = 0) -> TimestampOffset | None:
        """Return the first record from `first_offset` on with at least that timestamp, or None."""
        self._context.check_open()
        with self._context.disk_operation("read"), process_limits.refusing():
            first = max(first_offset, self._log_start_offset)
            for segment in self.segments:
                if segment.largest_timestamp >= timestamp:
                    found = segment.find_offset_by_timestamp(timestamp, first)
                    if found is not None:
                        return found
            return None

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Return the first record with the largest timestamp, or None if no record has a timestamp.

        As in Kafka, it may be below the log start offset as long as its segment exists.
        """
        self._context.check_open()
        with self._context.disk_operation("read"), process_limits.refusing():
            segment = max(self.segments, key=lambda segment: segment.max_timestamp_and_offset.timestamp)
            timestamp = segment.max_timestamp_and_offset.timestamp
            if timestamp < 0:
                return None
            return segment.find_offset_by_timestamp(timestamp, segment.base_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        """Return the last leader epoch at or before `epoch` and its end offset, or -1 for unknown values."""
        return self._leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the leader epoch of the record at `offset`, or None."""
        return self._leader_epochs.epoch_for_offset(offset)

    def segments_between(self, first_offset: int, end_offset: int) -> list[LogSegment]:
        """Return the segments that may have offsets of [first_offset, end_offset)."""
        return list(self._local_log.segments.values(first_offset, end_offset))

    def inactive_segments_from(self, offset: int) -> list[LogSegment]:
        """Return the segments from the one of `offset` on, without the active segment."""
        return list(self._local_log.segments.inactive_from(offset))

    def known_producers(self) -> dict[int, ProducerStateEntry]:
        """Return the known producers by id."""
        with self._lock:
            return dict(self._producer_states.producers)

    def open_transactions(self) -> list[OpenTxn]:
        """Return the transactions whose marker is not in the log yet."""
        with self._lock:
            return [
                OpenTxn(producer_id, first_offset, state.producer_epoch, state.coordinator_epoch)
                for producer_id, state in self._producer_states.producers.items()
                if (first_offset := state.current_txn_first_offset) is not None
            ]

    def knows_producer(self, producer_id: int) -> bool:
        """Return True if the log has state of a producer, so that it checks its sequence numbers."""
        with self._lock:
            return producer_id in self._producer_states.producers

    def open_transaction(self, producer_id: int) -> OpenTxn | None:
        """Return the transaction of a producer whose marker is not in the log yet, or None."""
        with self._lock:
            state = self._producer_states.producers.get(producer_id)
            if state is None or state.current_txn_first_offset is None:
                return None
            return OpenTxn(
                producer_id, state.current_txn_first_offset, state.producer_epoch, state.coordinator_epoch
            )

    def last_records_of_producers(self) -> dict[int, LastRecord]:
        """Return the last record of each known producer, by id.

        The cleaner keeps the batches of these records.
        """
        with self._lock:
            return {
                producer_id: LastRecord(state.last_offset if state.batches else None, state.producer_epoch)
                for producer_id, state in self._producer_states.producers.items()
            }

    def append_as_leader(
        self,
        data: Buffer,
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        validated_by: AppendRules | None = None,
        flush: bool = True,
    ) -> LogAppendInfo:
        """Validate batches, assign offsets and the leader epoch, and append them.

        The append is durable if `flush.messages` requires it. With `flush=False`, the caller makes several
        appends durable together by `flush_appended`. `validated_by` are the rules by which the caller has
        already validated the batches; if they are the log's own, the validation is skipped. `data` is changed
        in place, or copied if it is read-only.

        Raises InvalidRecordError, OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTransactionError
        or, as after failures of the disk, LogDirectoryOfflineError or ProcessLimitError. Nothing is appended
        then.
        """
        now_ms = self._context.clock.now_ms()
        checked = check_as_leader(
            self._context.log_name, data, self.config, origin=origin, now_ms=now_ms, validated_by=validated_by
        )
        with self._locked("append"):
            if not checked.rows.size:
                return self._append_info(self.log_end_offset, self.log_end_offset - 1)
            checked.assign(self.log_end_offset, leader_epoch)
            updates = check_producers(self._producer_states, checked, origin)
            if updates.duplicate is not None:
                duplicate = updates.duplicate
                return LogAppendInfo(
                    first_offset=duplicate.first_offset,
                    last_offset=duplicate.last_offset,
                    log_start_offset=self._log_start_offset,
                    log_append_time=duplicate.timestamp if self.config.log_append_time else _NO_TIMESTAMP,
                    is_duplicate=True,
                )
            self._write(checked, updates, now_ms)
        if flush:
            self.flush_appended(checked.last_offset + 1)
        append_time = now_ms if self.config.log_append_time else _NO_TIMESTAMP
        return self._append_info(checked.first_offset, checked.last_offset, append_time)

    def append_as_follower(self, data: Buffer) -> LogAppendInfo:
        """Append batches that already have offsets and leader epochs. Gaps between offsets are allowed.

        Raises InvalidRecordError for corrupt batches. Raises OffsetsOutOfOrderError if offsets do not
        increase, or begin below the log end offset.
        """
        checked = check_as_follower(self._context.log_name, data)
        now_ms = self._context.clock.now_ms()
        with self._locked("append"):
            if not checked.rows.size:
                return self._append_info(self.log_end_offset, self.log_end_offset - 1)
            if checked.first_offset < self.log_end_offset:
                raise OffsetsOutOfOrderError(
                    f"batches for {self._context.log_name} begin at offset {checked.first_offset}, below its "
                    f"log end offset {self.log_end_offset}",
                    remedy="append from the log end offset on, or truncate first",
                )
            for part in checked.split(self.config.segment_bytes):
                updates = check_producers(self._producer_states, part, AppendOrigin.REPLICATION)
                self._write(part, updates, now_ms)
        self.flush_appended(checked.last_offset + 1)
        return self._append_info(checked.first_offset, checked.last_offset)

    def roll(self) -> LogSegment:
        """Begin a new segment, and schedule a flush of the old one."""
        with self._locked("roll"):
            return self._roll(0)

    def flush(self, force_active: bool = False) -> None:
        """Make all appends durable. With `force_active`, the active segment is synced even if it is empty."""
        end_offset = self.log_end_offset
        self._flush(end_offset + 1 if force_active else end_offset, end_offset)

    def flush_appended(self, end_offset: int | None = None) -> None:
        """Flush up to `end_offset` (by default the log end) if `flush.messages` requires it.

        Callers that wait for the flush lock together share one sync.
        """
        end_offset = self.log_end_offset if end_offset is None else end_offset
        if self._local_log.unflushed_records < self.config.flush_messages:
            return
        with self._flush_lock, self._context.disk_operation("flush"):
            if self._local_log.recovery_point < end_offset:
                self._flush_now(self.log_end_offset, self.log_end_offset)

    def skip_to(self, offset: int) -> None:
        """Continue at an offset above the log end, in a new segment. No record has the offsets between."""
        with self._locked("roll"):
            if offset > self.log_end_offset:
                self._roll(offset)
                self._local_log.log_end_offset = offset

    def truncate_to(self, offset: int) -> bool:
        """Drop the batches that contain or follow `offset`. Return False if there are none."""
        if offset < 0:
            raise self._out_of_range(offset)
        with self._locked("truncation"):
            if offset >= self.log_end_offset:
                self._leader_epochs.truncate_from_end(self.log_end_offset)
                return False
            if self._local_log.segments.base_offsets[0] > offset:
                self.truncate_fully_and_start_at(offset)
                return True
            removed_segments = self._local_log.truncate_to(offset)
            delete_snapshots(self._context, self._producer_states.snapshots, removed_segments)
            self._leader_epochs.truncate_from_end(offset)
            self._log_start_offset = min(offset, self._log_start_offset)
            self._rebuild_producer_state(offset)
            return True

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Drop everything and continue at `offset`."""
        with self._locked("truncation"):
            self._local_log.truncate_fully_and_start_at(offset)
            self._leader_epochs.clear()
            self._producer_states.truncate_fully_and_start_at(offset)
            self._log_start_offset = offset if log_start_offset is None else log_start_offset
            self._rebuild_producer_state(offset)
            self.update_high_watermark(self.log_end_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark to `offset`, limited to the log's range, and return it."""
        with self._lock:
            self._high_watermark = min(max(offset, self._log_start_offset), self.log_end_offset)
            self._producer_states.on_high_watermark_updated(self._high_watermark)
            self._update_first_unstable_offset()
            return self._high_watermark

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Advance the log start offset to `offset`, which must not exceed the high watermark.

        Returns False if the log start offset is already there.
        """
        with self._locked("increase of the log start offset"):
            if offset > self._high_watermark:
                raise self._out_of_range(offset)
            if offset <= self._log_start_offset:
                return False
            self._log_start_offset = offset  # the recovery point stays: hidden records may not be durable
            self._leader_epochs.truncate_from_start(offset)
            self._producer_states.on_log_start_offset_incremented(offset)
            self._update_first_unstable_offset()
            return True

    def delete_records(self, before_offset: int) -> int:
        """Hide the records below an offset (-1: the high watermark). Return the log start offset."""
        target = self._high_watermark if before_offset == -1 else before_offset
        if target < 0:
            raise self._out_of_range(target)
        self.maybe_increment_log_start_offset(target)
        return self._log_start_offset

    def delete_old_segments(self) -> int:
        """Delete segments by log start offset and retention. Return the number of deleted segments."""
        with self._locked("retention"):
            count = self._delete_segments(retention.log_start_offset_breached(self._log_start_offset))
            if self.config.delete:
                count += self._delete_segments(retention.retention_size_breached(self.config, self.size))
                count += self._delete_segments(
                    retention.retention_ms_breached(self.config, self._context.clock.now_ms())
                )
        return count

    def remove_expired_producers(self) -> None:
        """Drop the state of producers that have not appended for the expiry time."""
        with self._lock:
            self._producer_states.remove_expired(self._context.clock.now_ms())

    def update_config(self, config: LogConfig) -> None:
        """Set the configuration. Settings of a segment apply from the next roll on."""
        self._context.config = config

    def new_cleaned_segment(self, base_offset: int) -> LogSegment:
        """Create a segment for the cleaner to write. It is not part of the log."""
        with self._context.disk_operation("clean"):
            return new_cleaned_segment(self._context, base_offset)

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
        """Replace segments by cleaned ones, which must be synced."""
        with self._locked("replacement of segments"):
            removed_segments = replace_segments(self._context, self._local_log.segments, new, old)
            delete_snapshots(self._context, self._producer_states.snapshots, removed_segments)

    def split_overflowed_segment(self, segment: LogSegment) -> list[LogSegment]:
        """Replace a segment whose offsets span too much by several."""
        with self._locked("split"):
            return split_segment(self._context, self._local_log.segments, segment)

    def rename_directory(self, directory: Path) -> None:
        """Rename the partition directory on the same disk. Files stay open."""
        with self._flush_lock, self._locked("rename"):
            self._rename(directory)

    def retire(self, directory: Path) -> None:
        """Close all files without changing them, and rename the partition directory.

        For a log that was deleted, set aside or replaced. Readers and tasks that still have it get
        LogClosedError, because the log is closed before its files have other names.
        """
        with self._flush_lock, self._lock, self._context.disk_operation("rename"):
            self._context.is_closed = True
            self._rename(directory)
            self._local_log.segments.close_handles()

    def _rename(self, directory: Path) -> None:
        self._context.file_system.rename(self.directory, directory)
        self._context.file_system.sync_dir(directory.parent)
        self._local_log.update_directory(directory)
        self._producer_states.snapshots.directory = directory
        self._leader_epochs.update_directory(directory)

    def close(self) -> None:
        """Write a producer snapshot, trim the indexes and close all files. The caller flushes before."""
        with self._locked("close"):
            self._producer_states.take_snapshot()
            self._context.is_closed = True
            self._local_log.segments.close()

    def close_handles(self) -> None:
        """Close all files without changing them: the disk has failed."""
        with self._lock:
            self._context.is_closed = True
            self._local_log.segments.close_handles()

    def delete(self) -> None:
        """Delete all files and the partition directory."""
        with self._locked("deletion"):
            self._context.is_closed = True
            self._local_log.remove(list(self.segments), immediately=True)
            remove_tree(self._context.file_system, self.directory)
            self._context.file_system.sync_dir(self.directory.parent)

    def _write(self, checked: CheckedBatches, updates: ProducerUpdates, now_ms: int) -> None:
        """Append checked batches, then update leader epochs, producer state and transactions."""
        for epoch, offset in epoch_changes(checked.array, checked.rows):
            self._leader_epochs.assign(epoch, offset)
        segment = self._maybe_roll(checked, now_ms)
        self._local_log.append(checked.last_offset, checked.data, checked.rows)
        for append in updates.appends:
            self._producer_states.update(append)
        for completed in updates.completed:
            segment.update_transaction_index(completed, self._producer_states.last_stable_offset(completed))
            self._producer_states.complete_txn(completed)
        self._producer_states.map_end_offset = self.log_end_offset
        self._update_first_unstable_offset()

    def _maybe_roll(self, checked: CheckedBatches, now_ms: int) -> LogSegment:
        segment = self.active_segment
        params = RollParams(
            max_segment_ms=self.config.max_segment_ms,
            max_segment_bytes=self.config.segment_bytes,
            max_timestamp=checked.max_timestamp,
            max_offset=checked.last_offset,
            size=checked.data.nbytes,
            now_ms=now_ms,
        )
        if segment.should_roll(params) and (segment.size or checked.first_offset > segment.base_offset):
            # A segment starts where the one before it ends, so that recovery detects missing batches between
            # them. The exception is a follower's gap that is too wide for the offsets of one segment.
            span = checked.last_offset - self.log_end_offset
            start = self.log_end_offset if span <= MAX_RELATIVE_OFFSET else checked.first_offset
            with process_limits.reserving(_ROLL_RESERVE):  # nothing of the append is written yet
                return self._roll(start)
        return segment

    def _append_info(
        self, first_offset: int, last_offset: int, append_time: int = _NO_TIMESTAMP
    ) -> LogAppendInfo:
        return LogAppendInfo(
            first_offset=first_offset,
            last_offset=last_offset,
            log_start_offset=self._log_start_offset,
            log_append_time=append_time,
        )

    def _roll(self, expected_next_offset: int) -> LogSegment:
        segment = self._local_log.roll(expected_next_offset)
        self._producer_states.map_end_offset = segment.base_offset
        snapshot = self._producer_states.take_snapshot(sync=False)

        def flush() -> None:
            if self._context.is_closed:
                return
            if snapshot is not None:
                self._producer_states.snapshots.sync(snapshot)
            self._flush(segment.base_offset, segment.base_offset)

        self._context.schedule_once("flush-rolled-segment", flush)
        return segment

    def _flush(self, flush_offset: int, recovery_point: int) -> None:
        with self._flush_lock, self._context.disk_operation("flush"):
            if flush_offset > self._local_log.recovery_point:
                self._flush_now(flush_offset, recovery_point)

    def _flush_now(self, flush_offset: int, recovery_point: int) -> None:
        self._local_log.flush(flush_offset)
        with self._lock:
            self._local_log.mark_flushed(min(recovery_point, self.log_end_offset))

    def _delete_segments(self, is_expired: SegmentPredicate | None) -> int:
        if is_expired is None:
            return 0
        segments = self._local_log.segments
        segments_to_delete = retention.deletable_segments(
            segments.all,
            high_watermark=self._high_watermark,
            log_end_offset=self.log_end_offset,
            is_expired=is_expired,
        )
        if not segments_to_delete:
            return 0
        if len(segments_to_delete) == len(segments):
            self._roll(0)
        following = segments.higher(segments_to_delete[-1].base_offset)
        assert following is not None
        self.maybe_increment_log_start_offset(following.base_offset)
        _log.debug(
            "segments_deleted",
            log=self._context.log_name,
            count=len(segments_to_delete),
            start=following.base_offset,
        )
        self._local_log.remove(segments_to_delete)
        delete_snapshots(self._context, self._producer_states.snapshots, segments_to_delete)
        return len(segments_to_delete)

    def _rebuild_producer_state(self, end_offset: int) -> None:
        rebuild_producer_state(
            self._producer_states,
            self._local_log.segments,
            log_start_offset=self._log_start_offset,
            end_offset=end_offset,
            now_ms=self._context.clock.now_ms(),
        )
        self.update_high_watermark(min(self._high_watermark, self.log_end_offset))

    def _update_first_unstable_offset(self) -> None:
        unstable = self._producer_states.first_unstable_offset
        self._first_unstable_offset = None if unstable is None else max(unstable, self._log_start_offset)

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            self._context.log_name,
            offset,
            log_start_offset=self._log_start_offset,
            high_watermark=self._high_watermark,
        )

    @contextmanager
    def _locked(self, what: str) -> Iterator[None]:
        """Hold the lock for a change. Check that the log is open, and report disk failures."""
        with self._lock, self._context.disk_operation(what):
            self._context.check_open()
            yield
