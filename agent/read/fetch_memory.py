"""The memory budget of fetches, and the share of it that one response may use.

A response occupies memory until its reader has received it, for an unknown time. A response is therefore
planned with a quarter of the free memory: slow readers leave less and less to the next response, but never
nothing. The last part is reserved for small responses, which fit into the buffers of a connection. Active
readers therefore continue however many slow readers there are.

Records that were read from disks or objects are reserved from then on (`HeldRecords`), because the rest of
their response may take long. Those of the tail and of cached blocks are reserved with the whole response.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from agent.runtime.byte_budget import ByteBudget

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_SHARE = 64 * 1024
"""Bytes that a response is planned with, however little memory is free."""

SMALL_RESPONSE = 2 * MIN_SHARE
"""Size of a response with that share: the last batch is never cut, but rarely larger than the share."""

_SHARE = 4  # fraction of the free memory for one response
_SMALL_RESPONSE_SHARE = 8  # fraction of all memory that only small responses may use


class HeldRecords:
    """Bytes that one fetch has read, and holds until it has read the rest of its response."""

    def __init__(self, memory: ByteBudget) -> None:
        self._memory = memory
        self.size = 0

    def add(self, size: int) -> bool:
        """Reserve `size` more bytes; return False, and reserve none, if they are not free.

        Records that are larger than the whole budget need all of it.
        """
        size = min(size, self._memory.limit)
        if size > max(self._memory.free, 0):
            return False
        self.add_unchecked(size)
        return True

    def require(self, size: int) -> None:
        """Reserve `size` more bytes; raise `BusyError` if they are not free."""
        if not self.add(size):
            raise self._memory.rejection(size)

    def add_unchecked(self, size: int) -> None:
        """Reserve `size` bytes that were reserved otherwise until now."""
        self._memory.reserve_unchecked(size)
        self.size += size


class FetchMemory(ByteBudget):
    """Bytes that fetches have read and not sent yet. Belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        super().__init__("the memory for fetches", limit)
        self._for_small_responses = limit // _SMALL_RESPONSE_SHARE

    @contextlib.contextmanager
    def holding(self) -> Iterator[HeldRecords]:
        """Yield the records of a fetch, which are reserved for the duration of the block."""
        held = HeldRecords(self)
        try:
            yield held
        finally:
            self.release(held.size)

    @property
    def share(self) -> int:
        """Bytes that a response is planned with. A single batch may be larger."""
        free = self.limit - self.used
        return max((free - self._for_small_responses) // _SHARE, min(MIN_SHARE, free))

    def fits(self, size: int) -> bool:
        """Return True if a response of `size` bytes may be reserved now.

        A response that is larger than the whole budget fits if there is no other one.
        """
        return self.free >= max(size, self.required_free_bytes(size))

    def required_free_bytes(self, size: int) -> int:
        """Return how many bytes must be free for a response of `size` bytes."""
        return size if size <= SMALL_RESPONSE else min(size + self._for_small_responses, self.limit)

    @contextlib.contextmanager
    def reserving_response(self, size: int) -> Iterator[None]:
        """Reserve a response for the duration of the block; raise `BusyError` if it does not fit."""
        if not self.fits(size):
            raise self.rejection(size)
        with self.reserving(size):
            yield
