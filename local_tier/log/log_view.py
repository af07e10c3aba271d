"""What can be asked of a log, by any thread and without its lock.

Source: UnifiedLog of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from core.errors import OffsetOutOfRangeError
from local_tier.log.timestamp_search import find_by_timestamp, find_newest_record
from local_tier.producers.producer_state import LastRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from local_tier.config import LogConfig
    from local_tier.leader_epochs import EpochEntry, LeaderEpochs
    from local_tier.log.local_log import LocalLog, LogRead
    from local_tier.log.log_home import LogHome
    from local_tier.producers.producer_state import ProducerState
    from local_tier.producers.producer_states import ProducerStates
    from local_tier.segment.segment import LogSegment
    from local_tier.segment.time_index import TimestampOffset
    from local_tier.segment.transaction_index import AbortedTransaction
    from local_tier.topic_partition import TopicPartition

_log = structlog.get_logger(__name__)

_NO_TIME = -1


class Isolation(Enum):
    """How far a reader may see."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    TXN_COMMITTED = "txn_committed"


class LogView:
    """The reading side of a log, and the state that its writing side keeps."""

    def __init__(
        self,
        home: LogHome,
        local: LocalLog,
        states: ProducerStates,
        epochs: LeaderEpochs,
        *,
        log_start_offset: int,
        topic_id: UUID | None,
    ) -> None:
        self.topic_id = topic_id
        self._home = home
        self._local = local
        self._states = states
        self._epochs = epochs
        self._lock = threading.RLock()
        self._flush_lock = threading.Lock()
        self._log_start_offset = log_start_offset
        self._high_watermark = log_start_offset
        self._first_unstable: int | None = None
        self._note_first_unstable()

    @property
    def topic_partition(self) -> TopicPartition:
        """Its name."""
        return self._home.topic_partition

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self._home.directory

    @property
    def config(self) -> LogConfig:
        """Its settings."""
        return self._home.config

    @property
    def is_offline(self) -> bool:
        """Whether its disk has failed."""
        return self._home.is_offline

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._local.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Below it, records are there for good."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it, no transaction is open: how far readers of committed data may see."""
        high_watermark, unstable = self._high_watermark, self._first_unstable
        return high_watermark if unstable is None else min(high_watermark, unstable)

    @property
    def recovery_point(self) -> int:
        """Below it, records are durable."""
        return self._local.recovery_point

    @property
    def unflushed_records(self) -> int:
        """Offsets that are not durable yet."""
        return self._local.unflushed_records

    @property
    def last_flush_ms(self) -> int:
        """When the recovery point moved last, in milliseconds since the Unix epoch."""
        return self._local.last_flush_ms

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._local.segments.size_in_bytes

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """In the order of offsets; the last is the active one."""
        return self._local.segments.all

    @property
    def active_segment(self) -> LogSegment:
        """The one that takes appends."""
        return self._local.segments.active

    @property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """Which leader epoch began where."""
        return self._epochs.entries

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        *,
        at_least_one: bool = True,
    ) -> LogRead:
        """Whole batches from the one that reaches `offset` on, up to `max_bytes`, as far as isolation allows.

        `at_least_one` gives a first batch that is larger. With TXN_COMMITTED, `aborted` says which
        transactions' records to leave out. OffsetOutOfRangeError below the log start and behind the log end.
        """
        self._home.check_open()
        if offset < self._log_start_offset:
            raise self._out_of_range(offset)
        with_aborted = isolation is Isolation.TXN_COMMITTED
        end_offset = {
            Isolation.LOG_END: self.log_end_offset,
            Isolation.HIGH_WATERMARK: self._high_watermark,
            Isolation.TXN_COMMITTED: self.last_stable_offset,
        }[isolation]
        with self._home.disk("read"):
            return self._local.read(
                offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one, with_aborted=with_aborted
            )

    def collect_aborted(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [first_offset, end_offset)."""
        with self._home.disk("read"):
            return self._local.collect_aborted(first_offset, end_offset)

    def offset_for_timestamp(self, timestamp: int, first_offset: int = 0) -> TimestampOffset | None:
        """The first record from `first_offset` on with at least that timestamp, whatever comes behind it."""
        self._home.check_open()
        with self._home.disk("read"):
            first = max(first_offset, self._log_start_offset)
            return find_by_timestamp(self.segments, timestamp, first)

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record that has the largest timestamp of all."""
        self._home.check_open()
        with self._home.disk("read"):
            return find_newest_record(self.segments, self._log_start_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        """The last leader epoch at or before `epoch`, and the offset behind its records; -1 when unknown."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        """The leader epoch of the record at `offset`."""
        return self._epochs.epoch_for_offset(offset)

    def segments_between(self, first_offset: int, end_offset: int) -> list[LogSegment]:
        """The segments that may hold offsets of [first_offset, end_offset)."""
        return list(self._local.segments.values(first_offset, end_offset))

    def inactive_segments_from(self, offset: int) -> list[LogSegment]:
        """The segments from that of `offset` on, without the active one."""
        return list(self._local.segments.inactive_from(offset))

    def known_producers(self) -> dict[int, ProducerState]:
        """The producers that are known, by their ids."""
        with self._lock:
            return dict(self._states.producers)

    def last_records_of_producers(self) -> dict[int, LastRecord]:
        """Of each producer that is known, by its id; a clean keeps the batches that these name."""
        with self._lock:
            return {
                producer_id: LastRecord(state.last_offset if state.batches else None, state.producer_epoch)
                for producer_id, state in self._states.producers.items()
            }

    def _note_first_unstable(self) -> None:
        unstable = self._states.first_unstable_offset
        self._first_unstable = None if unstable is None else max(unstable, self._log_start_offset)

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            self._home.where,
            offset,
            log_start_offset=self._log_start_offset,
            high_watermark=self._high_watermark,
        )

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """Around every change: the lock is held, the log is open, and the disk is watched."""
        with self._lock, self._home.disk(what):
            self._home.check_open()
            yield
