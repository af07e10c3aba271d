"""Who may touch the old segments of a log: the cleaner, retention, or somebody who truncates or moves it.

Source: LogCleanerManager and LogCleaningState of org.apache.kafka.storage.internals.log. A log that nobody
works on has no state::

    none ──begin──> InProgress ──end──> none
                        │ pause
                        v
                    Aborted(n) ──end──> Paused(n)
    none ──pause──> Paused(1);  Paused(n) ──pause──> Paused(n+1);  Aborted(n) ──pause──> Aborted(n+1)
    Paused(n) ──resume──> Paused(n-1), or none from Paused(1)

Other than Kafka's, an aborted log may be asked to pause again; each who asked resumes it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from core.errors import FatalError

if TYPE_CHECKING:
    from local_tier.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class InProgress:
    """A thread cleans it, or deletes its old segments."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """That thread was asked to stop by `pauses` others, who wait for it."""

    pauses: int


@dataclass(frozen=True, slots=True)
class Paused:
    """Nobody may begin until `pauses` others have resumed it."""

    pauses: int


LogCleaningState: TypeAlias = InProgress | Aborted | Paused
IN_PROGRESS: Final = InProgress()


class LogCleaningStates:
    """The states of all logs. Pure: whoever shares it holds a lock and does the waiting."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, LogCleaningState] = {}

    def state(self, log: TopicPartition) -> LogCleaningState | None:
        """None when nobody works on it."""
        return self._states.get(log)

    def is_idle(self, log: TopicPartition) -> bool:
        """Whether somebody may begin."""
        return log not in self._states

    def begin(self, log: TopicPartition) -> None:
        """Somebody cleans it now, or deletes its old segments."""
        if log in self._states:
            raise self._invalid_transition(log, "worked on")
        self._states[log] = IN_PROGRESS

    def end(self, log: TopicPartition) -> bool:
        """They are done; False when they had been asked to stop, and what they found may not be kept."""
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
        """Ask that nobody works on it; True when that is so already, else wait until `is_paused`."""
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
        """Whether nobody works on it, and nobody may begin."""
        return isinstance(self._states.get(log), Paused)

    def is_aborted(self, log: TopicPartition) -> bool:
        """Whether those that work on it should stop."""
        return isinstance(self._states.get(log), Aborted)

    def resume(self, log: TopicPartition) -> None:
        """Take one pause back."""
        match self._states.get(log):
            case Paused(1):
                del self._states[log]
            case Paused(pauses):
                self._states[log] = Paused(pauses - 1)
            case _:
                raise self._invalid_transition(log, "resumed")

    def _invalid_transition(self, log: TopicPartition, what: str) -> FatalError:
        return FatalError(f"log {log} cannot be {what} while its state is {self._states.get(log)}")
