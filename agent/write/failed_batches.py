"""Idempotent producers whose batches this agent could not append, and whose next batches wait for the retry.

Batches behind a failed one were on their way when it failed, so they have a gap before them. As an out of
order sequence, the gap would make librdkafka begin a new producer epoch, and send all batches of unknown
outcome again under it. Those that are in a log after all would be there twice. So the gap is a retriable
error here, as in Kafka, where the cause of the first failure also meets the batches behind it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from catalog.model import RunRefusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from agent.write.ingestion_buffer import OpenFile
    from agent.write.validation import ValidatedAppend, ValidatedBatch
    from catalog.model import BatchRun, FileCommit, RunResult, SectionCommit, SectionResult
    from core.clock import Clock

MAX_KEYS: Final = 10_000
"""Of more, the oldest are forgotten; their gaps are out of order sequences."""
WAIT_SECONDS: Final = 60.0
"""Time for a producer to send a failed batch again, counted from its last failure."""
_Key = tuple["UUID", int, int, int]
"""Topic, partition, producer id and epoch."""


class FailedBatches:
    """Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[_Key, float] = {}

    def note_file(self, file: OpenFile) -> None:
        """Note that a file with its batches was not committed, as far as is known."""
        for topic_id, sections in file.topics.items():
            for partition, pieces in sections.items():
                for piece in pieces:
                    self._note(topic_id, partition, piece.batches)

    def note_appends(self, appends: Iterable[ValidatedAppend]) -> None:
        """Note that appends were not accepted."""
        for append in appends:
            self._note(append.topic.topic_id, append.partition, append.batches)

    def _note(self, topic_id: UUID, partition: int, batches: Iterable[ValidatedBatch]) -> None:
        until = self._clock.monotonic() + WAIT_SECONDS
        for batch in batches:
            if batch.producer is not None:
                key = topic_id, partition, batch.producer.producer_id, batch.producer.producer_epoch
                self._until.pop(key, None)  # the newest is last
                self._until[key] = until
        while len(self._until) > MAX_KEYS:
            del self._until[next(iter(self._until))]

    def judge(self, commit: FileCommit, results: Sequence[SectionResult]) -> Sequence[SectionResult]:
        """Return the results of a commit, with FOLLOWS_FAILED for the gaps behind failed batches."""
        self._forget_old()
        if not self._until:
            return results
        return [
            self._judged(section, result)
            if any(run.refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE for run in result.runs)
            else result
            for section, result in zip(commit.sections, results, strict=True)
        ]

    def _judged(self, section: SectionCommit, result: SectionResult) -> SectionResult:
        runs = zip(section.runs, result.runs, strict=True)
        return replace(result, runs=tuple(self._judged_run(section, run, done) for run, done in runs))

    def _judged_run(self, section: SectionCommit, run: BatchRun, result: RunResult) -> RunResult:
        stamp = run.producer
        if stamp is None or result.refusal is not RunRefusal.OUT_OF_ORDER_SEQUENCE:
            return result
        key = section.topic_id, section.partition, stamp.producer_id, stamp.producer_epoch
        return replace(result, refusal=RunRefusal.FOLLOWS_FAILED) if key in self._until else result

    def _forget_old(self) -> None:
        now = self._clock.monotonic()
        while self._until and next(iter(self._until.values())) <= now:
            del self._until[next(iter(self._until))]
