"""Readoptions of one producer's batches in any order append each of them once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import assume, given
from hypothesis import strategies as st

from catalog.commit import sequence_gaps
from catalog.commit.assignment import assign_section
from catalog.commit.sequence_gaps import OpenedGaps, SectionGaps, SequenceGap
from catalog.commit.sequences import SEQUENCES
from catalog.model import BatchRun, ProducerStamp, RunRefusal

if TYPE_CHECKING:
    import pytest

    from catalog.commit.sequences import ProducerState
    from catalog.model import RunResult

_ID = 7
_MANY = 1_000_000


class Partition:
    """Partition with one producer, whose gaps are stored between readoptions."""

    def __init__(self, first_new_producer_id: int = 0) -> None:
        self.producers: dict[int, ProducerState] = {}
        self.gaps: set[SequenceGap] = set()
        self.end = 0
        self._first_new_producer_id = first_new_producer_id

    def commit(self, sequence: int, count: int, *, epoch: int = 0, records_gaps: bool = False) -> RunResult:
        gaps = OpenedGaps() if records_gaps else None
        result = self._append(gaps, sequence, count, epoch)
        if gaps is not None:
            self.gaps |= gaps.added()
        return result

    def readopt(self, sequence: int, count: int, *, epoch: int = 0, acknowledged: bool = True) -> RunResult:
        gaps = SectionGaps(self.gaps, self._first_new_producer_id, must_append=acknowledged)
        result = self._append(gaps, sequence, count, epoch)
        assert gaps.removed() <= self.gaps
        assert not gaps.added() & self.gaps
        self.gaps = (self.gaps - gaps.removed()) | gaps.added()
        return result

    def missing(self, epoch: int = 0) -> set[int]:
        """Return the sequence numbers in gaps; of a gap behind the end of an epoch only the first one."""
        found = set()
        for gap in self.gaps:
            length = (gap.last - gap.first) % SEQUENCES + 1
            numbers = range(length if length < _MANY else 1)
            if gap.producer_epoch == epoch:
                found |= {(gap.first + each) % SEQUENCES for each in numbers}
        return found

    def _append(self, gaps: OpenedGaps | None, sequence: int, count: int, epoch: int) -> RunResult:
        stamp = ProducerStamp(producer_id=_ID, producer_epoch=epoch, base_sequence=sequence % SEQUENCES)
        run = BatchRun(
            first_offset=0,
            offset_count=count,
            record_count=count,
            min_timestamp=0,
            max_timestamp=0,
            producer=stamp,
        )
        done = assign_section([run], self.end, self.producers, self._first_new_producer_id, gaps=gaps)
        self.producers |= done.producers
        self.end = done.log_end_offset
        return done.runs[0]


_COUNTS = st.lists(st.integers(1, 3), min_size=1, max_size=12)


@given(_COUNTS, st.data(), st.sampled_from([0, SEQUENCES - 10]))
def test_each_batch_is_appended_once_in_any_order(counts: list[int], data: st.DataObject, begin: int) -> None:
    """Some batches are in the log; the others are lost, in several files each."""
    batches: list[tuple[int, int]] = []
    for count in counts:
        batches.append((begin + sum(each for _, each in batches), count))
    kept = data.draw(st.integers(1 if begin else 0, len(batches)))
    partition = Partition(first_new_producer_id=_ID + 1 if begin else 0)
    for batch in batches[:kept]:
        assert partition.commit(*batch).refusal is None
    lost = range(kept, len(batches))
    order = data.draw(st.lists(st.sampled_from(batches), max_size=30)) + [batches[each] for each in lost]
    there = set(batches[:kept])
    for batch in order:
        end = partition.end
        result = partition.readopt(*batch)
        is_appended = result.refusal is None and not result.duplicate
        assert is_appended is (batch not in there), batch
        assert partition.end - end == batch[1] * is_appended
        there.add(batch)
        last = max(first + count for first, count in there)
        assert partition.missing() == {
            (first + each) % SEQUENCES
            for first, count in set(batches) - there
            for each in range(count)
            if first < last
        }
    assert not partition.gaps
    assert partition.commit(begin + sum(counts), 1).refusal is None


def test_a_gap_is_filled_by_a_file_that_may_never_have_been_acknowledged() -> None:
    """The lost log had it, because it had the acknowledged batch behind. Other batches have no such proof."""
    partition = Partition()
    partition.commit(0, 2)
    partition.readopt(6, 2)
    for sequence, count in ((9, 1), (4, 3), (0, 1)):
        assert partition.readopt(sequence, count, acknowledged=False).refusal is not None
    assert partition.readopt(3, 2, acknowledged=False).base_offset == 4
    assert partition.readopt(3, 2, acknowledged=False).duplicate
    assert partition.missing() == {2, 5}


def test_a_gap_before_a_state_that_may_have_expired_is_no_proof() -> None:
    partition = Partition(first_new_producer_id=_ID + 1)
    assert partition.readopt(6, 2).base_offset == 0
    assert partition.missing() == set(range(6))
    assert partition.readopt(3, 1, acknowledged=False).refusal is not None
    assert partition.readopt(3, 1).base_offset == 2
    assert partition.readopt(4, 1, acknowledged=False).base_offset == 3, "the lost log had it before"


def test_each_epoch_has_its_gaps() -> None:
    partition = Partition()
    partition.readopt(2, 1)
    partition.readopt(4, 1, epoch=1)
    assert (partition.missing(), partition.missing(1)) == ({0, 1, 3}, {0, 1, 2, 3})
    assert partition.readopt(1, 1).base_offset == 2
    assert (partition.missing(), partition.missing(1)) == ({0, 3}, {0, 1, 2, 3})


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=8),
    st.data(),
    st.sampled_from([0, SEQUENCES - 10]),
    st.booleans(),
)
def test_lost_batches_of_an_earlier_epoch_are_appended_once(
    counts: list[int], data: st.DataObject, begin: int, by_readoption: bool
) -> None:
    """Their producer has begun another epoch behind them, and their agent may not have reported them."""
    batches = [(begin + sum(counts[:each]), count) for each, count in enumerate(counts)]
    # A gap from 0 on may be one before an expired state: no unacknowledged batch is appended there.
    assume(all(first != SEQUENCES for first, _ in batches))
    kept = data.draw(st.integers(1, len(batches)))
    partition = Partition(first_new_producer_id=_ID + 1 if begin else 0)
    for batch in batches[:kept]:
        assert partition.commit(*batch).refusal is None
    if by_readoption:
        assert partition.readopt(0, 1, epoch=1).refusal is None
    else:
        assert partition.commit(0, 1, epoch=1, records_gaps=True).refusal is None
    there = set(batches[:kept])
    for batch, acknowledged in data.draw(
        st.lists(st.tuples(st.sampled_from(batches), st.booleans()), max_size=20)
    ):
        result = partition.readopt(*batch, acknowledged=acknowledged)
        assert (result.refusal is None and not result.duplicate) is (batch not in there), batch
        there.add(batch)
    assert partition.commit(1, 1, epoch=1).refusal is None


def test_an_ordinary_commit_appends_no_batch_in_a_gap() -> None:
    partition = Partition()
    partition.commit(0, 1)
    partition.commit(0, 1, epoch=1, records_gaps=True)
    refused = partition.commit(1, 1, records_gaps=True)
    assert refused.refusal is RunRefusal.INVALID_PRODUCER_EPOCH
    assert partition.missing() == {1}


def test_a_producer_whose_state_may_have_expired_leaves_a_gap() -> None:
    """Its last batches may be in the log, so only acknowledged ones are appended."""
    partition = Partition(first_new_producer_id=_ID + 1)
    assert partition.commit(4, 1, records_gaps=True).base_offset == 0
    assert partition.missing() == {0, 1, 2, 3}
    assert partition.readopt(3, 1, acknowledged=False).refusal is not None
    assert partition.readopt(3, 1).base_offset == 1


def test_the_gaps_of_a_producer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_gaps, "MAX_GAPS", 2)
    partition = Partition()
    for sequence in range(1, 9, 2):
        partition.readopt(sequence, 1)
    assert partition.missing() == {0, 2}
