"""Idempotent producers whose batches this agent could not append, and whose next batches wait for the retry.

Batches behind a failed one were on their way when it failed, so they have a gap before them. As an out of
order sequence, the gap would make librdkafka begin a new producer epoch, and send all batches of unknown
outcome again under it. Those that are in a log after all would be there twice. So the gap is a retriable
error here, as in Kafka, where the cause of the first failure also meets the batches behind it.

Every retriable failure counts: before validation (a full kernel pool, a topic that cannot be looked up), in a
full buffer, and of a file or a local log. All appends of an agent share one `FailedProducers`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from catalog.model import RunRefusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from catalog.model import BatchRun, FileCommit, ProducerStamp, RunResult, SectionCommit, SectionResult
    from core.clock import Clock

MAX_PRODUCERS: Final = 10_000
WAIT_SECONDS: Final = 60.0
"""Time for a producer to send a failed batch again, counted from its last failure."""
FOLLOWS_FAILED_DETAIL: Final = "an earlier batch of the producer has failed, and must be repeated first"
"""Detail of the refusal of that name."""


class FailedProducers:
    """The producers, by id and epoch, that have failed batches to send again. Belongs to the event loop.

    A batch of such a producer that comes after a gap is FOLLOWS_FAILED, which producers retry, for
    `WAIT_SECONDS` after the last failure. Then it is an out of order sequence again. If more than
    `MAX_PRODUCERS` fail within that time, it is so at once for those that failed first.

    Partitions make no difference, because one failed file may have batches of a producer for thousands. So a
    gap that has another reason may be retriable, too, for the same time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[tuple[int, int], float] = {}  # the last to fail is last

    def note(self, producers: Iterable[tuple[int, int]]) -> None:
        """Note that batches of these producers, by id and epoch, were not appended, as far as is known."""
        until = self._clock.monotonic() + WAIT_SECONDS
        for producer in producers:
            self._until.pop(producer, None)
            self._until[producer] = until
        while len(self._until) > MAX_PRODUCERS:
            del self._until[next(iter(self._until))]

    def include(self, stamp: ProducerStamp | None) -> bool:
        """Return True if the producer of a batch has a failed batch to send again."""
        return stamp is not None and self._until.get(stamp.identity, -math.inf) > self._clock.monotonic()

    def among(self, producers: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """Return those of the producers that have failed batches to send again."""
        self._forget_old()
        return frozenset(each for each in producers if each in self._until) if self._until else frozenset()

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
        return replace(result, runs=tuple(self._judged_run(run, done) for run, done in runs))

    def _judged_run(self, run: BatchRun, result: RunResult) -> RunResult:
        if (
            result.refusal is not RunRefusal.OUT_OF_ORDER_SEQUENCE
            or result.is_behind
            or not self.include(run.producer)
        ):
            return result
        return replace(result, refusal=RunRefusal.FOLLOWS_FAILED, detail=FOLLOWS_FAILED_DETAIL)

    def _forget_old(self) -> None:
        now = self._clock.monotonic()
        while self._until and next(iter(self._until.values())) <= now:
            del self._until[next(iter(self._until))]
