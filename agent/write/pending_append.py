"""The pending result of an append: producers wait for the outcome of each of its batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import RunRefusal
    from core.errors import SiltstoneError


class AppendResult(NamedTuple):
    """The outcome of one batch.

    - Appended, or a duplicate of an appended batch: `base_offset` is its first offset.
    - Rejected by the catalog: `refusal` and `detail` give the reason.
    - Failed: `error` is set, and the same append may be retried.

    `log_start_offset` and `high_watermark` are the partition's after the commit, -1 if unknown.
    """

    base_offset: int = -1
    duplicate: bool = False
    refusal: RunRefusal | None = None
    detail: str = ""
    error: SiltstoneError | None = None
    log_start_offset: int = -1
    high_watermark: int = -1

    @property
    def appended(self) -> bool:
        """Return True if the batch is in the log."""
        return self.base_offset >= 0


class PendingAppend:
    """Collects the results of an append's batches, which may be spread over several files.

    The append continues when its waiter is cancelled, because its batches are in a file already.
    """

    def __init__(self, batch_count: int) -> None:
        self._results: list[AppendResult | None] = [None] * batch_count
        self._open = batch_count
        self._waiters: list[asyncio.Future[None]] = []

    def complete(self, first_batch: int, results: Sequence[AppendResult]) -> None:
        """Set the results of the batches from `first_batch` on. Each batch is completed once."""
        for batch, result in enumerate(results, first_batch):
            self.complete_one(batch, result)

    def complete_one(self, batch: int, result: AppendResult) -> None:
        """Set the result of one batch."""
        if self._results[batch] is not None:
            raise ValueError(f"batch {batch} of an append was completed twice")
        self._results[batch] = result
        self._open -= 1
        if self._open == 0:
            for waiter in self._waiters:
                if not waiter.done():  # a cancelled one is
                    waiter.set_result(None)

    def fail(self, first_batch: int, count: int, error: SiltstoneError) -> None:
        """Fail those of `count` batches from `first_batch` on that have no result yet."""
        for position in range(first_batch, first_batch + count):
            if self._results[position] is None:
                self.complete_one(position, AppendResult(error=error))

    @property
    def is_complete(self) -> bool:
        """Return True if all results are known."""
        return self._open == 0

    def partial_results(self) -> list[AppendResult | None]:
        """Return the result of each batch, None where it is not known yet."""
        return self._results

    def results(self) -> list[AppendResult] | None:
        """Return the results in batch order, or None while any is unknown."""
        return None if self._open else [result for result in self._results if result is not None]

    async def wait(self) -> list[AppendResult]:
        """Wait for all results and return them in batch order.

        Several tasks may wait, and each of them may be cancelled. They continue in the next iteration of the
        event loop, before the work that the listeners of the commit have started.
        """
        if self._open:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return [result for result in self._results if result is not None]
