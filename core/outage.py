"""Outages of the catalog or the object store, for the loops and processes that survive them.

`Outage` is the state of one loop: it decides pauses and logs the beginning and the end. It never sleeps, so
that threads and event loops share it. `StartWait` waits, for a limited time, until what a process needs at
its start responds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from core.errors import RetryableError, SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.clock import Clock
    from core.ids import Ids

T = TypeVar("T")
FIRST_PAUSE_SECONDS: Final = 0.25
MAX_PAUSE_SECONDS: Final = 2.0
_MAX_DOUBLINGS: Final = 32
_log = structlog.get_logger(__name__)


class Outage:
    """Failures of a repeated activity, from the first one to the next success; for use by one thread.

    After failure n the pause is min(cap, first * 2^n) seconds, half of it random ("equal jitter" of
    M. Brooker, "Exponential Backoff And Jitter"). One line is logged when an outage begins, one when its kind
    of error changes, and one when it ends. Their event names the activity, because the log summarizes equal
    events.
    """

    def __init__(
        self,
        activity: str,
        *,
        clock: Clock,
        ids: Ids,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        max_pause_seconds: float = MAX_PAUSE_SECONDS,
    ) -> None:
        self._activity = activity
        self._clock = clock
        self._ids = ids
        self._first_pause_seconds = first_pause_seconds
        self._max_pause_seconds = max_pause_seconds
        self._since: float | None = None
        self._kind: type[BaseException] | None = None
        self.failures = 0

    @property
    def seconds(self) -> float:
        """Seconds since the first failure without a later success; 0 if there is no outage."""
        return 0.0 if self._since is None else self._clock.monotonic() - self._since

    def failed(self, error: BaseException) -> float:
        """Note a failure, and return the number of seconds to wait before the next attempt."""
        if self._since is None:
            self._since = self._clock.monotonic()
        if type(error) is not self._kind:
            self._kind = type(error)
            reason = str(error) if isinstance(error, SiltstoneError) else repr(error)
            _log.warning(f"outage: {self._activity}", reason=reason)
        doublings = min(self.failures, _MAX_DOUBLINGS)
        self.failures += 1
        pause = min(self._max_pause_seconds, self._first_pause_seconds * 2.0**doublings)
        return pause * (0.5 + self._ids.random() / 2)

    def succeeded(self) -> None:
        """Note a success, which ends an outage."""
        if self._since is None:
            return
        _log.warning(
            f"outage ended: {self._activity}",
            seconds=round(self.seconds, 1),
            failures=self.failures,
        )
        self._since = self._kind = None
        self.failures = 0


class StartWait:
    """Time that a starting process waits for the catalog and the store; all of its steps share it.

    Only `RetryableError` is waited for: a wrong address, bucket or password fails at once.
    """

    def __init__(self, timeout_seconds: float, *, clock: Clock, ids: Ids) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._ids = ids
        self._deadline = clock.monotonic() + timeout_seconds

    def outage(self, step: str) -> Outage:
        """Return the state of one step that may have to wait."""
        return Outage(step, clock=self._clock, ids=self._ids)

    def pause(self, outage: Outage, error: RetryableError) -> float:
        """Return the number of seconds to wait after a failure; raise the final error if the time is over."""
        if not self._timeout_seconds:
            raise error
        pause = outage.failed(error)
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            raise RetryableError(
                f"not available within start_timeout_seconds={self._timeout_seconds:g} of the start: "
                f"{error.message}",
                remedy=error.remedy,
                retry_after_seconds=error.retry_after_seconds,
            ) from error
        return min(pause, left)

    def run(self, step: str, call: Callable[[], T]) -> T:
        """Return the result of the first call that succeeds; blocks."""
        outage = self.outage(step)
        while True:
            try:
                result = call()
            except RetryableError as error:
                self._clock.sleep(self.pause(outage, error))
            else:
                outage.succeeded()
                return result
