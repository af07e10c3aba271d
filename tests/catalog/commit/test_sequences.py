"""Sequence checks and offset assignment agree with a simple model that stores everything."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.commit.assignment import (
    assign_section,
    check_commit,
    extents_of_section,
    waiting_for_readoption,
)
from catalog.commit.results import appended_range
from catalog.commit.sequences import (
    BATCH,
    ProducerState,
    append_batch,
    check_sequence,
    is_ahead,
    is_in_log,
    last_sequence,
)
from catalog.errors import InvalidCommitError
from catalog.model import FileCommit, OffsetRange, ProducerStamp, RunRefusal, RunResult, SectionCommit
from tests.catalog.scene import run_of, runs_of

if TYPE_CHECKING:
    from catalog.model import BatchRun

_TOP = 2**31 - 1
_ID = UUID(int=1)
_COMMIT = FileCommit(file_id=_ID, object_name="name", size=9, directory_length=1, session_id=_ID, sections=())


@dataclass
class SlowPartition:
    """Model of a partition with every offset and every batch."""

    offsets: list[tuple[int, int]] = field(default_factory=list)  # (run's identity, record in the run)
    first_new_producer_id: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    batches: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    def append(self, identity: int, run: BatchRun) -> RunResult:
        stamp = run.producer
        if stamp is not None:
            verdict = self._check(stamp, run.offset_count)
            if verdict is not None:
                return verdict
        base = len(self.offsets)
        self.offsets += [(identity, record) for record in range(run.offset_count)]
        if stamp is not None:
            if self.epochs.get(stamp.producer_id) != stamp.producer_epoch:
                self.epochs[stamp.producer_id] = stamp.producer_epoch
                self.batches[stamp.producer_id] = []
            numbers = _count_up(stamp.base_sequence, run.offset_count)
            self.batches[stamp.producer_id].append((numbers[0], numbers[-1], base))
        return RunResult(base_offset=base)

    def _check(self, stamp: ProducerStamp, count: int) -> RunResult | None:
        epoch = self.epochs.get(stamp.producer_id)
        wrong = RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE)
        if epoch is None:
            may_have_expired = stamp.producer_id < self.first_new_producer_id
            return None if may_have_expired or stamp.base_sequence == 0 else wrong
        if stamp.producer_epoch < epoch:
            return RunResult(refusal=RunRefusal.INVALID_PRODUCER_EPOCH)
        if stamp.producer_epoch > epoch:
            return None if stamp.base_sequence == 0 else wrong
        numbers = _count_up(stamp.base_sequence, count)
        for first, last, base in self.batches[stamp.producer_id][-5:]:
            if (first, last) == (numbers[0], numbers[-1]):
                return RunResult(base_offset=base, duplicate=True)
        newest = self.batches[stamp.producer_id][-1][1]
        return None if stamp.base_sequence == _count_up(newest, 2)[1] else wrong


def _count_up(first: int, count: int) -> list[int]:
    numbers = [first]
    while len(numbers) < count:
        numbers.append(0 if numbers[-1] == _TOP else numbers[-1] + 1)
    return numbers


_sequences = st.one_of(st.integers(0, 12), st.integers(_TOP - 6, _TOP))
_producers = st.none() | st.tuples(st.integers(1, 2), st.integers(0, 2), _sequences)
_runs = st.builds(
    lambda count, at, producer: run_of(count, at=at, producer=producer),
    st.integers(1, 4),
    st.integers(0, 50),
    _producers,
)


def _section(runs: tuple[BatchRun, ...]) -> SectionCommit:
    return SectionCommit(topic_id=_ID, partition=0, position=0, length=1, runs=runs)


@given(st.lists(st.lists(_runs, min_size=1, max_size=6), max_size=6), st.integers(0, 3))
def test_assignment_agrees_with_the_model(files: list[list[BatchRun]], first_new_producer_id: int) -> None:
    model = SlowPartition(first_new_producer_id=first_new_producer_id)
    end = 0
    producers: dict[int, ProducerState] = {}
    identity = 0
    for runs in files:
        section = _section(runs_of(*runs))
        assignment = assign_section(section.runs, end, producers, first_new_producer_id)
        covered = []
        appended = []
        for run, result in zip(section.runs, assignment.runs, strict=True):
            identity += 1
            expected = model.append(identity, run)
            assert (result.base_offset, result.duplicate, result.refusal) == (
                expected.base_offset,
                expected.duplicate,
                expected.refusal,
            )
            if result.refusal is None and not result.duplicate:
                appended.append(run)
                covered += [
                    (result.base_offset + record, run.first_offset + record)
                    for record in range(run.offset_count)
                ]
        extents = extents_of_section(section, assignment.runs)
        whole = OffsetRange(str(_ID), 0, covered[0][0], covered[-1][0] + 1) if covered else None
        assert appended_range(section, assignment.runs) == whole
        assert [
            (offset, offset - extent.offset_shift)
            for extent in extents
            for offset in range(extent.base_offset, extent.last_offset + 1)
        ] == covered
        assert sum(extent.record_count for extent in extents) == sum(run.record_count for run in appended)
        for extent in extents:
            first, last = extent.base_offset - extent.offset_shift, extent.last_offset - extent.offset_shift
            inside = [run for run in appended if first <= run.first_offset <= last]
            assert extent.min_timestamp == min(run.min_timestamp for run in inside)
            assert extent.max_timestamp == max(run.max_timestamp for run in inside)
        shifts = [extent.offset_shift for extent in extents]
        assert all(one != other for one, other in pairwise(shifts)), "not coalesced"
        producers |= assignment.producers
        end = assignment.log_end_offset
    assert end == len(model.offsets)


def _stamp(sequence: int, epoch: int = 0) -> ProducerStamp:
    return ProducerStamp(producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def test_only_runs_out_of_order_wait_for_a_readoption() -> None:
    for refusal in (None, *RunRefusal):
        waits = waiting_for_readoption(RunResult(refusal=refusal, detail="why"))
        gap = refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE
        assert waits == RunResult(refusal=RunRefusal.AWAITS_READOPTION if gap else refusal, detail="why")


@given(
    st.integers(0, _TOP),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=5),
    st.integers(-6, 30),
)
def test_a_lost_batch_is_in_the_log_unless_it_is_ahead_or_in_a_gap(
    begin: int, parts: list[tuple[int, int]], distance: int
) -> None:
    """A part is a gap and the batch behind it. Batches older than the kept ones have no gaps."""
    kept: list[tuple[int, int]] = []
    end = begin
    for gap, count in parts:
        kept.append((end + gap, end + gap + count - 1))
        end += gap + count
    size = _TOP + 1
    batches = b"".join(BATCH.pack(first % size, last % size, 0) for first, last in kept)
    state, sequence = ProducerState(3, batches), begin + distance
    stamp = _stamp(sequence % size, epoch=3)
    refused, duplicate = RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE), RunResult(duplicate=True)
    is_known = sequence < kept[0][0] or any(first <= sequence <= last for first, last in kept)
    assert is_ahead(state, stamp) is (sequence > kept[-1][1])
    assert is_in_log(refused, state, stamp) is is_known
    for other, other_stamp, ahead in (
        (state, replace(stamp, producer_epoch=2), False),
        (state, replace(stamp, producer_epoch=4), True),
        (None, stamp, True),
    ):
        assert is_ahead(other, other_stamp) is ahead
        assert not is_in_log(refused, other, other_stamp)
        assert is_in_log(duplicate, other, other_stamp)


def test_sequence_numbers_wrap_around() -> None:
    state = append_batch(None, _stamp(_TOP - 1), 2, 100)
    assert state == ProducerState(0, BATCH.pack(_TOP - 1, _TOP, 100))
    assert check_sequence(state, _stamp(0), 3, 0) is None
    assert last_sequence(_TOP, 3) == 1
    across = append_batch(state, _stamp(0), 3, 102)
    assert check_sequence(across, _stamp(_TOP - 1), 2, 0) == RunResult(base_offset=100, duplicate=True)


def test_a_producer_that_may_have_expired_begins_with_any_sequence() -> None:
    assert check_sequence(None, _stamp(17), 1, first_new_producer_id=8) is None


def test_a_producer_with_a_failed_batch_begins_at_zero_although_it_may_have_expired() -> None:
    """The first file of a producer that is new to the partition has failed, and the second one succeeds."""
    runs = [run_of(1, at=0, producer=(7, 0, sequence)) for sequence in (1, 0, 1)]
    assigned = assign_section(runs_of(*runs), 0, {}, 8, failed_producers={(7, 0)})
    refused, *appended = assigned.runs
    assert refused.refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert not refused.is_behind
    assert appended == [RunResult(base_offset=0), RunResult(base_offset=1)]
    others = {(7, 1), (6, 0)}
    assert assign_section(runs_of(runs[0]), 0, {}, 8, failed_producers=others).log_end_offset == 1


def test_a_new_producer_begins_at_zero() -> None:
    """Its earlier batch has failed and will be retried, so a later batch must not take its offsets."""
    assert check_sequence(None, _stamp(0), 1, first_new_producer_id=7) is None
    refused = check_sequence(None, _stamp(17), 1, first_new_producer_id=7)
    assert refused is not None
    assert refused.refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    state = append_batch(None, _stamp(0), 5, 0)
    refused = check_sequence(state, _stamp(5, epoch=1), 1, 0)
    assert refused is not None
    assert refused.refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert check_sequence(state, _stamp(0, epoch=1), 1, 0) is None
    state = append_batch(state, _stamp(0, epoch=1), 1, 5)
    assert state == ProducerState(1, BATCH.pack(0, 0, 5))
    refused = check_sequence(state, _stamp(5), 1, 0)
    assert refused is not None
    assert refused.refusal is RunRefusal.INVALID_PRODUCER_EPOCH


def test_the_last_five_batches_are_known_as_duplicates() -> None:
    state = None
    for sequence in range(6):
        state = append_batch(state, _stamp(sequence), 1, sequence)
    assert check_sequence(state, _stamp(1), 1, 0) == RunResult(base_offset=1, duplicate=True)
    expired = check_sequence(state, _stamp(0), 1, 0)
    assert expired is not None
    assert expired.refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE


@pytest.mark.parametrize("begin", [0, _TOP - 3])
def test_a_batch_that_the_log_has_passed_is_behind(begin: int) -> None:
    state = None
    for number in range(6):
        state = append_batch(state, _stamp((begin + number) % (_TOP + 1)), 1, number)
    behind = []
    for number in (0, 5, 7):
        refused = check_sequence(state, _stamp((begin + number) % (_TOP + 1)), 2, 0)
        assert refused is not None
        behind.append(refused.is_behind)
    assert behind == [True, True, False]
    for gap in (
        check_sequence(None, _stamp(1), 1, 0),
        check_sequence(append_batch(None, _stamp(5), 1, 0), _stamp(1, epoch=1), 1, 0),
    ):
        assert gap is not None
        assert not gap.is_behind


def test_a_part_of_a_batch_is_not_a_duplicate() -> None:
    state = append_batch(None, _stamp(0), 5, 0)
    refused = check_sequence(state, _stamp(0), 4, 0)
    assert refused is not None
    assert refused.refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE


def _commit(*sections: SectionCommit) -> FileCommit:
    return FileCommit(
        file_id=_ID, object_name="x", size=1, directory_length=1, session_id=_ID, sections=sections
    )


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ((_section(()),), "the section is empty"),
        ((_section((run_of(1, first=1),)),), "begins at 1 with 1 offsets, the one before ends at 0"),
        ((_section((run_of(1), run_of(1))),), "begins at 0 with 1 offsets, the one before ends at 1"),
        (
            (_section((run_of(2), run_of(1, first=3))),),
            "begins at 3 with 1 offsets, the one before ends at 2",
        ),
        ((_section((run_of(0),)),), "begins at 0 with 0 offsets"),
        ((_section((replace(run_of(2), record_count=3),)),), "has 3 records at 2 offsets"),
        ((_section((replace(run_of(2), record_count=-1),)),), "has -1 records at 2 offsets"),
        ((_section((run_of(1),)), _section((run_of(1),))), "the partition has two sections"),
    ],
)
def test_an_inconsistent_commit_is_rejected(sections: tuple[SectionCommit, ...], problem: str) -> None:
    with pytest.raises(InvalidCommitError, match=f"partition 0: .*{problem}"):
        check_commit(_commit(*sections))


def test_a_consistent_commit_is_accepted() -> None:
    """Runs may lack records, even all of them, but no offset."""
    section = _section((run_of(1), run_of(2, first=1), replace(run_of(3, first=3), record_count=0)))
    check_commit(_commit(section, replace(_section((run_of(1),)), partition=1)))
