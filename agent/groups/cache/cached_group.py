"""A group in memory, and what holding it needs of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agent.groups.cache.write_lock import WriteLock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from agent.groups.classic.group import ClassicGroup
    from agent.groups.consumer.group import ConsumerGroup
    from catalog.groups.repository import GroupRecord
    from catalog.model import Broker


class Brokers(Protocol):
    """Which agents there are, and which of them coordinates a group."""

    own: Broker

    async def live(self) -> Sequence[Broker]:
        """The live agents."""
        ...

    async def coordinator(self, key: str, /) -> Broker:
        """The agent that coordinates the group called `key`."""
        ...

    def term(self) -> int:
        """A number that rises whenever others may have taken this agent for dead."""
        ...


class GroupTable(Protocol):
    """What holding a group needs of the catalog; blocks."""

    def claim(self, group_id: str, claim_id: UUID, /, *, create: bool) -> GroupRecord | None:
        """Become a group's coordinator."""
        ...

    def save(self, claim_id: UUID, record: GroupRecord, /) -> bool:
        """Keep a group's state, unless the claim was lost."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class CachedGroup:
    """A group in memory. `writing` puts what is written of it to the catalog in order.

    `stored_version` is the version of a consumer group that the catalog has.
    """

    group: ClassicGroup | ConsumerGroup
    claim_id: UUID
    used: float
    as_classic: Callable[..., ClassicGroup]
    as_consumer: Callable[..., ConsumerGroup]
    writing: WriteLock = field(default_factory=WriteLock)
    wakeup: asyncio.TimerHandle | None = None
    wakes_at: float = 0.0
    stored_version: int = 0
