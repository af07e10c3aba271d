"""Gaps behind failed batches are retriable for a minute, for as many producers as fit."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from agent.write import failed_producers
from agent.write.failed_producers import WAIT_SECONDS, FailedProducers
from catalog.model import (
    BatchRun,
    FileCommit,
    ProducerStamp,
    RunRefusal,
    RunResult,
    SectionCommit,
    SectionResult,
)
from core.clock import ManualClock

if TYPE_CHECKING:
    import pytest

_TOPIC_ID = UUID(int=1)
_GAP, _FOLLOWS = RunRefusal.OUT_OF_ORDER_SEQUENCE, RunRefusal.FOLLOWS_FAILED


def refusals(
    failed: FailedProducers,
    *runs: tuple[int, RunRefusal | None],
    partition: int = 0,
    epoch: int = 0,
    is_behind: bool = False,
) -> list[RunRefusal | None]:
    """Return what `judge` makes of the refusals of a file with a run for each (producer, refusal)."""
    section = SectionCommit(
        topic_id=_TOPIC_ID,
        partition=partition,
        position=0,
        length=1,
        runs=tuple(
            BatchRun(
                first_offset=0,
                offset_count=1,
                record_count=1,
                min_timestamp=0,
                max_timestamp=0,
                producer=None
                if producer < 0
                else ProducerStamp(producer_id=producer, producer_epoch=epoch, base_sequence=1),
            )
            for producer, _ in runs
        ),
    )
    commit = FileCommit(
        file_id=UUID(int=2),
        object_name="object",
        size=1,
        directory_length=1,
        session_id=UUID(int=3),
        sections=(section,),
    )
    result = SectionResult(
        topic_id=_TOPIC_ID,
        partition=partition,
        log_start_offset=0,
        high_watermark=1,
        leader_epoch=0,
        runs=tuple(RunResult(refusal=refusal, detail="why", is_behind=is_behind) for _, refusal in runs),
    )
    (judged,) = failed.judge(commit, [result])
    for run in judged.runs:
        assert run.detail == (failed_producers.FOLLOWS_FAILED_DETAIL if run.refusal is _FOLLOWS else "why")
    return [run.refusal for run in judged.runs]


def test_only_gaps_of_producers_with_failed_batches_are_retriable() -> None:
    failed = FailedProducers(ManualClock())
    failed.note([(5, 0)])
    other = RunRefusal.INVALID_PRODUCER_EPOCH
    assert refusals(failed, (5, _GAP), (6, _GAP), (5, None), (-1, None), (-1, _GAP), (5, other)) == [
        *(_FOLLOWS, _GAP, None, None, _GAP, other)
    ]
    assert refusals(failed, (5, _GAP), epoch=1) == [_GAP]


def test_one_failure_counts_in_all_partitions() -> None:
    """A failed file may have batches of a producer for more partitions than producers are remembered."""
    failed = FailedProducers(ManualClock())
    failed.note([(5, 0)])
    assert refusals(failed, (5, _GAP), partition=7) == [_FOLLOWS]


def test_a_batch_that_the_log_has_passed_follows_no_failed_one() -> None:
    failed = FailedProducers(ManualClock())
    failed.note([(5, 0)])
    assert refusals(failed, (5, _GAP), is_behind=True) == [_GAP]


def test_the_wait_ends_a_minute_after_the_last_failure() -> None:
    clock = ManualClock()
    failed = FailedProducers(clock)
    failed.note([(5, 0), (6, 0)])
    clock.advance(WAIT_SECONDS - 1)
    failed.note([(5, 0)])
    assert refusals(failed, (5, _GAP), (6, _GAP)) == [_FOLLOWS, _FOLLOWS]
    clock.advance(1)
    assert refusals(failed, (5, _GAP), (6, _GAP)) == [_FOLLOWS, _GAP]
    clock.advance(WAIT_SECONDS)
    assert refusals(failed, (5, _GAP)) == [_GAP]


def test_the_failed_among_producers_are_found_until_the_wait_ends() -> None:
    clock = ManualClock()
    failed = FailedProducers(clock)
    assert failed.among({(5, 0)}) == frozenset()
    failed.note([(5, 0), (7, 0)])
    assert failed.among({(5, 0), (5, 1), (6, 0)}) == {(5, 0)}
    clock.advance(WAIT_SECONDS)
    assert failed.among({(5, 0)}) == frozenset()


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_producers, "MAX_PRODUCERS", 2)
    failed = FailedProducers(ManualClock())
    failed.note([(5, 0), (6, 0)])
    failed.note([(5, 0), (7, 0)])
    assert refusals(failed, (5, _GAP), (6, _GAP), (7, _GAP)) == [_FOLLOWS, _GAP, _FOLLOWS]
