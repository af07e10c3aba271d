"""Gaps behind failed batches are retriable for a minute, for as many producers as fit."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from agent.write import failed_batches
from agent.write.failed_batches import WAIT_SECONDS, FailedBatches
from agent.write.ingestion_buffer import IngestionBuffer
from agent.write.pending_append import PendingAppend
from agent.write.validation import ValidatedAppend, validate
from catalog.config.values import TopicConfig
from catalog.model import (
    BatchRun,
    FileCommit,
    ProducerStamp,
    RunRefusal,
    RunResult,
    SectionCommit,
    SectionResult,
    Topic,
)
from core.clock import ManualClock
from object_format.record_batch.records import encode_batch

if TYPE_CHECKING:
    import pytest

_TOPIC = Topic(topic_id=UUID(int=1), name="t", partition_count=9, config=TopicConfig.of({}), created_ms=0)
_GAP, _FOLLOWS = RunRefusal.OUT_OF_ORDER_SEQUENCE, RunRefusal.FOLLOWS_FAILED


def append(producer: int, partition: int = 0, epoch: int = 0) -> ValidatedAppend:
    data = encode_batch([0], [b"k"], [b"v"], producer=(producer, epoch, 0))
    return validate(_TOPIC, partition, bytearray(data), now_ms=0)


def refusals(
    failed: FailedBatches, *runs: tuple[int, RunRefusal | None], partition: int = 0, epoch: int = 0
) -> list[RunRefusal | None]:
    """Return what `judge` makes of the refusals of a file with a run for each (producer, refusal)."""
    section = SectionCommit(
        topic_id=_TOPIC.topic_id,
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
        topic_id=_TOPIC.topic_id,
        partition=partition,
        log_start_offset=0,
        high_watermark=1,
        leader_epoch=0,
        runs=tuple(RunResult(refusal=refusal) for _, refusal in runs),
    )
    (judged,) = failed.judge(commit, [result])
    return [run.refusal for run in judged.runs]


def test_only_gaps_of_producers_with_failed_batches_are_retriable() -> None:
    failed = FailedBatches(ManualClock())
    failed.note_appends([append(5), append(-1)])
    other = RunRefusal.INVALID_PRODUCER_EPOCH
    assert refusals(failed, (5, _GAP), (6, _GAP), (5, None), (-1, None), (5, other)) == [
        *(_FOLLOWS, _GAP, None, None, other)
    ]
    assert refusals(failed, (5, _GAP), partition=1) == [_GAP]
    assert refusals(failed, (5, _GAP), epoch=1) == [_GAP]


def test_all_batches_of_a_failed_file_count() -> None:
    failed = FailedBatches(ManualClock())
    buffer = IngestionBuffer(1 << 20)
    for producer, partition in ((5, 0), (6, 0), (5, 1)):
        buffer.add(append(producer, partition), PendingAppend(1))
    failed.note_file(buffer.take())
    assert refusals(failed, (5, _GAP), (6, _GAP)) == [_FOLLOWS, _FOLLOWS]
    assert refusals(failed, (5, _GAP), (6, _GAP), partition=1) == [_FOLLOWS, _GAP]


def test_the_wait_ends_a_minute_after_the_last_failure() -> None:
    clock = ManualClock()
    failed = FailedBatches(clock)
    failed.note_appends([append(5), append(6)])
    clock.advance(WAIT_SECONDS - 1)
    failed.note_appends([append(5)])
    assert refusals(failed, (5, _GAP), (6, _GAP)) == [_FOLLOWS, _FOLLOWS]
    clock.advance(2)
    assert refusals(failed, (5, _GAP), (6, _GAP)) == [_FOLLOWS, _GAP]
    clock.advance(WAIT_SECONDS)
    assert refusals(failed, (5, _GAP)) == [_GAP]


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_batches, "MAX_KEYS", 2)
    failed = FailedBatches(ManualClock())
    failed.note_appends([append(5), append(6), append(5), append(7)])
    assert refusals(failed, (5, _GAP), (6, _GAP), (7, _GAP)) == [_FOLLOWS, _GAP, _FOLLOWS]
