"""The settings of consumer groups as their coordinator knows them: looked up at most once in a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from catalog.group_config import GroupConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from bedrock.clock import Clock

_NOTHING_SET = GroupConfig()


class GroupConfigViews:
    """What was set for groups, by any agent, as it is or was a moment ago. Belongs to the event loop."""

    def __init__(
        self, look_up: Callable[[], Awaitable[Mapping[str, GroupConfig]]], *, clock: Clock, refresh_ms: int
    ) -> None:
        self._look_up = look_up
        self._clock = clock
        self._refresh_seconds = refresh_ms / 1000
        self._known: Mapping[str, GroupConfig] = {}
        self._until = float("-inf")
        self._looking = asyncio.Lock()

    def of(self, group_id: str) -> GroupConfig:
        """What was set for a group when it was last looked up."""
        return self._known.get(group_id, _NOTHING_SET)

    async def refresh(self) -> None:
        """Look again, when it is time to."""
        async with self._looking:
            if self._clock.monotonic() >= self._until:
                self._known = await self._look_up()
                self._until = self._clock.monotonic() + self._refresh_seconds
