"""Long work on the event loop, in portions: others have their turn in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")
STEPS_PER_YIELD = 500
"""Items between two yielding of others: a few milliseconds of the usual kind of work on them."""


class CooperativeYield:
    """Counts what was done, and gives the loop back after every `STEPS_PER_YIELD` of it."""

    def __init__(self) -> None:
        self._left = STEPS_PER_YIELD

    async def step(self, count: int = 1) -> None:
        """`count` more items are done."""
        self._left -= count
        if self._left <= 0:
            self._left = STEPS_PER_YIELD
            await asyncio.sleep(0)


async def map_bounded(
    work: Callable[[Item], Awaitable[Result]], items: Sequence[Item], *, limit: int
) -> list[Result]:
    """What `work` makes of each item, in their order; `limit` of them are under way at the most.

    A pool with a bound on what waits for it refuses the rest of a thousand calls that come together.
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
