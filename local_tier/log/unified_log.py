"""One partition's log: what it promises, on top of segments on disk.

Source: UnifiedLog of org.apache.kafka.storage.internals.log. One thread at a time changes a log, under its
lock; readers take no lock, and see offsets that only ever go forward (but for truncation, which a follower
asks for). At all times

    log start offset ≤ last stable offset ≤ high watermark ≤ log end offset
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from local_tier.errors import OffsetsOutOfOrderError
from local_tier.log.append_checks import (
    CheckedBatches,
    JudgedProducers,
    check_as_follower,
    check_as_leader,
    judge_producers,
)
from local_tier.log.log_upkeep import LogUpkeep
from local_tier.log.producer_rebuild import rebuild_producer_state
from local_tier.log.segment_files import delete_snapshots
from local_tier.producers.producer_state import Origin
from local_tier.segment.mapped_index import MAX_RELATIVE_OFFSET
from local_tier.segment.recovery import epoch_changes
from local_tier.segment.segment import RollParams

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from local_tier.segment.segment import LogSegment
    from object_format.record_batch.append_rules import AppendRules

_log = structlog.get_logger(__name__)

_NO_TIME = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where batches are in the log. Of a duplicate: where they have been since they came first.

    `log_append_time` is -1 unless the log gives the timestamps.
    """

    first_offset: int
    last_offset: int
    log_start_offset: int
    log_append_time: int = _NO_TIME
    is_duplicate: bool = False


class UnifiedLog(LogUpkeep):
    """The log of one partition; `log_opening.open_log` makes one from its directory."""

    def append_as_leader(
        self,
        data: Buffer,
        leader_epoch: int,
        *,
        origin: Origin = Origin.CLIENT,
        judged_by: AppendRules | None = None,
        flush: bool = True,
    ) -> Appended:
        """Validate batches, give them offsets and the epoch, and write them; durable by `flush.messages`.

        Without `flush`, the caller makes several appends durable together by `flush_appended`. Batches that
        the caller has validated by the rules `judged_by` the log's own rules are not judged a second time.
        `data` is changed in place where it is writable, and copied where it is not. Raises
        InvalidRecordError, OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTransactionError or
        LogDirectoryOfflineError; nothing was appended then.
        """
        now_ms = self._home.clock.now_ms()
        checked = check_as_leader(
            self._home.where, data, self.config, origin=origin, now_ms=now_ms, judged_by=judged_by
        )
        with self._changing("append"):
            if not checked.rows.size:
                return self._appended(self.log_end_offset, self.log_end_offset - 1)
            checked.assign(self.log_end_offset, leader_epoch)
            judged = judge_producers(self._states, checked, origin)
            if judged.duplicate is not None:
                known = judged.duplicate
                return Appended(
                    first_offset=known.first_offset,
                    last_offset=known.last_offset,
                    log_start_offset=self._log_start_offset,
                    log_append_time=known.timestamp if self.config.log_append_time else _NO_TIME,
                    is_duplicate=True,
                )
            self._write(checked, judged, now_ms)
        if flush:
            self._flush_appended(checked.last_offset + 1)
        append_time = now_ms if self.config.log_append_time else _NO_TIME
        return self._appended(checked.first_offset, checked.last_offset, append_time)

    def append_as_follower(self, data: Buffer) -> Appended:
        """Write batches that have their offsets and epochs already; gaps between them are fine.

        Raises InvalidRecordError for damaged ones and OffsetsOutOfOrderError for those that fall, or begin
        below the log end offset.
        """
        checked = check_as_follower(self._home.where, data)
        now_ms = self._home.clock.now_ms()
        with self._changing("append"):
            if not checked.rows.size:
                return self._appended(self.log_end_offset, self.log_end_offset - 1)
            if checked.first_offset < self.log_end_offset:
                raise OffsetsOutOfOrderError(
                    f"batches for {self._home.where} begin at offset {checked.first_offset}, below its "
                    f"log end offset {self.log_end_offset}",
                    remedy="append from the log end offset on, or truncate first",
                )
            for part in checked.parts(self.config.segment_bytes):
                judged = judge_producers(self._states, part, Origin.REPLICATION)
                self._write(part, judged, now_ms)
        self._flush_appended(checked.last_offset + 1)
        return self._appended(checked.first_offset, checked.last_offset)

    def truncate_to(self, offset: int) -> bool:
        """Drop what reaches `offset` or lies behind it; False when nothing does."""
        if offset < 0:
            raise self._out_of_range(offset)
        with self._changing("truncation"):
            if offset >= self.log_end_offset:
                self._epochs.truncate_from_end(self.log_end_offset)
                return False
            if self._local.segments.base_offsets[0] > offset:
                self.truncate_fully_and_start_at(offset)
                return True
            gone = self._local.truncate_to(offset)
            delete_snapshots(self._home, self._states.snapshots, gone)
            self._epochs.truncate_from_end(offset)
            self._log_start_offset = min(offset, self._log_start_offset)
            self._rebuild_producers(offset)
            return True

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Drop everything; the log goes on at `offset`."""
        with self._changing("truncation"):
            self._local.truncate_fully_and_start_at(offset)
            self._epochs.clear()
            self._states.truncate_fully_and_start_at(offset)
            self._log_start_offset = offset if log_start_offset is None else log_start_offset
            self._rebuild_producers(offset)
            self.update_high_watermark(self.log_end_offset)

    def _write(self, checked: CheckedBatches, judged: JudgedProducers, now_ms: int) -> None:
        """Append prepared batches, then let the state of epochs, producers and transactions follow."""
        for epoch, offset in epoch_changes(checked.array, checked.rows):
            self._epochs.assign(epoch, offset)
        segment = self._maybe_roll(checked, now_ms)
        self._local.append(checked.last_offset, checked.data, checked.rows)
        for append in judged.appends:
            self._states.update(append)
        for completed in judged.completed:
            segment.note_completed(completed, self._states.last_stable_offset(completed))
            self._states.complete(completed)
        self._states.map_end_offset = self.log_end_offset
        self._note_first_unstable()

    def _maybe_roll(self, checked: CheckedBatches, now_ms: int) -> LogSegment:
        segment = self.active_segment
        params = RollParams(
            max_segment_ms=self.config.segment_ms,
            max_segment_bytes=self.config.segment_bytes,
            max_timestamp=checked.max_timestamp,
            max_offset=checked.last_offset,
            size=checked.data.nbytes,
            now_ms=now_ms,
        )
        if segment.should_roll(params) and (segment.size or checked.first_offset > segment.base_offset):
            # a segment begins where the one before it ends, so that recovery sees what is missing between
            # them; unless a follower's gap is too wide for that
            span = checked.last_offset - self.log_end_offset
            return self._roll(self.log_end_offset if span <= MAX_RELATIVE_OFFSET else checked.first_offset)
        return segment

    def _rebuild_producers(self, end_offset: int) -> None:
        rebuild_producer_state(
            self._states,
            self._local.segments,
            log_start_offset=self._log_start_offset,
            end_offset=end_offset,
            now_ms=self._home.clock.now_ms(),
        )
        self.update_high_watermark(min(self._high_watermark, self.log_end_offset))

    def _appended(self, first_offset: int, last_offset: int, append_time: int = _NO_TIME) -> Appended:
        return Appended(
            first_offset=first_offset,
            last_offset=last_offset,
            log_start_offset=self._log_start_offset,
            log_append_time=append_time,
        )
