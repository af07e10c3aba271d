"""A log compared with a model through random operations."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from local_tier.log.unified_log import Isolation
from tests.local_tier.batches import offsets_of
from tests.local_tier.crash.crash_check import check_indexes
from tests.local_tier.log.log_losses import Losses


class LogMachine(Losses):
    """Reads return what the model has after any sequence of operations."""

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
