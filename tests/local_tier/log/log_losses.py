"""The rules of `test_log_machine.py` that remove records from a log or close it."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from object_format.buffers import readable
from object_format.record_batch.headers import scan_batches
from tests.local_tier.batches import batch
from tests.local_tier.log.log_appends import Appends
from tests.local_tier.log.log_model import CONFIG
from tests.local_tier.logs import crash


class Losses(Appends):
    """Deletion, retention, truncation, cleaning, restarts and crashes."""

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
                self.learn(known)

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
