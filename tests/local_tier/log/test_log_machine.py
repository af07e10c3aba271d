"""A log compared with a model through random operations."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from local_tier.config import LogConfig
from local_tier.log.unified_log import Isolation
from local_tier.producers.producer_state_entry import AppendOrigin
from object_format.buffers import readable
from object_format.record_batch.headers import scan_batches
from tests.local_tier.batches import batch, marker, offsets_of
from tests.local_tier.crash.crash_check import check_indexes
from tests.local_tier.logs import LogHarness, crash

if TYPE_CHECKING:
    from local_tier.log.unified_log import UnifiedLog


CONFIG = LogConfig(
    segment_bytes=1400, segment_index_bytes=12 * 40, index_interval_bytes=100, retention_ms=600_000
)
COMMITTING = (21, 22)


@dataclass(frozen=True)
class ModelBatch:
    """A batch that the log should have."""

    first: int
    last: int
    timestamp: int
    producer: int
    next_sequence: int = 0
    is_transactional: bool = False
    aborts: bool | None = None  # for a marker: True if it aborts


class LogMachine(RuleBasedStateMachine):
    """A log and its model: a list of batches, and the offsets and producer state that follow from it."""

    def __init__(self) -> None:
        super().__init__()
        self._root = tempfile.TemporaryDirectory()
        self.harness = LogHarness(Path(self._root.name))
        self.log: UnifiedLog = self.harness.open(CONFIG)
        self.batches: list[ModelBatch] = []
        self.end = self.start = self.high_watermark = 0
        self.history: list[ModelBatch] = []  # including batches that were deleted or cleaned since
        self.sequences: dict[int, int] = {}
        self.open_since: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.markers: dict[int, int] = {}  # of ended transactions, by first offset
        self.epoch = 0
        self.rebuilt_at = 0  # below this offset, the log may not know which markers are replicated

    @override
    def teardown(self) -> None:
        crash(self.log)
        self._root.cleanup()

    def next_sequence(self, producer: int) -> int:
        """Return a producer's next sequence number.

        As in Kafka, it is 0 if only a marker of the producer is left.
        """
        known = self.log.known_producers().get(producer)
        return 0 if known is not None and not known.batches else self.sequences.get(producer, 0)

    def idempotent(self) -> list[ModelBatch]:
        """Return the readable batches of the producers without transactions."""
        return [known for known in self.batches if known.producer in {7, 8} and known.first >= self.start]

    def add_batch(
        self,
        count: int,
        timestamp: int,
        producer: int,
        next_sequence: int,
        *,
        is_transactional: bool = False,
        aborts: bool | None = None,
    ) -> None:
        """Add an appended batch, whose records are a millisecond apart."""
        known = ModelBatch(
            self.end,
            self.end + count - 1,
            timestamp + count - 1,
            producer,
            next_sequence,
            is_transactional,
            aborts,
        )
        self.batches.append(known)
        self.end += count
        self.apply(known)

    def apply(self, known: ModelBatch) -> None:
        """Apply a batch to the state of producers and transactions."""
        self.history.append(known)
        if known.producer >= 0:
            self.sequences[known.producer] = known.next_sequence
        if known.is_transactional:
            self.open_since.setdefault(known.producer, known.first)
        if known.aborts is not None:
            first = self.open_since.pop(known.producer)
            self.markers[first] = known.first
            if known.aborts:
                self.aborted.append((known.producer, first, known.first))

    def last_stable(self, known_from: int = 0) -> int:
        """Return the last stable offset if markers below `known_from` count as replicated.

        After a rebuild, the log may not know which markers are not replicated.
        """
        unreplicated = (
            first for first, at in self.markers.items() if at >= max(self.high_watermark, known_from)
        )
        unstable = min((*self.open_since.values(), *unreplicated), default=self.high_watermark)
        return max(self.start, min(self.high_watermark, unstable))

    @initialize(offset=st.sampled_from([0, 0, 5, 2**33]))
    def start_at_an_offset(self, offset: int) -> None:
        if offset:
            self.log.truncate_fully_and_start_at(offset)
            self.end = self.start = self.high_watermark = offset

    @rule(
        count=st.integers(1, 4),
        size=st.integers(0, 300),
        producer=st.sampled_from([-1, 7, 8]),
        ago=st.integers(0, 200),
    )
    def append(self, count: int, size: int, producer: int, ago: int) -> None:
        timestamp = self.harness.clock.now_ms() - ago * 1000
        sequence = self.next_sequence(producer)
        stamp = (producer, 0, sequence) if producer >= 0 else (-1, -1, -1)
        data = batch(0, count, size=size, timestamp=timestamp, producer=stamp)
        got = self.log.append_as_leader(data, self.epoch)
        assert (got.first_offset, got.last_offset) == (self.end, self.end + count - 1)
        self.add_batch(count, timestamp, producer, sequence + count)

    @rule(producer=st.sampled_from(COMMITTING), count=st.integers(1, 2), size=st.integers(0, 300))
    def append_in_transaction(self, producer: int, count: int, size: int) -> None:
        sequence = self.next_sequence(producer)
        timestamp = self.harness.clock.now_ms()
        data = batch(
            0, count, size=size, timestamp=timestamp, producer=(producer, 0, sequence), transactional=True
        )
        self.log.append_as_leader(data, self.epoch)
        self.add_batch(count, timestamp, producer, sequence + count, is_transactional=True)

    @precondition(lambda self: self.open_since)
    @rule(data=st.data(), abort=st.booleans())
    def end_transaction(self, data: st.DataObject, abort: bool) -> None:
        self._end(data.draw(st.sampled_from(sorted(self.open_since))), abort)

    def _end(self, producer: int, abort: bool) -> None:
        timestamp = self.harness.clock.now_ms()
        control = marker(0, producer=(producer, 0), abort=abort, timestamp=timestamp)
        self.log.append_as_leader(control, self.epoch, origin=AppendOrigin.COORDINATOR)
        self.add_batch(1, timestamp, producer, self.sequences[producer], aborts=abort)

    @rule(producer=st.sampled_from(COMMITTING), abort=st.booleans())
    def whole_transaction(self, producer: int, abort: bool) -> None:
        self.append_in_transaction(producer, 1, 50)
        self._end(producer, abort)
        self.replicate(1)

    @rule(gap=st.integers(0, 30), count=st.integers(1, 3))
    def append_as_follower(self, gap: int, count: int) -> None:
        self.end += gap
        timestamp = self.harness.clock.now_ms()
        self.log.append_as_follower(batch(self.end, count, timestamp=timestamp, epoch=self.epoch))
        self.add_batch(count, timestamp, -1, 0)

    @precondition(lambda self: self.idempotent())
    @rule()
    def repeat_last_of_a_producer(self) -> None:
        last = self.idempotent()[-1]
        count = last.last - last.first + 1
        sequence = self.sequences[last.producer] - count
        got = self.log.append_as_leader(batch(0, count, producer=(last.producer, 0, sequence)), self.epoch)
        assert (got.is_duplicate, got.first_offset, got.last_offset) == (True, last.first, last.last)

    @rule(share=st.sampled_from([0.0, 0.3, 0.6, 1.0]))
    def replicate(self, share: float) -> None:
        self.high_watermark += int((self.end - self.high_watermark) * share)
        self.log.update_high_watermark(self.high_watermark)

    @rule()
    def increment_leader_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(force=st.booleans())
    def flush(self, force: bool) -> None:
        self.log.flush(force)
        assert self.log.recovery_point == self.end

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        self.start += int((self.last_stable() - self.start) * share)
        assert self.log.delete_records(self.start) == self.start

    @precondition(lambda self: self.last_stable() == self.high_watermark)
    @rule(seconds=st.integers(1, 1500))
    def delete_old_segments(self, seconds: int) -> None:
        self.harness.scheduler.advance(seconds * 1000)
        self.log.delete_old_segments()
        start = self.log.log_start_offset
        now = self.harness.clock.now_ms()
        for known in self.batches:
            if self.start <= known.first and known.last < start:
                assert now - known.timestamp > CONFIG.retention_ms
        assert self.start <= start <= self.high_watermark
        self.start = start

    @rule(back=st.integers(1, 3))
    def truncate_a_little(self, back: int) -> None:
        self.truncate(back)

    @precondition(lambda self: self.last_stable() == self.high_watermark)
    @rule(size=st.integers(0, 300))
    def outlive_retention(self, size: int) -> None:
        """Records above the high watermark are retained, even in an old segment."""
        self.append(1, size, -1, 0)
        self.roll()
        self.delete_old_segments(1500)

    @rule(
        sizes=st.lists(st.integers(100, 300), min_size=2, max_size=5),
        roll_at=st.integers(0, 5),
        back=st.integers(1, 5),
    )
    def append_and_truncate(self, sizes: list[int], roll_at: int, back: int) -> None:
        """Append with a roll in between, then drop some of the batches."""
        for number, size in enumerate(sizes):
            if number == roll_at:
                self.log.roll()
            self.harness.scheduler.advance(7)
            self.append(1, size, -1, 0)
        self.truncate(back)

    @rule(back=st.integers(1, 12))
    def truncate(self, back: int) -> None:
        """Truncate to the end of a batch at or above the high watermark, as a follower does."""
        ends = [known.last + 1 for known in self.history if known.last + 1 >= self.high_watermark]
        target = ([*ends, self.end])[-back - 1 :][0]
        if target < self.end:
            self.rebuilt_at = target
        assert self.log.truncate_to(target) == (target < self.end)
        self.batches = [known for known in self.batches if known.last < target]
        self.end = target
        history, self.history = self.history, []
        self.sequences, self.open_since, self.aborted, self.markers = {}, {}, [], {}
        for known in history:
            if known.last < target:
                self.apply(known)

    @rule()
    def restart(self) -> None:
        self.log.flush()
        start, point = self.log.log_start_offset, self.log.recovery_point
        self.log.close()
        self.log = self.harness.open(CONFIG, log_start_offset=start, recovery_point=point, clean=True)
        self.log.update_high_watermark(self.high_watermark)
        self.rebuilt_at = self.end

    @rule(torn=st.sampled_from([b"", b"\0" * 30, batch(2**40)[:50], batch(2**40)[:-1] + b"?"]))
    def crash(self, torn: bytes) -> None:
        start, point = self.log.log_start_offset, self.log.recovery_point
        path = self.log.active_segment.path
        crash(self.log)
        with path.open("ab") as file:
            file.write(torn)
        self.log = self.harness.open(CONFIG, log_start_offset=start, recovery_point=point)
        self.log.update_high_watermark(self.high_watermark)
        self.rebuilt_at = self.end

    @precondition(lambda self: len(self.log.segments) > 2)
    @rule(keep=st.sets(st.integers(0, 30)))
    def clean(self, keep: set[int]) -> None:
        """Merge the first two segments without some of the batches that have no producer id."""
        first, second = self.log.segments[:2]
        if self.log.segments[2].base_offset > self.high_watermark:
            return
        self.log.flush()  # as the cleaner does
        merged = self.log.new_cleaned_segment(first.base_offset)
        dropped = set()
        number = 0
        for segment in (first, second):
            data = segment.log.read(0, segment.size)
            rows = scan_batches(readable(bytes(data)))
            for row in rows:
                number += 1
                at, size = int(row["position"]), int(row["size"])
                base, last = int(row["base_offset"]), int(row["base_offset"] + row["last_offset_delta"])
                if int(row["producer_id"]) < 0 and number not in keep:
                    dropped.add(base)
                    continue
                piece = bytes(data[at : at + size])
                merged.append(last, piece, scan_batches(readable(piece)))
            for aborted in segment.transaction_index.all():
                merged.transaction_index.append(aborted)
        merged.become_inactive()
        merged.sync()
        self.log.replace_segments([merged], [first, second])
        self.batches = [known for known in self.batches if known.first not in dropped]

    @rule(offset=st.floats(0, 1), max_bytes=st.integers(1, 2000), isolation=st.sampled_from(Isolation))
    def read(self, offset: float, max_bytes: int, isolation: Isolation) -> None:
        begin = self.start + int((self.end - self.start) * offset)
        limit = {
            Isolation.LOG_END: self.end,
            Isolation.HIGH_WATERMARK: self.high_watermark,
            Isolation.TXN_COMMITTED: self.log.last_stable_offset,
        }[isolation]
        got = self.log.read(begin, max_bytes, isolation)
        found = offsets_of(got.data)
        expected = [
            o for k in self.batches if k.last >= begin and k.last < limit for o in range(k.first, k.last + 1)
        ]
        assert found == expected[: len(found)]
        if not found:
            reaching = [k for k in self.batches if k.last >= begin]
            assert not reaching or reaching[0].last >= limit or begin >= limit
        if isolation is Isolation.TXN_COMMITTED:
            for known in self.batches:
                if begin <= known.first and known.last < got.next_offset and known.is_transactional:
                    hidden = any(
                        a.producer_id == known.producer and a.first_offset <= known.first < a.last_offset
                        for a in got.aborted
                    )
                    assert hidden == any(
                        producer == known.producer and first <= known.first < last
                        for producer, first, last in self.aborted
                    )

    @rule(ago=st.integers(0, 4000))
    def look_up_time(self, ago: int) -> None:
        timestamp = self.harness.clock.now_ms() - ago * 1000
        found = self.log.offset_for_timestamp(timestamp)
        reaching = [k for k in self.batches if k.last >= self.start and k.timestamp >= timestamp]
        if not reaching:
            assert found is None
        else:
            assert found is not None
            assert found.timestamp >= timestamp
            assert reaching[0].first <= found.offset <= reaching[0].last

    @invariant()
    def offsets_agree(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (
            self.start,
            self.high_watermark,
            self.end,
        )
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        assert self.last_stable() <= log.last_stable_offset <= self.last_stable(self.rebuilt_at)
        bases = [segment.base_offset for segment in log.segments]
        assert bases == sorted(set(bases))
        assert bases[-1] <= self.end

    @invariant()
    def indexes_agree(self) -> None:
        for segment in self.log.segments[-2:]:
            check_indexes(segment)
        self.look_up_time(0)


TestLog = LogMachine.TestCase
TestLog.settings = settings(stateful_step_count=30, max_examples=settings().max_examples // 2)
