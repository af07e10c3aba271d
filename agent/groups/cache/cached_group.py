"""A group in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.groups.cache.write_lock import WriteLock

if TYPE_CHECKING:
    import asyncio
    from uuid import UUID

    from agent.groups.classic.group import ClassicGroup
    from agent.groups.consumer.group import ConsumerGroup


@dataclass(slots=True, kw_only=True, eq=False)
class CachedGroup:
    """A group in memory and the claim under which this agent writes it.

    `write_lock` orders all writes of the group's state and offsets. `stored_version` is the version of a
    consumer group that the catalog has. `last_used` is a time of the monotonic clock. `counted_bytes` are in
    the budget of all groups.
    """

    group: ClassicGroup | ConsumerGroup = field(init=False)
    claim_id: UUID
    last_used: float
    write_lock: WriteLock = field(default_factory=WriteLock)
    timer: asyncio.TimerHandle | None = None
    timer_deadline: float = 0.0
    stored_version: int = 0
    counted_bytes: int = 0

    def cancel_timer(self) -> None:
        """Cancel the timer, if it is set."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
