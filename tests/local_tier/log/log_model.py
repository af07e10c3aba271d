"""The model of `test_log_machine.py`: a list of batches, and the state that follows from it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis.stateful import RuleBasedStateMachine
from typing_extensions import override

from local_tier.config import LogConfig
from tests.local_tier.logs import LogHarness, crash

if TYPE_CHECKING:
    from local_tier.log.unified_log import UnifiedLog

CONFIG = LogConfig(
    segment_bytes=1400, segment_index_bytes=12 * 40, index_interval_bytes=100, retention_ms=600_000
)


@dataclass(frozen=True)
class Known:
    """A batch that the log should have."""

    first: int
    last: int
    timestamp: int
    producer: int
    next_sequence: int = 0
    is_transactional: bool = False
    aborts: bool | None = None  # for a marker: True if it aborts


class LogModel(RuleBasedStateMachine):
    """The list of batches, and the expected offsets."""

    def __init__(self) -> None:
        super().__init__()
        self._root = tempfile.TemporaryDirectory()
        self.harness = LogHarness(Path(self._root.name))
        self.log: UnifiedLog = self.harness.open(CONFIG)
        self.batches: list[Known] = []
        self.end = self.start = self.high_watermark = 0
        self.history: list[Known] = []  # including batches that were deleted or cleaned since
        self.sequences: dict[int, int] = {}
        self.open_since: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.markers: dict[int, int] = {}  # of ended transactions, by first offset
        self.epoch = 0
        self.rebuilt_at = 0  # below this offset, the log may not know which markers are replicated

    @override
    def teardown(self) -> None:
        crash(self.log)
        self._root.cleanup()

    def next_sequence(self, producer: int) -> int:
        """Return a producer's next sequence number.

        As in Kafka, it is 0 if only a marker of the producer is left.
        """
        known = self.log.known_producers().get(producer)
        return 0 if known is not None and not known.batches else self.sequences.get(producer, 0)

    def idempotent(self) -> list[Known]:
        """Return the readable batches of the producers without transactions."""
        return [known for known in self.batches if known.producer in {7, 8} and known.first >= self.start]

    def note(
        self,
        count: int,
        timestamp: int,
        producer: int,
        next_sequence: int,
        *,
        is_transactional: bool = False,
        aborts: bool | None = None,
    ) -> None:
        """Add an appended batch, whose records are a millisecond apart."""
        known = Known(
            self.end,
            self.end + count - 1,
            timestamp + count - 1,
            producer,
            next_sequence,
            is_transactional,
            aborts,
        )
        self.batches.append(known)
        self.end += count
        self.learn(known)

    def learn(self, known: Known) -> None:
        """Apply a batch to the state of producers and transactions."""
        self.history.append(known)
        if known.producer >= 0:
            self.sequences[known.producer] = known.next_sequence
        if known.is_transactional:
            self.open_since.setdefault(known.producer, known.first)
        if known.aborts is not None:
            first = self.open_since.pop(known.producer)
            self.markers[first] = known.first
            if known.aborts:
                self.aborted.append((known.producer, first, known.first))

    def last_stable(self, known_from: int = 0) -> int:
        """Return the last stable offset if markers below `known_from` count as replicated.

        After a rebuild, the log may not know which markers are not replicated.
        """
        unreplicated = (
            first for first, at in self.markers.items() if at >= max(self.high_watermark, known_from)
        )
        unstable = min((*self.open_since.values(), *unreplicated), default=self.high_watermark)
        return max(self.start, min(self.high_watermark, unstable))
