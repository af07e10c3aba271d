"""Long work on the event loop, in portions: others have their turn in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")
PORTION = 500
"""Items between two turns of others: a few milliseconds of the usual kind of work on them."""


class Turns:
    """Counts what was done, and gives the loop back after every `PORTION` of it."""

    def __init__(self) -> None:
        self._left = PORTION

    async def did(self, count: int = 1) -> None:
        """`count` more items are done."""
        self._left -= count
        if self._left <= 0:
            self._left = PORTION
            await asyncio.sleep(0)


async def some_at_a_time(
    work: Callable[[Item], Awaitable[Result]], items: Sequence[Item], *, at_once: int
) -> list[Result]:
    """What `work` makes of each item, in their order; `at_once` of them are under way at the most.

    A pool with a bound on what waits for it refuses the rest of a thousand calls that come together.
    """
    results: dict[int, Result] = {}
    turns, todo = Turns(), iter(enumerate(items))

    async def take() -> None:
        for index, item in todo:
            results[index] = await work(item)
            await turns.did()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, len(items))):
            group.create_task(take())
    return [results[index] for index in range(len(items))]
