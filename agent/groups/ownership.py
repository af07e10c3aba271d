"""Ownership of groups: which agent coordinates a group.

Rendezvous hashing over the live agents determines a group's coordinator. Agents that start or stop make these
views differ for a moment, so ownership alone protects nothing: every write happens under a claim in the
catalog (`agent.groups.cache`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agent.cluster.brokers import HASHES_PER_STEP
from agent.groups.errors import ErrorCode, GroupError
from catalog.groups.names import check_group_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import Broker


def require_group_id(group_id: str) -> None:
    """Raise INVALID_GROUP_ID for an empty group id."""
    if not group_id:
        raise GroupError(ErrorCode.invalid_group_id, "the group id is empty")


class Brokers(Protocol):
    """The live agents."""

    own: Broker

    async def live(self) -> Sequence[Broker]:
        """Return the live agents."""
        ...

    async def coordinator(self, key: str, /) -> Broker:
        """Return the agent that coordinates the group with this id."""
        ...

    def term(self) -> int:
        """Return a number that rises whenever other agents may have considered this agent dead."""
        ...


class GroupOwnership:
    """This agent's view of the groups that it coordinates. Belongs to the event loop."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._term = brokers.term()
        self._is_closed = False

    @property
    def term(self) -> int:
        """A number that rises whenever another agent may have claimed groups of this agent."""
        return self._brokers.term()

    def close(self) -> None:
        """Own no group any more."""
        self._is_closed = True

    async def live(self) -> Sequence[Broker]:
        """Return the live agents."""
        return await self._brokers.live()

    async def steps_of_a_check(self) -> int:
        """Return the steps of work (see `CooperativeYield`) that `is_own` may take: a hash for each agent."""
        return 1 + len(await self._brokers.live()) // HASHES_PER_STEP

    async def is_own(self, group_id: str) -> bool:
        """Return True if this agent coordinates the group."""
        coordinator = await self._brokers.coordinator(group_id)
        return coordinator.node_id == self._brokers.own.node_id

    async def require_own(self, group_id: str) -> None:
        """Raise NOT_COORDINATOR if another agent coordinates the group, InvalidGroupError for a bad id."""
        check_group_name(group_id)
        if self._is_closed or not await self.is_own(group_id):
            raise GroupError(ErrorCode.not_coordinator, f"group {group_id!r} is coordinated by another agent")

    def has_lapsed(self) -> bool:
        """Return True if the term has risen since the last call."""
        term = self._brokers.term()
        lapsed = term != self._term
        self._term = term
        return lapsed
