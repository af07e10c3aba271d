"""Expiry of committed offsets after `offsets.retention.minutes`, and of the groups without any left.

Each agent expires the groups that it coordinates, in memory or not. It skips classic groups during
a rebalance, because their members and subscriptions are about to change.

If all members of a group die together with its coordinator, no request names the group again. The task
loads such groups, so that the sessions of the members end, and the offsets can expire. Kafka's coordinators
load all groups when they start.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.groups.classic.messages import ClassicGroupState
from agent.groups.errors import ErrorCode, GroupError
from agent.runtime.health import start_essential_task, stop_task
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.group_settings import GroupSettings
    from agent.groups.cache.group_cache import GroupCache
    from agent.groups.interfaces import OffsetTable
    from agent.groups.listing import GroupList, ListedGroup
    from agent.runtime.work_pool import WorkPool
    from core.ids import Ids

_log = structlog.get_logger(__name__)
_GROUPS_PER_CALL = 200
_REBALANCING = {ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.COMPLETING_REBALANCE}


class OffsetExpiry:
    """Periodic task that expires offsets and evicts idle groups. Belongs to the event loop."""

    def __init__(
        self,
        *,
        cache: GroupCache,
        groups: GroupList,
        table: OffsetTable,
        pool: WorkPool,
        ids: Ids,
        settings: GroupSettings,
    ) -> None:
        self._cache = cache
        self._groups = groups
        self._table = table
        self._pool = pool
        self._ids = ids
        self._settings = settings
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task; the first run is one interval later."""
        self._task = start_essential_task(self._run(), name="offset expiry")

    @property
    def is_running(self) -> bool:
        """Return True if the task runs."""
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        """Stop the task."""
        await stop_task(self._task)

    async def run_once(self) -> None:
        """Evict idle groups, expire the offsets of all groups of this agent, and load abandoned groups."""
        self._cache.evict_idle()
        listed = await self._groups.all()
        group_ids = [each.group_id for each in listed if each.state not in _REBALANCING]
        retention_ms = self._settings.offsets_retention_minutes * 60_000
        for begin in range(0, len(group_ids), _GROUPS_PER_CALL):
            some = group_ids[begin : begin + _GROUPS_PER_CALL]
            deleted = await self._pool.run(partial(self._table.expire, some, retention_ms))
            self._cache.counters.groups_expired += len(deleted)
            for group_id in deleted:
                self._cache.drop_deleted(group_id)
        await self._load_abandoned(listed)

    async def _load_abandoned(self, listed: Sequence[ListedGroup]) -> None:
        """Load the groups whose members this agent does not know yet.

        They take at most half of the space for groups. The next run loads others.
        """
        memory = self._cache.memory.budget
        for each in listed:
            if memory.is_scarce or 2 * len(self._cache) >= self._settings.max_groups:
                return
            if each.state == ClassicGroupState.STABLE and self._cache.get(each.group_id) is None:
                try:
                    await self._cache.find(each.group_id)
                except GroupError as error:
                    if error.code is not ErrorCode.not_coordinator:
                        raise

    async def _run(self) -> None:
        interval_seconds = self._settings.offsets_retention_check_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_seconds * (0.5 + self._ids.random()))
            try:
                await self.run_once()
            except SiltstoneError as error:
                _log.warning("offsets could not be expired", reason=str(error))
            except Exception:  # noqa: BLE001  # the task must survive any failure
                _log.exception("offsets could not be expired")
