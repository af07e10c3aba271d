"""The memory of requests that have not arrived completely, for all connections of a server.

While less than half of the budget is in use, a request gets memory for its whole length at once, and nothing
of it is copied. Otherwise it gets memory as its bytes arrive: a client that announces a large request and
sends little of it takes little from others.

Several requests could take the last memory and then all wait for more. One of them at a time may therefore
exceed the budget, by the rest of its length. It keeps this right until it is complete, or its client is
disconnected for being too slow.

Clients that have not logged in share a separate small budget, so that they take no memory from requests.
There, the length that a client announces counts for nothing: memory grows with the bytes that have arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.kafka.connection.frames import RECEIVE_BYTES

if TYPE_CHECKING:
    from agent.runtime.byte_budget import ByteBudget

MIN_COUNTED_BYTES: Final = 4 * 1024
"""Up to this length, an incomplete request does not count in the budget and does not wait for memory."""

MAX_LOGIN_BYTES: Final = 8 * 1024 * 1024
"""Budget of all clients that have not logged in."""

_STEP_BYTES: Final = 64 * 1024


class IncomingMemory:
    """Reservations for incomplete requests. Belongs to the event loop."""

    def __init__(self, budget: ByteBudget, *, trusts_lengths: bool = True) -> None:
        """Take the budget, and whether a request may get memory for a length that is only announced."""
        self.budget = budget
        self._trusts_lengths = trusts_lengths
        self._step_bytes = _STEP_BYTES if trusts_lengths else MIN_COUNTED_BYTES
        self._preferred: object | None = None

    @property
    def has_room(self) -> bool:
        """Return True if what one system call receives can be reserved afterwards."""
        return self.budget.free >= 2 * RECEIVE_BYTES

    def reserve(self, owner: object, held: int, received: int, length: int) -> int:
        """Reserve memory for a request; `held` bytes are reserved, and `received` bytes have arrived.

        Return how many bytes are reserved now: `held` if there is no more memory.
        """
        budget = self.budget
        if self._trusts_lengths and budget.used - held + length <= budget.limit // 2:
            wanted = length
        else:
            wanted = min(length, max(2 * received, received + self._step_bytes))
        if wanted - held > budget.free:
            if not held or self._preferred not in {None, owner}:
                return held
            self._preferred = owner
        budget.reserve_unchecked(wanted - held)
        return wanted

    def end(self, owner: object) -> None:
        """Note that a request is complete or dropped."""
        if self._preferred is owner:
            self._preferred = None
