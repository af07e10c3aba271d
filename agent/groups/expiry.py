"""Forgets offsets that nobody has needed for `offsets.retention.minutes`, and groups that nobody uses.

Each agent looks after the groups that it coordinates, whether it holds them or not. Groups that rebalance are
left alone: who their members will be, and what they will read, is not known yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from agent.groups.messages import GroupState
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.groups.coordinator import GroupCoordinator
    from agent.runtime.work_pool import WorkPool
    from core.ids import Ids

_log = structlog.get_logger(__name__)
_AT_ONCE = 200
_REBALANCING = {GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE}


class ExpiringOffsets(Protocol):
    """What expiry needs of the catalog; blocks."""

    def expire(self, group_ids: Sequence[str], retention_ms: int, /) -> list[str]:
        """Forget what has expired of these groups; returns those that are gone altogether."""
        ...


class OffsetExpiry:
    """Looks through the groups now and then. Belongs to the event loop."""

    def __init__(
        self, coordinator: GroupCoordinator, offsets: ExpiringOffsets, *, pool: WorkPool, ids: Ids
    ) -> None:
        self._coordinator = coordinator
        self._offsets = offsets
        self._pool = pool
        self._ids = ids
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the first look comes after an interval."""
        self._running = asyncio.get_running_loop().create_task(self._run(), name="offset expiry")

    async def stop(self) -> None:
        """Stop."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def look(self) -> None:
        """Look through all groups once."""
        held = self._coordinator.held
        held.drop_idle()
        settled = [each.group_id for each in await self._coordinator.list() if each.state not in _REBALANCING]
        retention_ms = self._coordinator.settings.offsets_retention_minutes * 60_000
        for begin in range(0, len(settled), _AT_ONCE):
            group_ids = settled[begin : begin + _AT_ONCE]
            gone = await self._pool.run(partial(self._offsets.expire, group_ids, retention_ms))
            held.counts.groups_expired += len(gone)
            for group_id in gone:
                held.forget(group_id)

    async def _run(self) -> None:
        interval = self._coordinator.settings.offsets_retention_check_interval_ms / 1000
        while True:
            await asyncio.sleep(interval * (0.5 + self._ids.random()))
            try:
                await self.look()
            except SiltstoneError as error:
                _log.warning("expired offsets could not be looked for", reason=str(error))
