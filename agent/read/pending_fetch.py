"""Fetches within the memory budget: their results occupy memory until they are sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.read.fetch_memory import MIN_SHARE
from agent.runtime.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.read.fetch_memory import FetchMemory
    from agent.read.fetch_plan import PartitionFetch
    from agent.read.fetch_result import FetchResult
    from agent.read.read_path import ReadPath


@dataclass(slots=True)
class PendingFetch:
    """Results with `size` bytes reserved in the budget. Call `release` after sending them."""

    results: list[FetchResult]
    size: int
    budget: FetchMemory

    def release(self) -> None:
        """Release the memory; a second call has no effect."""
        self.budget.release(self.size)
        self.size = 0


async def fetch_within_budget(
    read_path: ReadPath,
    wanted: Sequence[PartitionFetch],
    *,
    max_bytes: int,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
) -> PendingFetch:
    """Do the same as `ReadPath.fetch`, within the free memory for fetches.

    With little memory left, the results are smaller. With none left, it waits for other responses to be sent,
    and returns results without batches when the time is up. The reader then fetches again. Raises `BusyError`
    if all memory is free and something else is not, such as threads.
    """
    budget = read_path.budget
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max_wait_ms / 1000
    needed, limit = min(MIN_SHARE, max(max_bytes, 1)), max_bytes
    while await budget.wait_for_space(needed, deadline - loop.time()):
        planned, free = min(limit, budget.share), budget.free
        try:
            results = await read_path.fetch(
                wanted,
                max_bytes=planned,
                min_bytes=min(min_bytes, planned),
                max_wait_ms=max(0, round((deadline - loop.time()) * 1000)),
            )
        except BusyError:
            if free == budget.free == budget.limit:
                raise  # not memory but a pool of threads is full, and no release would end a wait
            # The ranges that it has to read do not fit yet.
            needed = min(budget.limit, max(2 * needed, budget.free + 1))
            continue
        # A batch that is larger than the whole budget is returned alone.
        size = min(sum(result.size for result in results), budget.limit)
        if budget.fits(size):
            budget.reserve(size)
            return PendingFetch(results, size, budget)
        # Other fetches took the memory meanwhile. Only a batch, which is never cut, exceeds the minimum.
        needed = MIN_SHARE if planned > MIN_SHARE else budget.required_free_bytes(size)
        limit = MIN_SHARE
    return PendingFetch(await read_path.bounds(wanted), 0, budget)
