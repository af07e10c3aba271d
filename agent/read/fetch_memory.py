"""The memory for fetches, and which part of it a single answer may have.

An answer holds its memory until its reader has taken it, and nobody knows how long that is. So an answer is
planned with a quarter of what is free: readers that take nothing leave less to each next one, and never
nothing. The last of it is for small answers alone, which a connection's own buffers take over at once: those
who read go on, however many others do not.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from agent.runtime.byte_budget import ByteBudget

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_SHARE = 64 * 1024
"""Bytes that an answer is planned with, however little is left."""

SMALL_RESPONSE = 2 * MIN_SHARE
"""What comes of it, as the last batch is never cut: unless batches are larger than such a share."""

_SHARE = 4  # of what is free
_SMALL_RESPONSE_SHARE = 8  # of all there is


class FetchMemory(ByteBudget):
    """Bytes that fetches read and hold. Belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        super().__init__("the memory for fetches", limit)
        self._for_small_responses = limit // _SMALL_RESPONSE_SHARE

    @property
    def share(self) -> int:
        """How many bytes an answer is planned with; a single batch may be larger."""
        free = self.limit - self.used
        return max((free - self._for_small_responses) // _SHARE, min(MIN_SHARE, free))

    def fits(self, size: int) -> bool:
        """Whether an answer of `size` bytes may be held now.

        One that is larger than all that answers may hold has room when there is no other.
        """
        return self.free >= max(size, self.required_free_bytes(size))

    def required_free_bytes(self, size: int) -> int:
        """How much has to be free for an answer of `size` bytes, of which there may be no more than all."""
        return size if size <= SMALL_RESPONSE else min(size + self._for_small_responses, self.limit)

    @contextlib.contextmanager
    def reserving_response(self, size: int) -> Iterator[None]:
        """Hold an answer for as long as the block runs; `BusyError` without room for it."""
        if not self.fits(size):
            raise self.rejection(size)
        with self.reserving(size):
            yield
