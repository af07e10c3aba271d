"""Work that a log wants done later, and not by the thread that holds its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Scheduler(Protocol):
    """Runs tasks once, on a thread of its own."""

    def schedule_once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> None:
        """Run `task` after `delay_ms`; `name` is for logs, where one that raises is noted."""
        ...


class PeriodicScheduler(Scheduler, Protocol):
    """Runs tasks again and again, too."""

    def schedule_every(
        self, name: str, task: Callable[[], object], *, first_delay_ms: int, period_ms: int
    ) -> None:
        """Run `task` after `first_delay_ms`, then `period_ms` after it has ended, each time."""
        ...
