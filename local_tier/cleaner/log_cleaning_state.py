"""Which operation may work on the old segments of a log: the cleaner, retention, or one that pauses both.

A log without an operation has no state::

    none ──begin──> InProgress ──end──> none
                        │ pause
                        v
                    Aborted(n) ──end──> Paused(n)
    none ──pause──> Paused(1);  Paused(n) ──pause──> Paused(n+1);  Aborted(n) ──pause──> Aborted(n+1)
    Paused(n) ──resume──> Paused(n-1), or none from Paused(1)

Unlike in Kafka, an aborted log may be paused again. Each pause needs one resume.

Source: LogCleanerManager and LogCleaningState of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from core.errors import FatalError

if TYPE_CHECKING:
    from local_tier.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class InProgress:
    """A thread cleans the log or deletes its old segments."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """That thread was asked to stop, and `pauses` callers wait for it."""

    pauses: int


@dataclass(frozen=True, slots=True)
class Paused:
    """No operation may begin until `pauses` callers have resumed the log."""

    pauses: int


LogCleaningState: TypeAlias = InProgress | Aborted | Paused
IN_PROGRESS: Final = InProgress()


class LogCleaningStates:
    """The states of all logs. The caller provides the lock and waits."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, LogCleaningState] = {}

    def state(self, log: TopicPartition) -> LogCleaningState | None:
        """Return the state of a log, or None if there is no operation."""
        return self._states.get(log)

    def is_idle(self, log: TopicPartition) -> bool:
        """Return True if an operation may begin."""
        return log not in self._states

    def begin(self, log: TopicPartition) -> None:
        """Begin to clean the log or to delete its old segments."""
        if log in self._states:
            raise self._invalid_transition(log, "worked on")
        self._states[log] = IN_PROGRESS

    def end(self, log: TopicPartition) -> bool:
        """End the operation. Return False if it was aborted: its results must not be recorded."""
        match self._states.get(log):
            case InProgress():
                del self._states[log]
                return True
            case Aborted(pauses):
                self._states[log] = Paused(pauses)
                return False
            case _:
                raise self._invalid_transition(log, "ended")

    def pause(self, log: TopicPartition) -> bool:
        """Pause the log. Return False if the caller must wait until `is_paused`."""
        match self._states.get(log):
            case None:
                self._states[log] = Paused(1)
                return True
            case Paused(pauses):
                self._states[log] = Paused(pauses + 1)
                return True
            case InProgress():
                self._states[log] = Aborted(1)
            case Aborted(pauses):
                self._states[log] = Aborted(pauses + 1)
        return False

    def is_paused(self, log: TopicPartition) -> bool:
        """Return True if no operation works on the log and none may begin."""
        return isinstance(self._states.get(log), Paused)

    def is_aborted(self, log: TopicPartition) -> bool:
        """Return True if the current operation should stop."""
        return isinstance(self._states.get(log), Aborted)

    def resume(self, log: TopicPartition) -> None:
        """Undo one pause."""
        match self._states.get(log):
            case Paused(1):
                del self._states[log]
            case Paused(pauses):
                self._states[log] = Paused(pauses - 1)
            case _:
                raise self._invalid_transition(log, "resumed")

    def _invalid_transition(self, log: TopicPartition, what: str) -> FatalError:
        return FatalError(f"log {log} cannot be {what} while its state is {self._states.get(log)}")
