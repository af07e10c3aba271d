"""Sequence numbers that a partition may lack, because commits were lost and later batches appended first.

A partition appends the batches of a producer without gaps. So a batch that comes before the last one is in
the log, with three exceptions. Each of them records what may be missing, in the transaction that appends:

- A readoption appends an acknowledged batch although others before it are missing. The agent that knows these
  may report later than the others.
- A producer begins another epoch. Batches of its last epoch, behind the last one in the log, may be in files
  of an agent that died. This gap is open: it ends half of all sequence numbers later.
- A producer without a state, which may have expired, begins with another number than 0.

Ordinary commits record the last two while sessions are unsettled: only then may lost files be readopted.
Batches in a gap are appended behind.

If a readoption skipped numbers of an epoch, the lost log had these batches: it contained later ones. A
batch behind the end of an epoch may never have been acknowledged. In both cases it is appended even if no
agent reports it as acknowledged. There is one exception: if the partition had no state of the producer,
because that may have expired, the batches may be in the log.

Only readoptions read gaps, under the locks of their partitions. Gaps are recorded per producer, epoch and
partition, at most `MAX_GAPS` of them; batches in further gaps count as present, as they do in gaps that
agents of earlier releases have left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import override

from catalog.commit.sequences import SEQUENCES, is_ahead, is_in_log, last_sequence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catalog.commit.sequences import ProducerState
    from catalog.model import ProducerStamp, RunResult

MAX_GAPS: Final = 1_000
_OPEN: Final = SEQUENCES // 2  # length of the gap behind the end of an epoch
_LEAST_OPEN: Final = _OPEN // 2  # after batches were appended from its beginning


class SequenceGap(NamedTuple):
    """Missing sequence numbers of a producer's epoch, both inclusive; they may wrap."""

    producer_id: int
    producer_epoch: int
    first: int
    last: int


class OpenedGaps:
    """Gaps of one partition that the commit of one section opens."""

    def __init__(self) -> None:
        self._gaps: dict[tuple[int, int], set[SequenceGap]] = {}

    def must_append(
        self, _verdict: RunResult, _state: ProducerState | None, _stamp: ProducerStamp, _offset_count: int
    ) -> bool:
        """Return False: an ordinary commit appends no batch out of order."""
        return False

    def appended(self, state: ProducerState | None, stamp: ProducerStamp, offset_count: int) -> None:
        """Note that a batch was appended; `state` is that of its producer before.

        Lost batches of transactions are never readopted, so nothing of them is recorded.
        """
        if stamp.is_transactional:
            return
        gap = self._gap_of(stamp, offset_count)
        if gap is not None:
            self._gaps[gap[:2]].remove(gap)
            if gap.first != stamp.base_sequence:
                self._add(gap[:2], gap.first, stamp.base_sequence - 1)
            last = last_sequence(stamp.base_sequence, offset_count)
            if gap.last != last:
                self._add(gap[:2], last + 1, gap.last)
        elif is_ahead(state, stamp):
            key = (stamp.producer_id, stamp.producer_epoch)
            expected = 0
            if state is not None:
                behind = int.from_bytes(state.batches[-12:-8], "big") + 1
                if state.producer_epoch == stamp.producer_epoch:
                    expected = behind
                else:
                    self._add((stamp.producer_id, state.producer_epoch), behind, behind + _OPEN - 1)
            if expected % SEQUENCES != stamp.base_sequence:
                self._add(key, expected, stamp.base_sequence - 1)

    def removed(self) -> frozenset[SequenceGap]:
        """Return the recorded gaps that are filled, at least in part."""
        return frozenset()

    def added(self) -> frozenset[SequenceGap]:
        """Return the gaps to record."""
        return frozenset[SequenceGap]().union(*self._gaps.values())

    def _add(self, key: tuple[int, int], first: int, last: int) -> None:
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


class SectionGaps(OpenedGaps):
    """Gaps of one partition during a readoption of one section."""

    def __init__(
        self, known: Iterable[SequenceGap], first_new_producer_id: int, *, must_append: bool
    ) -> None:
        """Take the recorded gaps. With `must_append`, the section was acknowledged."""
        super().__init__()
        self._first_new_producer_id = first_new_producer_id
        self._must_append = must_append
        self._known = frozenset(known)
        for gap in self._known:
            self._gaps.setdefault(gap[:2], set()).add(gap)

    @override
    def must_append(
        self, verdict: RunResult, state: ProducerState | None, stamp: ProducerStamp, offset_count: int
    ) -> bool:
        """Return True if a batch that an ordinary commit rejects must be appended by this readoption."""
        if verdict.duplicate:
            return False
        gap = self._gap_of(stamp, offset_count)
        if self._must_append:
            return gap is not None or not (self._is_open(stamp) or is_in_log(verdict, state, stamp))
        may_have_expired = stamp.producer_id < self._first_new_producer_id
        return gap is not None and not (gap.first == 0 and may_have_expired)

    @override
    def removed(self) -> frozenset[SequenceGap]:
        return self._known - super().added()

    @override
    def added(self) -> frozenset[SequenceGap]:
        return super().added() - self._known

    def _is_open(self, stamp: ProducerStamp) -> bool:
        """Return True if the end of the batch's epoch in the log is recorded."""
        gaps = self._gaps.get((stamp.producer_id, stamp.producer_epoch), ())
        return any((gap.last - gap.first) % SEQUENCES >= _LEAST_OPEN for gap in gaps)
