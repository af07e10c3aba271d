"""What a producer waits for: the fate of each batch of one append."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import RunRefusal
    from core.errors import SiltstoneError


class AppendResult(NamedTuple):
    """What became of one batch.

    Appended (or a duplicate of one that was): `base_offset` is its first offset. Refused by the catalog:
    `refusal` and `detail` say why. Failed: `error` is set and the same append may be sent again.
    `log_start_offset` and `high_watermark` are the partition's after the commit, -1 where unknown.
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
        """Whether the batch is in the log."""
        return self.base_offset >= 0


class PendingAppend:
    """Collects the results of an append's batches, which may be spread over several files.

    The append lives on when the one who waits for it is cancelled: its batches are in a file by then.
    """

    def __init__(self, batch_count: int) -> None:
        self._results: list[AppendResult | None] = [None] * batch_count
        self._open = batch_count
        self._done: asyncio.Future[None] | None = None  # made for who waits: of a request's appends, for one

    def complete(self, first_batch: int, results: Sequence[AppendResult]) -> None:
        """Record the results of the batches from `first_batch` on; each batch is settled once."""
        for batch, result in enumerate(results, first_batch):
            self.complete_one(batch, result)

    def complete_one(self, batch: int, result: AppendResult) -> None:
        """As `settle`, of one batch."""
        if self._results[batch] is not None:
            raise ValueError(f"batch {batch} of an append was settled twice")
        self._results[batch] = result
        self._open -= 1
        if self._open == 0 and self._done is not None:
            self._done.set_result(None)

    def fail(self, first_batch: int, count: int, error: SiltstoneError) -> None:
        """Settle those of `count` batches from `first_batch` on that are not settled yet."""
        for position in range(first_batch, first_batch + count):
            if self._results[position] is None:
                self.complete_one(position, AppendResult(error=error))

    @property
    def is_complete(self) -> bool:
        """Whether all results are known."""
        return self._open == 0

    def partial_results(self) -> list[AppendResult | None]:
        """What is known of each batch."""
        return self._results

    def results(self) -> list[AppendResult] | None:
        """The results in batch order; None while any is not known."""
        return None if self._open else [result for result in self._results if result is not None]

    async def wait(self) -> list[AppendResult]:
        """The results in batch order, once all are known. May be awaited by several, and cancelled."""
        if self._open:
            if self._done is None:
                self._done = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._done)
        return [result for result in self._results if result is not None]
