"""The rules of `test_log_machine.py` that append to a log."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from local_tier.producers.producer_state_entry import AppendOrigin
from tests.local_tier.batches import batch, marker
from tests.local_tier.log.log_model import LogModel

COMMITTING = (21, 22)


class Appends(LogModel):
    """Appends of leaders, followers, producers and transactions; watermarks, epochs and rolls."""

    @initialize(offset=st.sampled_from([0, 0, 5, 2**33]))
    def begin(self, offset: int) -> None:
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
        self.note(count, timestamp, producer, sequence + count)

    @rule(producer=st.sampled_from(COMMITTING), count=st.integers(1, 2), size=st.integers(0, 300))
    def append_in_transaction(self, producer: int, count: int, size: int) -> None:
        sequence = self.next_sequence(producer)
        timestamp = self.harness.clock.now_ms()
        data = batch(
            0, count, size=size, timestamp=timestamp, producer=(producer, 0, sequence), transactional=True
        )
        self.log.append_as_leader(data, self.epoch)
        self.note(count, timestamp, producer, sequence + count, is_transactional=True)

    @precondition(lambda self: self.open_since)
    @rule(data=st.data(), abort=st.booleans())
    def end_transaction(self, data: st.DataObject, abort: bool) -> None:
        self._end(data.draw(st.sampled_from(sorted(self.open_since))), abort)

    def _end(self, producer: int, abort: bool) -> None:
        timestamp = self.harness.clock.now_ms()
        control = marker(0, producer=(producer, 0), abort=abort, timestamp=timestamp)
        self.log.append_as_leader(control, self.epoch, origin=AppendOrigin.COORDINATOR)
        self.note(1, timestamp, producer, self.sequences[producer], aborts=abort)

    @rule(producer=st.sampled_from(COMMITTING), abort=st.booleans())
    def whole_transaction(self, producer: int, abort: bool) -> None:
        self.append_in_transaction(producer, 1, 50)
        self._end(producer, abort)
        self.replicate(1)

    @rule(gap=st.integers(0, 30), count=st.integers(1, 3))
    def follow(self, gap: int, count: int) -> None:
        self.end += gap
        timestamp = self.harness.clock.now_ms()
        self.log.append_as_follower(batch(self.end, count, timestamp=timestamp, epoch=self.epoch))
        self.note(count, timestamp, -1, 0)

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
    def lead(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(force=st.booleans())
    def flush(self, force: bool) -> None:
        self.log.flush(force)
        assert self.log.recovery_point == self.end
