"""Cache of the groups that this agent coordinates.

A group is claimed in the catalog when it is loaded, and dropped when another agent becomes its coordinator.
Other agents may consider an agent dead that was paused or cut off from the catalog, and claim its groups.
Such an agent drops all groups before it handles the next request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from agent.groups.cache.group_store import GroupStore
from agent.groups.cache.timers import GroupTimers
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.errors import ErrorCode, GroupError
from agent.groups.memory import GroupMemory
from agent.runtime.cooperative_yield import CooperativeYield
from agent.runtime.health import start_essential_task, stop_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.group_settings import GroupSettings
    from agent.groups.cache.cached_group import CachedGroup
    from agent.groups.classic.group import ClassicGroup
    from agent.groups.classic.messages import SyncRequest
    from agent.groups.consumer.cached_lookups import GroupConfigCache
    from agent.groups.interfaces import GroupTable
    from agent.groups.metrics import GroupCounters
    from agent.groups.ownership import GroupOwnership
    from agent.runtime.health import CallHealth
    from agent.runtime.work_pool import WorkPool
    from catalog.model import Broker
    from core.clock import Clock
    from core.ids import Ids

_log = structlog.get_logger(__name__)
_MAX_CONCURRENT_LOADS = 64
_OWNERSHIP_CHECK_SECONDS = 0.5


class GroupCache:
    """The groups in memory. Belongs to the event loop.

    Groups without members may be evicted, because the catalog has all of their state. A group with members
    stays until this agent is no longer its coordinator.
    """

    def __init__(
        self,
        *,
        table: GroupTable,
        ownership: GroupOwnership,
        pool: WorkPool,
        clock: Clock,
        ids: Ids,
        settings: GroupSettings,
        configs: GroupConfigCache,
        catalog_health: CallHealth | None = None,
    ) -> None:
        self.store = GroupStore(
            table=table,
            pool=pool,
            clock=clock,
            ids=ids,
            settings=settings,
            configs=configs,
            on_lost=self.drop,
            on_stored=self.after_change,
        )
        self.memory = GroupMemory(settings)
        self._settings = settings
        self._ownership = ownership
        self._configs = configs
        self._clock = clock
        self._groups: dict[str, CachedGroup] = {}
        self._evictable = _EvictableGroups()
        self._timers = GroupTimers(
            self._expire, clock=clock, max_grace_ms=settings.group_min_session_timeout_ms
        )
        self._load_locks = [asyncio.Lock() for _ in range(_MAX_CONCURRENT_LOADS)]
        self._ownership_check: asyncio.Task[None] | None = None
        self._catalog_health = catalog_health
        self._out_since: float | None = None

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def counters(self) -> GroupCounters:
        """The counters of group events."""
        return self.store.counters

    def groups(self) -> list[ClassicGroup | ConsumerGroup]:
        """Return all groups in memory."""
        return [cached.group for cached in list(self._groups.values())]

    def start(self) -> None:
        """Start to drop groups that move to other agents."""
        self._ownership_check = start_essential_task(self._check_ownership(), name="group ownership")

    @property
    def is_running(self) -> bool:
        """Return True if the task that drops moved groups runs."""
        return self._ownership_check is not None and not self._ownership_check.done()

    def release(self) -> None:
        """Drop all groups and load none any more. Pending requests get NOT_COORDINATOR."""
        self._ownership.close()
        self._drop_all()

    async def stop(self) -> None:
        """Release all groups and wait for writes in progress."""
        self.release()
        await stop_task(self._ownership_check)
        await self.store.wait_for_writes()

    # Lookup

    def get(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        """Return a group if it is in memory."""
        cached = self._groups.get(group_id)
        return None if cached is None else cached.group

    async def find(self, group_id: str, *, create: bool = False) -> CachedGroup | None:
        """Return a group, loaded if necessary; None if it does not exist and is not to be created."""
        await self._ownership.require_own(group_id)
        self._drop_all_after_lapse()
        cached = self._groups.get(group_id)
        if cached is None:
            async with self._load_locks[hash(group_id) % _MAX_CONCURRENT_LOADS]:
                cached = self._groups.get(group_id) or await self._load(group_id, create=create)
        if cached is not None:
            cached.last_used = self._clock.monotonic()
            self._evictable.update(cached)
        return cached

    async def require(self, group_id: str, missing: ErrorCode, *, create: bool = False) -> CachedGroup:
        """Return a group as `find` does; raise `missing` if it does not exist."""
        cached = await self.find(group_id, create=create)
        if cached is None:
            raise GroupError(missing, f"group {group_id!r} does not exist")
        return cached

    async def _load(self, group_id: str, *, create: bool) -> CachedGroup | None:
        if len(self._groups) >= self._settings.max_groups:
            self._evict_one()
        await self._configs.refresh()
        term = self._ownership.term
        claim = await self.store.claim(group_id, create=create)
        await self._ownership.require_own(group_id)
        if self._ownership.term != term:
            raise GroupError(
                ErrorCode.not_coordinator, f"group {group_id!r} may have been claimed by another agent"
            )
        if claim is None:
            return None
        cached = self._groups[group_id] = self.store.load(claim)
        self.after_change(cached)
        return cached

    # Changes

    def after_change(self, cached: CachedGroup) -> None:
        """Update eviction order and timer; call this after every request to a group."""
        if not cached.group.is_dead:
            self._evictable.update(cached)
            cached.counted_bytes = self.memory.update(cached.counted_bytes, cached.group.memory_bytes)
        self._timers.schedule(cached)

    def admit(
        self, cached: CachedGroup, member_id: str, new_bytes: int, *, instance_id: str | None = None
    ) -> None:
        """Raise GroupError if a member brings more bytes than its group may take.

        The bytes that the coordinator has of the member already do not count, nor those of the static member
        that it replaces.
        """
        more = max(0, new_bytes - cached.group.memory_of(member_id, instance_id))
        self.memory.admit(cached.counted_bytes, more)

    def admit_assignments(self, cached: CachedGroup, group: ClassicGroup, request: SyncRequest) -> None:
        """Do the same for the assignments of a leader, which take the place of the earlier ones."""
        if request.assignments:
            more = sum(map(len, request.assignments.values())) - group.assignment_bytes
            self.memory.admit(cached.counted_bytes, max(0, more))

    def _expire(self, cached: CachedGroup) -> None:
        self._drop_all_after_lapse()
        if cached.group.is_dead or self._is_out():
            return  # the end of the outage sets a new timer
        cached.group.expire()
        if isinstance(cached.group, ConsumerGroup):
            self.store.store_later(cached)
        self.after_change(cached)

    # Outages of the catalog

    def _is_out(self) -> bool:
        """Return True if an outage of the catalog lasts, or its end was not handled yet."""
        health = self._catalog_health
        if self._out_since is None and health is not None and health.problem() is not None:
            self._out_since = self._clock.monotonic() - health.seconds_since_success
        return self._out_since is not None

    def _end_outage(self) -> None:
        """After an outage, give all members the time that it took.

        Members are not expelled because the coordinator could not store their group or renew its claim.
        """
        if not self._is_out() or self._catalog_health is None or self._catalog_health.problem() is not None:
            return
        seconds = self._clock.monotonic() - (self._out_since or 0.0)
        self._out_since = None
        for cached in list(self._groups.values()):
            if not cached.group.is_dead:
                cached.group.postpone_deadlines(seconds)
                self._timers.schedule(cached)

    # Eviction and loss

    def evict_idle(self) -> None:
        """Evict the groups without members that were not used for `idle_group_ms`."""
        before = self._clock.monotonic() - self._settings.idle_group_ms / 1000
        for cached in self._evictable.unused_since(before):
            self.drop(cached, ErrorCode.not_coordinator)

    def _evict_one(self) -> None:
        """Evict the group without members that was least recently used.

        Member ids that it assigned and no client has used yet (KIP-394) are lost; the clients get new ones.
        """
        cached = self._evictable.least_recently_used()
        if cached is None:
            raise GroupError(
                ErrorCode.coordinator_not_available, "this agent has max_groups groups with members"
            )
        self.drop(cached, ErrorCode.not_coordinator)

    def drop(self, cached: CachedGroup, error: ErrorCode) -> None:
        """Remove a group from memory and reject its pending requests with `error`."""
        if self._groups.get(cached.group.group_id) is cached:
            del self._groups[cached.group.group_id]
            self._evictable.remove(cached)
        cached.cancel_timer()
        cached.counted_bytes = self.memory.update(cached.counted_bytes, 0)
        if not cached.group.is_dead:
            cached.group.unload(error)

    def drop_deleted(self, group_id: str) -> None:
        """Remove a group that was deleted from the catalog."""
        cached = self._groups.get(group_id)
        if cached is not None:
            self.drop(cached, ErrorCode.not_coordinator)

    def require_claim(self, cached: CachedGroup, *, kept: bool) -> None:
        """Drop the group and raise NOT_COORDINATOR unless a write has `kept` its claim."""
        if not kept:
            self.drop(cached, ErrorCode.not_coordinator)
            raise GroupError(ErrorCode.not_coordinator, "another agent has claimed the group")

    def _drop_all_after_lapse(self) -> None:
        """Drop all groups if others may have claimed them. Groups still owned are claimed again on demand.

        Members that were not stored yet must join again, as after the death of a coordinator. Other members
        notice nothing.
        """
        if self._ownership.has_lapsed():
            _log.warning(
                "dropping all groups: other agents may have considered this agent dead",
                groups=len(self._groups),
            )
            self._drop_all()

    def _drop_all(self) -> None:
        for cached in list(self._groups.values()):
            self.drop(cached, ErrorCode.not_coordinator)

    async def _check_ownership(self) -> None:
        seen: Sequence[Broker] = ()
        while True:
            self._end_outage()
            try:
                seen = await self._drop_moved_groups(seen)
            except Exception:  # noqa: BLE001  # the task must survive any failure
                _log.exception("the ownership of groups could not be checked")
            await asyncio.sleep(_OWNERSHIP_CHECK_SECONDS)

    async def _drop_moved_groups(self, seen: Sequence[Broker]) -> Sequence[Broker]:
        """Drop the groups that moved since `seen` were the live agents; return those that are live now."""
        live = await self._ownership.live()
        self._drop_all_after_lapse()
        if live != seen:
            steps, yielding = await self._ownership.steps_of_a_check(), CooperativeYield()
            for cached in list(self._groups.values()):
                if not await self._ownership.is_own(cached.group.group_id):
                    self.drop(cached, ErrorCode.not_coordinator)
                await yielding.step(steps)
        return live


class _EvictableGroups:
    """The groups without members, in the order of their last use.

    A group does not report that it lost its last member or got its first one. So `update` is called after
    each request, and `least_recently_used` skips groups that have members again.
    """

    def __init__(self) -> None:
        self._groups: dict[str, CachedGroup] = {}

    def update(self, cached: CachedGroup) -> None:
        """Note a use of the group."""
        self.remove(cached)
        if cached.group.is_empty:
            self._groups[cached.group.group_id] = cached

    def remove(self, cached: CachedGroup) -> None:
        """Remove a group that is not evictable or not in memory any more."""
        if self._groups.get(cached.group.group_id) is cached:
            del self._groups[cached.group.group_id]

    def least_recently_used(self) -> CachedGroup | None:
        """Return the least recently used group that is not being written; None if there is none."""
        for _ in range(len(self._groups)):
            cached = next(iter(self._groups.values()))
            if _is_evictable(cached):
                return cached
            self.update(cached)
        return None

    def unused_since(self, time: float) -> list[CachedGroup]:
        """Return the groups not used since a time of the monotonic clock and without a deadline."""
        return [
            cached
            for cached in self._groups.values()
            if cached.last_used < time and cached.group.next_deadline is None and _is_evictable(cached)
        ]


def _is_evictable(cached: CachedGroup) -> bool:
    return cached.group.is_empty and not cached.write_lock.locked()
