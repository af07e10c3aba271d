"""Work that a log wants done later, and not by the thread that holds its lock."""

from __future__ import annotations

import heapq
import itertools
import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.clock import Clock


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


_log = structlog.get_logger(__name__)


class _Task(NamedTuple):
    due: float
    order: int
    name: str
    work: Callable[[], object]
    period: float | None


class BackgroundScheduler:
    """Runs tasks when they are due, on `threads` threads; a task that comes again never runs twice at once.

    What is not due when it stops is dropped: whatever a log schedules is made good when it is opened again.
    """

    def __init__(self, clock: Clock, *, threads: int = 2) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._tasks: list[_Task] = []
        self._order = itertools.count()
        self._is_stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"local-tier-{index}", daemon=True)
            for index in range(threads)
        ]

    def start(self) -> None:
        """Start the threads; what was scheduled before waits for this."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let running tasks end, and drop all others."""
        with self._changed:
            self._is_stopping = True
            self._tasks.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def schedule_once(self, name: str, task: Callable[[], object], delay_ms: int = 0) -> None:
        """Run `task` after `delay_ms`; one that raises is logged."""
        self._add(name, task, delay_ms / 1000, None)

    def schedule_every(
        self, name: str, task: Callable[[], object], *, first_delay_ms: int, period_ms: int
    ) -> None:
        """Run `task` after `first_delay_ms`, and then each time `period_ms` after it has ended."""
        self._add(name, task, first_delay_ms / 1000, period_ms / 1000)

    def _add(self, name: str, work: Callable[[], object], delay: float, period: float | None) -> None:
        with self._changed:
            if not self._is_stopping:
                due = self._clock.monotonic() + max(delay, 0.0)
                heapq.heappush(self._tasks, _Task(due, next(self._order), name, work, period))
                self._changed.notify()

    def _next(self) -> _Task | None:
        with self._changed:
            while not self._is_stopping:
                if not self._tasks:
                    self._changed.wait()
                    continue
                wait = self._tasks[0].due - self._clock.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._tasks)
                self._changed.wait(min(wait, threading.TIMEOUT_MAX))
            return None

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                task.work()
            except Exception:  # noqa: BLE001  # one task that fails must not end those of others
                _log.exception("background_task_failed", task=task.name)
            if task.period is not None:
                self._add(task.name, task.work, task.period, task.period)
