"""The list of the groups that this agent coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agent.groups.classic.messages import ClassicGroupState
from agent.runtime.cooperative_yield import CooperativeYield

if TYPE_CHECKING:
    from agent.groups.cache.group_cache import GroupCache
    from agent.groups.interfaces import GroupTable
    from agent.groups.ownership import GroupOwnership
    from catalog.groups.repository import GroupListing, GroupType

_PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group in a list; `state` is the name that Kafka's tools show."""

    group_id: str
    group_type: GroupType
    state: str
    protocol_type: str


class GroupList:
    """Lists the groups of this agent, in memory or not. Belongs to the event loop."""

    def __init__(self, *, cache: GroupCache, ownership: GroupOwnership, table: GroupTable) -> None:
        self._cache = cache
        self._ownership = ownership
        self._table = table

    async def all(self) -> list[ListedGroup]:
        """Return all groups that this agent coordinates."""
        found: list[ListedGroup] = []
        after, yielding = "", CooperativeYield()
        while page := await self._cache.store.call(partial(self._table.page, after, limit=_PAGE_SIZE)):
            steps = await self._ownership.steps_of_a_check()
            for each in page:
                if await self._ownership.is_own(each.group_id):
                    found.append(self._listed(each))
                await yielding.step(steps)
            after = page[-1].group_id
        return found

    def _listed(self, listing: GroupListing) -> ListedGroup:
        group = self._cache.get(listing.group_id)
        if group is not None:
            return ListedGroup(
                group_id=group.group_id,
                group_type=group.group_type,
                state=group.state.value,
                protocol_type=group.protocol_type or "",
            )
        # The states of a group that is not in memory have the same names in both protocols.
        state = ClassicGroupState.STABLE if listing.member_count else ClassicGroupState.EMPTY
        return ListedGroup(
            group_id=listing.group_id,
            group_type=listing.group_type,
            state=state.value,
            protocol_type=listing.protocol_type or "",
        )
