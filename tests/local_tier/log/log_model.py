"""What a log should hold: a list of batches, and what follows from it; the model of `test_log_machine.py`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis.stateful import RuleBasedStateMachine
from typing_extensions import override

from local_tier.config import LogConfig
from tests.local_tier.logs import Place, crash

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
    aborts: bool | None = None  # of a marker: whether it aborts


class LogModel(RuleBasedStateMachine):
    """The list of batches, and the offsets that hold for it."""

    def __init__(self) -> None:
        super().__init__()
        self._root = tempfile.TemporaryDirectory()
        self.place = Place(Path(self._root.name))
        self.log: UnifiedLog = self.place.open(CONFIG)
        self.batches: list[Known] = []
        self.end = self.start = self.high_watermark = 0
        self.history: list[Known] = []  # also what was deleted or cleaned since
        self.sequences: dict[int, int] = {}
        self.open_since: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.markers: dict[int, int] = {}  # of transactions that have ended, by their first offsets
        self.epoch = 0
        self.rebuilt_at = 0  # up to here, the log may know no more what was replicated when

    @override
    def teardown(self) -> None:
        crash(self.log)
        self._root.cleanup()

    def next_sequence(self, producer: int) -> int:
        """As Kafka has it, a producer of whom a marker is left and no batch begins at 0 again."""
        known = self.log.known_producers().get(producer)
        return 0 if known is not None and not known.batches else self.sequences.get(producer, 0)

    def idempotent(self) -> list[Known]:
        """The readable batches of the producers that use no transactions."""
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
        """A batch that was appended, its records a millisecond apart."""
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
        """What a batch does to producers and transactions."""
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
        """How far readers of committed data see, if markers below `known_from` count as replicated.

        A log that is rebuilt may forget that they are not.
        """
        unreplicated = (
            first for first, at in self.markers.items() if at >= max(self.high_watermark, known_from)
        )
        unstable = min((*self.open_since.values(), *unreplicated), default=self.high_watermark)
        return max(self.start, min(self.high_watermark, unstable))
