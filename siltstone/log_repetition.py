"""Handler that writes a repeated warning once, and then how often it came in each interval."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from typing_extensions import override

if TYPE_CHECKING:
    from typing import TextIO

    from core.clock import Clock

INTERVAL_SECONDS: Final = 60.0
MAX_CLIENTS: Final = 60
_MAX_EVENTS: Final = 1_000

_Key: TypeAlias = tuple[str, str, str]  # logger, event and client


@dataclass(slots=True)
class _Repetition:
    """A warning since it was last written: the time, how often it came again, and its last record."""

    written_at: float
    count: int = 0
    last: logging.LogRecord | None = None


class SummarizingHandler(logging.StreamHandler["TextIO"]):
    """Handler that summarizes warnings of the same logger, event and client.

    The first one is written at once. Further ones within an interval are counted. The last of them is
    written with the field `repeated` when the interval has passed and anything is logged, or at the end.
    Errors, information, and warnings with a reference that a client was given are always written. Of an
    event, `MAX_CLIENTS` clients are summarized each for itself, and the others together.
    """

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        super().__init__(stream)
        self._clock = clock
        self._repetitions: dict[_Key, _Repetition] = {}

    @override
    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock.monotonic()
        self._write_summaries(now - INTERVAL_SECONDS)
        if record.levelno != logging.WARNING or (isinstance(record.msg, dict) and "reference" in record.msg):
            super().emit(record)
            return
        key = self._key_of(record)
        known = self._repetitions.get(key)
        if known is not None:
            known.count += 1
            known.last = record
            return
        if len(self._repetitions) >= _MAX_EVENTS:
            self._write_summaries(now)
        self._repetitions[key] = _Repetition(now)
        super().emit(record)

    def _key_of(self, record: logging.LogRecord) -> _Key:
        """Return what tells repetitions of this warning from other warnings."""
        if not isinstance(record.msg, dict):
            return record.name, str(record.msg), ""
        event, client = str(record.msg.get("event")), str(record.msg.get("client", ""))
        key = record.name, event, client
        if key in self._repetitions or not client:
            return key
        clients = sum(1 for name, of, other in self._repetitions if other and (name, of) == key[:2])
        return key if clients < MAX_CLIENTS else (record.name, event, "")

    @override
    def close(self) -> None:
        """Write the counts that are not written yet."""
        self.acquire()
        try:
            self._write_summaries(self._clock.monotonic())
            self._repetitions.clear()
        finally:
            self.release()
        super().close()

    def _write_summaries(self, until: float) -> None:
        """Write the counts of the warnings that were last written at `until` or before."""
        for key, known in list(self._repetitions.items()):
            if known.written_at <= until:
                del self._repetitions[key]
                if known.last is not None:
                    super().emit(_with_count(known.last, known.count))
                    self._repetitions[key] = _Repetition(self._clock.monotonic())


def _with_count(record: logging.LogRecord, count: int) -> logging.LogRecord:
    counted = copy.copy(record)
    if isinstance(record.msg, dict):
        counted.msg = {**record.msg, "repeated": count}
    else:
        counted.msg, counted.args = f"{record.getMessage()} (repeated {count} times)", None
    return counted
