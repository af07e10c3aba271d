"""Sharing of the event loop: long work in portions, and a bound on what requests do in one iteration.

One request takes a few milliseconds at most, but thousands of connections may have one at the same moment.
The loop would handle all of them before it returns to timers and to other sockets. Requests therefore share a
time for each iteration, and the rest of them wait for the next one, in the order of their arrival.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from core.clock import Clock

Item = TypeVar("Item")
Result = TypeVar("Result")
STEPS_PER_YIELD = 500
"""Steps between two yields: a few milliseconds of typical work."""

SECONDS_PER_ITERATION: Final = 0.02
_WOKEN_PER_ITERATION: Final = 2
"""Requests that continue in one iteration after they waited. Each of them may take long."""


class CooperativeYield:
    """Counts steps of work, and yields to the event loop after every `STEPS_PER_YIELD` of them."""

    def __init__(self) -> None:
        self._left = STEPS_PER_YIELD

    async def step(self, count: int = 1) -> None:
        """Count `count` finished steps; yield if the portion is complete."""
        self._left -= count
        if self._left <= 0:
            self._left = STEPS_PER_YIELD
            await asyncio.sleep(0)


class IterationBudget:
    """Time for requests in the current iteration. Belongs to the event loop."""

    def __init__(self, clock: Clock, *, seconds: float = SECONDS_PER_ITERATION) -> None:
        self._clock = clock
        self._seconds = seconds
        self._began: float | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_spent(self) -> bool:
        """Return True if no further request may begin in this iteration, or others wait already."""
        now = self._clock.monotonic()
        if self._began is None:
            self._began = now
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        return bool(self._waiting) or now - self._began >= self._seconds

    async def wait(self) -> None:
        """Wait until a request may begin."""
        if not self.is_spent:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _begin_iteration(self) -> None:
        self._began = None
        woken = 0
        while self._waiting and woken < _WOKEN_PER_ITERATION:
            turn = self._waiting.popleft()
            if not turn.done():  # its task was not cancelled
                turn.set_result(None)
                woken += 1
        if self._waiting:
            self._began = self._clock.monotonic()
            asyncio.get_running_loop().call_soon(self._begin_iteration)


async def map_bounded(
    work: Callable[[Item], Awaitable[Result]], items: Sequence[Item], *, limit: int
) -> list[Result]:
    """Apply `work` to each item, at most `limit` at a time, and return the results in the order of `items`.

    A bounded pool would reject most of a thousand calls that arrive together.
    """
    results: dict[int, Result] = {}
    yielding, todo = CooperativeYield(), iter(enumerate(items))

    async def take() -> None:
        for index, item in todo:
            results[index] = await work(item)
            await yielding.step()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(limit, len(items))):
            group.create_task(take())
    return [results[index] for index in range(len(items))]
