"""Sequence numbers that a partition lacks, because a readoption appended a later batch of their producer.

A partition appends the batches of a producer without gaps. So a batch that comes before the last one is in
the log, with one exception: an acknowledged batch is readopted although others before it are missing. What is
missing is recorded in the same transaction, because the agent that knows these batches may report later than
the others. Its batches are then appended behind.

A recorded gap also proves that the lost log had these batches: it contained later ones. So a batch in a gap
is appended even if no agent reports it as acknowledged. There is one exception: if the partition had no state
of the producer, because that may have expired, the batches may be in the log.

Only readoptions read and write gaps, under the locks of their partitions. Gaps are recorded per producer,
epoch and partition, at most `MAX_GAPS` of them; batches in further gaps count as present, as they do in gaps
that agents of earlier releases have left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.commit.sequences import SEQUENCES, is_ahead, is_in_log, last_sequence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catalog.commit.sequences import ProducerState
    from catalog.model import ProducerStamp, RunResult

MAX_GAPS: Final = 1_000


class SequenceGap(NamedTuple):
    """Missing sequence numbers of a producer's epoch, both inclusive; they may wrap."""

    producer_id: int
    producer_epoch: int
    first: int
    last: int


class SectionGaps:
    """Gaps of one partition during a readoption of one section."""

    def __init__(
        self, known: Iterable[SequenceGap], first_new_producer_id: int, *, must_append: bool
    ) -> None:
        """Take the recorded gaps. With `must_append`, the section was acknowledged."""
        self._first_new_producer_id = first_new_producer_id
        self._must_append = must_append
        self._known = frozenset(known)
        self._gaps: dict[tuple[int, int], set[SequenceGap]] = {}
        for gap in self._known:
            self._gaps.setdefault(gap[:2], set()).add(gap)

    def must_append(
        self, verdict: RunResult, state: ProducerState | None, stamp: ProducerStamp, offset_count: int
    ) -> bool:
        """Return True if a batch that an ordinary commit rejects must be appended by this readoption."""
        if verdict.duplicate:
            return False
        gap = self._gap_of(stamp, offset_count)
        if self._must_append:
            return gap is not None or not is_in_log(verdict, state, stamp)
        may_have_expired = stamp.producer_id < self._first_new_producer_id
        return gap is not None and not (gap.first == 0 and may_have_expired)

    def appended(self, state: ProducerState | None, stamp: ProducerStamp, offset_count: int) -> None:
        """Note that a batch was appended; `state` is that of its producer before."""
        gap = self._gap_of(stamp, offset_count)
        if gap is not None:
            self._gaps[gap[:2]].remove(gap)
            if gap.first != stamp.base_sequence:
                self._add(stamp, gap.first, stamp.base_sequence - 1)
            last = last_sequence(stamp.base_sequence, offset_count)
            if gap.last != last:
                self._add(stamp, last + 1, gap.last)
        elif is_ahead(state, stamp):
            is_same_epoch = state is not None and state.producer_epoch == stamp.producer_epoch
            expected = int.from_bytes(state.batches[-12:-8], "big") + 1 if state and is_same_epoch else 0
            if expected % SEQUENCES != stamp.base_sequence:
                self._add(stamp, expected, stamp.base_sequence - 1)

    def removed(self) -> frozenset[SequenceGap]:
        """Return the recorded gaps that are filled, at least in part."""
        return self._known - frozenset().union(*self._gaps.values())

    def added(self) -> frozenset[SequenceGap]:
        """Return the gaps to record."""
        return frozenset[SequenceGap]().union(*self._gaps.values()) - self._known

    def _add(self, stamp: ProducerStamp, first: int, last: int) -> None:
        key = (stamp.producer_id, stamp.producer_epoch)
        gaps = self._gaps.setdefault(key, set())
        if len(gaps) < MAX_GAPS:
            gaps.add(SequenceGap(*key, first % SEQUENCES, last % SEQUENCES))

    def _gap_of(self, stamp: ProducerStamp, offset_count: int) -> SequenceGap | None:
        """Return the gap that contains a batch."""
        for gap in self._gaps.get((stamp.producer_id, stamp.producer_epoch), ()):
            before = (stamp.base_sequence - gap.first) % SEQUENCES
            if before + offset_count - 1 <= (gap.last - gap.first) % SEQUENCES:
                return gap
        return None
