"""A scheduler that runs due tasks when a test calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.clock import ManualClock


class ManualScheduler:
    """A scheduler whose `run` runs the due tasks in the order of their due times."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._tasks: list[tuple[int, int, str, Callable[[], None]]] = []
        self._count = 0

    @property
    def waiting(self) -> list[str]:
        """The names of the tasks that have not run yet."""
        return [name for _, _, name, _ in sorted(self._tasks, key=lambda task: task[:2])]

    def start(self) -> None:
        """Do nothing: tasks run when a test says so."""

    def stop(self) -> None:
        """Do nothing."""

    def schedule_once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> None:
        self._count += 1
        self._tasks.append((self._clock.now_ms() + delay_ms, self._count, name, task))

    def run(self) -> None:
        """Run due tasks, including those that become due by them."""
        while due := sorted((t for t in self._tasks if t[0] <= self._clock.now_ms()), key=lambda t: t[:2]):
            self._tasks.remove(due[0])
            due[0][3]()

    def advance(self, ms: int) -> None:
        """Advance the clock, then run due tasks."""
        self._clock.advance(ms / 1000)
        self.run()
