"""Bounded retries with growing, jittered pauses for calls that may succeed later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from core.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from core.ids import Ids

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`attempts` tries in all; the n-th pause is a random share of min(cap, first * 2^n), in seconds.

    "Full jitter" after M. Brooker, "Exponential Backoff And Jitter", with a floor of half the pause.
    """

    attempts: int
    first_pause: float
    max_pause: float
    ids: Ids

    def pause(self, attempt: int) -> float:
        """Seconds to wait after the `attempt`-th try (from 1) has failed."""
        full = min(self.max_pause, self.first_pause * 2.0 ** (attempt - 1))
        return full * (0.5 + self.ids.random() / 2)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of the first try that does not raise `RetryableError`, or the last one's error."""
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.attempts),
            wait=self._wait,
            retry=retry_if_exception_type(RetryableError),
            reraise=True,
        )

        async def attempt() -> (
            T
        ):  # tenacity wants a coroutine function, not a function that makes an awaitable
            return await call()

        return await retrying(attempt)

    def _wait(self, state: RetryCallState) -> float:
        return self.pause(state.attempt_number)
