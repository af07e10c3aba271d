"""Bounded retries with exponential backoff and jitter."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from core.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from core.ids import Ids

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """At most `attempts` tries. Pause n is min(cap, first * 2^n) seconds, and half of it is random.

    This is "equal jitter" of M. Brooker, "Exponential Backoff And Jitter".
    """

    attempts: int
    first_pause: float
    max_pause: float
    ids: Ids

    def pause(self, attempt: int) -> float:
        """Return the pause in seconds after attempt number `attempt` (from 1) failed."""
        full = min(self.max_pause, self.first_pause * 2.0 ** (attempt - 1))
        return full * (0.5 + self.ids.random() / 2)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first attempt that succeeds, or raise the error of the last one.

        Only `RetryableError` is retried.
        """
        for attempt in range(1, self.attempts):
            try:
                return await call()
            except RetryableError:
                pass  # the pause must not keep the error, and what its stack refers to, in memory
            await asyncio.sleep(self.pause(attempt))
        return await call()
