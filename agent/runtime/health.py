"""State from which an agent judges its health; reading it never calls anything, and any thread may read it.

*Liveness*: the event loop runs, and so does every essential background task. Restarting the process helps.
*Readiness*: liveness, and the catalog, the store, the disks and the session work. Restarting does not help;
clients use other agents meanwhile.

A dependency works if a call of it has succeeded lately. A call that hangs therefore counts like one that
fails. `agent.runtime.probes` makes the calls that an idle agent would not make. They only read the catalog.
The heartbeats show whether it also commits: each one must end in a limited time (`CallTime`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from core.clock import Clock

Check: TypeAlias = "Callable[[], str | None]"
"""Function that returns the problem of one part, or None; it reads state and never waits."""
MAX_LOOP_LAG_SECONDS: Final = 4.0
_WINDOW_SECONDS: Final = 60.0
_STALL_SECONDS: Final = 0.3
"""Delay of the loop from which requests may have waited unread. No client gives up a request so soon."""
_CATCH_UP_SECONDS: Final = 2.0
"""Time after a stall in which the loop still reads what arrived during it."""


_log = structlog.get_logger(__name__)


def start_essential_task(work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
    """Start a background task that the agent cannot do without; log the error that ends it.

    Register it with `Health.require_running`: the agent stops when it has ended.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_report_failure)
    return task


async def stop_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a background task and wait for its end; do nothing if it was never started."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("a background task has failed", task=task.get_name(), exc_info=error)


class CallHealth:
    """Health of one dependency, judged by its calls: working while the last success is recent.

    Thread-safe. A dependency that was never called counts from the creation of this object.
    """

    def __init__(self, clock: Clock, *, limit_seconds: float) -> None:
        self._clock = clock
        self._limit = limit_seconds
        self._succeeded_at = clock.monotonic()

    def succeeded(self) -> None:
        """Note that a call succeeded."""
        self._succeeded_at = self._clock.monotonic()

    @property
    def seconds_since_success(self) -> float:
        """Seconds since the last call that succeeded."""
        return self._clock.monotonic() - self._succeeded_at

    def problem(self) -> str | None:
        """Return that the dependency does not work, or None if it does.

        The text has no reason, because errors may contain addresses; the log has the reason.
        """
        seconds = self.seconds_since_success
        return None if seconds < self._limit else f"no call has succeeded for {seconds:.1f} seconds"


class CallTime:
    """Health of one dependency, judged by how long its regular call takes.

    A call that fails is repeated, and its time counts from the first attempt. After a call that took too
    long, the dependency works again once a call was fast. A dependency whose calls all take too long is
    therefore reported until the end, and not only during each call.

    One thread makes the calls; any thread may read the result.
    """

    def __init__(self, clock: Clock, *, limit_seconds: float) -> None:
        self._clock = clock
        self._limit = limit_seconds
        self._began_at: float | None = None
        self._last_seconds = 0.0

    def began(self) -> None:
        """Note that a call begins, for the first time or again after it failed."""
        if self._began_at is None:
            self._began_at = self._clock.monotonic()

    def succeeded(self) -> None:
        """Note that the call succeeded."""
        self._last_seconds = self._seconds
        self._began_at = None

    @property
    def is_doubtful(self) -> bool:
        """Return True if the next call should be made at once: the last one has failed or was too slow."""
        return self._began_at is not None or self._last_seconds >= self._limit

    @property
    def _seconds(self) -> float:
        """Seconds that the open call has taken."""
        began_at = self._began_at
        return 0.0 if began_at is None else self._clock.monotonic() - began_at

    def problem(self) -> str | None:
        """Return that the dependency does not work, or None if it does."""
        seconds, last = self._seconds, self._last_seconds  # in this order: the call may end between both
        if seconds >= self._limit:
            return f"a write has not succeeded for {seconds:.1f} seconds"
        return f"the last write took {last:.1f} seconds" if last >= self._limit else None


class LoopLag:
    """Measures how late the event loop runs its callbacks.

    `seconds` is the latest delay, and `worst_seconds` the longest one of the last one to two minutes.
    """

    def __init__(self, clock: Clock, *, interval_seconds: float = 0.1) -> None:
        self._clock = clock
        self._interval = interval_seconds
        self._task: asyncio.Task[None] | None = None
        self._beat_at = clock.monotonic()
        self.seconds = 0.0
        self._stalled_at = self._caught_up_at = self._beat_at
        self._worst = [0.0, 0.0]  # of the last whole window, and of the current one
        self._window_ends_at = self._beat_at + _WINDOW_SECONDS

    @property
    def worst_seconds(self) -> float:
        """The longest delay of the last minutes, including one that lasts."""
        return max(*self._worst, self.current_seconds)

    def start(self) -> None:
        """Start to measure."""
        self._beat_at = self._clock.monotonic()
        self._task = start_essential_task(self._measure(), name="loop lag")

    @property
    def is_running(self) -> bool:
        """Return True if the task that measures runs."""
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        """Stop measuring."""
        await stop_task(self._task)

    @property
    def current_seconds(self) -> float:
        """How late the loop is now; for any thread."""
        return max(0.0, self._clock.monotonic() - self._beat_at - self._interval)

    def earliest_arrival(self) -> float:
        """Return a monotonic time that is not after the arrival of what the loop reads now.

        If the process was frozen, or its loop was busy for long, that may have waited unread since then.
        """
        now = self._clock.monotonic()
        if self._task is None:
            return now
        if now - self._beat_at > self._interval + _STALL_SECONDS:
            return self._stalled_at if self._beat_at < self._caught_up_at else self._beat_at
        return self._stalled_at if now < self._caught_up_at else now

    def _note_stall(self, now: float) -> None:
        """Note that the loop runs again, if it was late."""
        if now - self._beat_at <= self._interval + _STALL_SECONDS:
            return
        if self._beat_at >= self._caught_up_at:
            self._stalled_at = self._beat_at
        self._caught_up_at = now + _CATCH_UP_SECONDS

    def problem(self) -> str | None:
        """Return a problem if the loop has run no callback for `MAX_LOOP_LAG_SECONDS`."""
        late = self.current_seconds
        return f"is {late:.0f} seconds late" if late > MAX_LOOP_LAG_SECONDS else None

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._interval
            await asyncio.sleep(self._interval)
            self.seconds = max(0.0, loop.time() - due)
            now = self._clock.monotonic()
            self._note_stall(now)
            self._beat_at = now
            if now >= self._window_ends_at:
                self._worst = [self._worst[1], 0.0]
                self._window_ends_at = now + _WINDOW_SECONDS
            self._worst[1] = max(self._worst[1], self.seconds)


class Health:
    """All checks of an agent, by the name of the part."""

    def __init__(self) -> None:
        self._live: dict[str, Check] = {}
        self._running: dict[str, Callable[[], bool]] = {}
        self._ready: dict[str, Check] = {}
        self._warnings: dict[str, Check] = {}

    def require_live(self, part: str, check: Check) -> None:
        """Make a part essential: the process must be restarted if it has a problem."""
        self._live[part] = check

    def require_running(self, part: str, is_running: Callable[[], bool]) -> None:
        """Make a background task or thread essential: the agent stops if it ends."""
        self._running[part] = is_running
        self._live[part] = lambda: None if is_running() else "has stopped unexpectedly"

    def ended(self) -> tuple[str, ...]:
        """Return the background tasks and threads that have ended."""
        return tuple(part for part, is_running in list(self._running.items()) if not is_running())

    def require_ready(self, part: str, check: Check) -> None:
        """Let the agent count as not ready while a part has a problem."""
        self._ready[part] = check

    def warn(self, part: str, check: Check) -> None:
        """Report a problem that an operator must solve, while the agent serves nevertheless."""
        self._warnings[part] = check

    def warnings(self) -> dict[str, str]:
        """Return the problems that do not keep the agent from serving, by part."""
        return _problems(self._warnings)

    def live_problems(self) -> dict[str, str]:
        """Return the reasons to restart the process, by part; empty if it makes progress."""
        return _problems(self._live)

    def ready_problems(self) -> dict[str, str]:
        """Return the reasons to send no requests, by part; empty if the agent can serve."""
        return _problems(self._live) | _problems(self._ready)


def _problems(checks: Mapping[str, Check]) -> dict[str, str]:
    found = {part: check() for part, check in list(checks.items())}
    return {part: problem for part, problem in found.items() if problem is not None}
