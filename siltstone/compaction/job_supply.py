"""Further jobs for the task slots that the jobs of a running round leave free.

Without them, a round would last as long as its longest job while other slots are idle. This module decides
when to look for jobs; the watcher plans and claims them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from catalog.model import Job
    from core.clock import Clock

MAX_JOBS: Final = 1000
"""Further jobs of one round. It then ends: its report stays small, and a job that must run alone can run."""


class FoundJobs(NamedTuple):
    """Claimed jobs, and the number of those that wait for the next free slot."""

    jobs: Sequence[Job] = ()
    waiting: int = 0


class JobSupply:
    """Supply of one round. `find` returns jobs for a number of free slots, or plans ahead for 0 of them.

    After a search that found nothing, the next one is `rest_seconds` later. So it is if the free slots get
    none of the waiting jobs, because these may have to wait until no other job runs. An error of `find` ends
    the supply, so that the running jobs can end; `check` raises it afterwards.
    """

    def __init__(
        self,
        find: Callable[[int], FoundJobs],
        slots: Callable[[], int],
        clock: Clock,
        rest_seconds: Callable[[], float],
    ) -> None:
        self._find = find
        self._slots = slots
        self._clock = clock
        self._rest_seconds = rest_seconds
        self._rests_until = clock.monotonic()
        self._waiting = self._given = 0
        self._error: SiltstoneError | None = None

    def more(self, running: int) -> Sequence[Job]:
        """Return jobs for the slots that `running` jobs leave free."""
        if self._error is not None or self._given >= MAX_JOBS or self._clock.monotonic() < self._rests_until:
            return ()
        try:
            free = max(self._slots() - running, 0)
            if not free and self._waiting:
                return ()
            jobs, self._waiting = self._find(free)
        except SiltstoneError as error:
            self._error = error
            return ()
        if not jobs and (free or not self._waiting):
            self._rests_until = self._clock.monotonic() + self._rest_seconds()
        self._given += len(jobs)
        return jobs

    def check(self) -> None:
        """Raise the error that ended the supply."""
        if self._error is not None:
            raise self._error
