"""Long work on the event loop in portions, between which other tasks run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")
STEPS_PER_YIELD = 500
"""Steps between two yields: a few milliseconds of typical work."""


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
