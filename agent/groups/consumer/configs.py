"""The settings of consumer groups as their coordinator knows them: looked up at most once in a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.consumer.remembered import Remembered
from catalog.config.group_config import GroupConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from core.clock import Clock

_NOTHING_SET = GroupConfig()


class GroupConfigViews:
    """What was set for groups, by any agent, as it is or was a moment ago. Belongs to the event loop."""

    def __init__(
        self, look_up: Callable[[], Awaitable[Mapping[str, GroupConfig]]], *, clock: Clock, refresh_ms: int
    ) -> None:
        self._remembered = Remembered("settings of groups", look_up, clock=clock, refresh_ms=refresh_ms)

    def of(self, group_id: str) -> GroupConfig:
        """What was set for a group when it was last looked up."""
        return (self._remembered.last or {}).get(group_id, _NOTHING_SET)

    async def refresh(self) -> None:
        """Look again, when it is time to; what was known stays while the catalog does not answer."""
        await self._remembered.current()
