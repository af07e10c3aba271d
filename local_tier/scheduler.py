"""Background threads for the work of logs: flushes, checkpoints, retention and delayed deletes.

A log schedules work that must not run on the thread that holds its lock.
"""

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
    """Runs tasks once, on another thread."""

    def schedule_once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> None:
        """Run `task` after `delay_ms`. `name` identifies the task in log messages."""
        ...


class PeriodicScheduler(Scheduler, Protocol):
    """A scheduler that can also repeat tasks."""

    def schedule_every(
        self, name: str, task: Callable[[], object], *, first_delay_ms: int, period_ms: int
    ) -> None:
        """Run `task` after `first_delay_ms`, then `period_ms` after the end of each run."""
        ...


class OwnedScheduler(PeriodicScheduler, Protocol):
    """A scheduler whose owner starts and stops its threads."""

    def start(self) -> None:
        """Start the threads."""
        ...

    def stop(self) -> None:
        """Wait for the running tasks and drop all others."""
        ...


_log = structlog.get_logger(__name__)


class _Task(NamedTuple):
    due: float
    order: int
    name: str
    work: Callable[[], object]
    period: float | None


class BackgroundScheduler:
    """A scheduler with `threads` threads. Runs of one periodic task never overlap.

    Tasks that are not due when the scheduler stops are dropped. A log repeats such work when it is opened
    again.
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
        """Start the threads. Tasks that were scheduled before wait for this."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the running tasks and drop all others."""
        with self._changed:
            self._is_stopping = True
            self._tasks.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def schedule_once(self, name: str, task: Callable[[], object], delay_ms: int = 0) -> None:
        """Run `task` after `delay_ms`. An error of the task is logged."""
        self._add(name, task, delay_ms / 1000, None)

    def schedule_every(
        self, name: str, task: Callable[[], object], *, first_delay_ms: int, period_ms: int
    ) -> None:
        """Run `task` after `first_delay_ms`, then `period_ms` after the end of each run."""
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
            except Exception:  # noqa: BLE001  # an error of one task must not stop the others
                _log.exception("background_task_failed", task=task.name)
            if task.period is not None:
                self._add(task.name, task.work, task.period, task.period)
