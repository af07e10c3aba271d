"""The memory of groups: a limit for each group, and a budget for all of them.

A member sends its subscription, metadata for each protocol, and, if it leads, the assignments of all members.
The coordinator keeps these while the member is in the group. A request is admitted by the size of what it
brings, before the group changes. After each change, the group counts with its true size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.errors import ErrorCode, GroupError
from agent.runtime.byte_budget import ByteBudget

if TYPE_CHECKING:
    from agent.group_settings import GroupSettings


class GroupMemory:
    """Bytes that the groups of an agent keep for their members. Belongs to the event loop."""

    def __init__(self, settings: GroupSettings) -> None:
        self.budget = ByteBudget("the memory for groups", settings.groups_max_bytes)
        self._limit = settings.group_max_bytes

    def admit(self, held: int, more: int) -> None:
        """Raise GroupError if a group of `held` bytes may not take `more`."""
        if more and held + more > self._limit:
            raise GroupError(
                ErrorCode.group_max_size_reached,
                f"the members of a group may take {self._limit} bytes (group_max_bytes)",
            )
        if 0 < more > self.budget.free:
            raise GroupError(ErrorCode.coordinator_not_available, self.budget.rejection(more).message)

    def update(self, held: int, size: int) -> int:
        """Let a group that counts with `held` bytes count with `size`, and return the latter."""
        if size > held:
            self.budget.reserve_unchecked(size - held)
        else:
            self.budget.release(held - size)
        return size
