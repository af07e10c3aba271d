"""Reads and writes of groups in the catalog.

All writes of a group happen under the claim with which this agent loaded it. If the claim
was lost, the next write fails and the agent drops the group. Until then it can at worst respond to heartbeats
of members that no other agent knows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog

from agent.cluster.client_messages import is_client_safe, public_cause
from agent.groups.cache.cached_group import CachedGroup
from agent.groups.classic.group import ClassicGroup
from agent.groups.classic.snapshot import decode_classic_group, encode_classic_group
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.snapshot import decode_consumer_group, encode_consumer_group
from agent.groups.consumer.state_machine import Downgrade
from agent.groups.errors import ErrorCode, GroupError
from agent.groups.metrics import GroupCounters
from agent.groups.migration import downgrade_snapshot
from catalog.groups.repository import GroupType
from core.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from uuid import UUID

    from agent.group_settings import GroupSettings
    from agent.groups.classic.snapshot import ClassicGroupSnapshot
    from agent.groups.consumer.cached_lookups import GroupConfigCache
    from agent.groups.consumer.snapshot import ConsumerGroupSnapshot
    from agent.groups.interfaces import GroupTable
    from agent.runtime.work_pool import WorkPool
    from catalog.groups.repository import GroupRecord
    from core.clock import Clock
    from core.ids import Ids

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class Claim(NamedTuple):
    """A claim on a group and the group's record at that moment."""

    claim_id: UUID
    record: GroupRecord


class GroupStore:
    """Claims, loads and stores groups. Belongs to the event loop.

    `on_lost` is called with a group that could not be stored, and the error for its members. `on_stored` is
    called after each write of a classic group, because that may have set a deadline.
    """

    def __init__(
        self,
        *,
        table: GroupTable,
        pool: WorkPool,
        clock: Clock,
        ids: Ids,
        settings: GroupSettings,
        configs: GroupConfigCache,
        on_lost: Callable[[CachedGroup, ErrorCode], None],
        on_stored: Callable[[CachedGroup], None],
    ) -> None:
        self.counters = GroupCounters()
        self._table = table
        self._pool = pool
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._configs = configs
        self._on_lost = on_lost
        self._on_stored = on_stored
        self._writes: set[asyncio.Task[Any]] = set()

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of a catalog call. Raises COORDINATOR_NOT_AVAILABLE if it may succeed later."""
        try:
            return await self._pool.run(work)
        except RetryableError as error:
            message = str(error)
            if not is_client_safe(error):
                _log.warning("a catalog call of the group coordinator failed", reason=message)
                message = public_cause(error)
            raise GroupError(ErrorCode.coordinator_not_available, message) from error

    async def write(self, cached: CachedGroup, work: Callable[[], T]) -> T:
        """Return the result of a catalog write; the caller has `cached.write_lock`.

        The write continues if the caller is cancelled.
        """
        return await cached.write_lock.run(self._start(self.call(work)))

    async def wait_for_writes(self) -> None:
        """Wait until all writes in progress have ended."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return task

    # Loading

    async def claim(self, group_id: str, *, create: bool) -> Claim | None:
        """Claim a group; None if it does not exist and is not to be created."""
        claim_id = self._ids.new_uuid()
        record = await self.call(partial(self._table.claim, group_id, claim_id, create=create))
        return None if record is None else Claim(claim_id, record)

    def load(self, claim: Claim) -> CachedGroup:
        """Return the claimed group."""
        record = claim.record
        cached = CachedGroup(claim_id=claim.claim_id, last_used=self._clock.monotonic())
        if record.group_type is GroupType.CONSUMER:
            cached.group = self.new_consumer_group(record.group_id, decode_consumer_group(record))
        else:
            cached.group = self.new_classic_group(record.group_id, decode_classic_group(record), cached)
        return cached

    def new_classic_group(
        self, group_id: str, snapshot: ClassicGroupSnapshot, cached: CachedGroup
    ) -> ClassicGroup:
        """Return a classic group that is stored under the claim of `cached`."""

        def save(snapshot: ClassicGroupSnapshot, on_stored: Callable[[ErrorCode], None]) -> None:
            self._start(self._store_classic(cached, snapshot, on_stored))

        return ClassicGroup(
            group_id,
            settings=self._settings,
            clock=self._clock,
            ids=self._ids,
            save=save,
            counters=self.counters,
            snapshot=snapshot,
        )

    def new_consumer_group(self, group_id: str, snapshot: ConsumerGroupSnapshot) -> ConsumerGroup:
        """Return a consumer group."""
        return ConsumerGroup(
            group_id,
            settings=self._settings,
            clock=self._clock,
            ids=self._ids,
            counters=self.counters,
            snapshot=snapshot,
            config=self._configs.of(group_id),
        )

    # Storing

    def replace(self, cached: CachedGroup, group: ClassicGroup | ConsumerGroup, error: ErrorCode) -> None:
        """Replace a group by its conversion to the other protocol; reject pending requests with `error`."""
        old, cached.group, cached.stored_version = cached.group, group, 0
        old.unload(error)
        cached.cancel_timer()

    async def store(
        self,
        cached: CachedGroup,
        *,
        error_if_replaced: ErrorCode = ErrorCode.coordinator_load_in_progress,
    ) -> None:
        """Wait until the current state of a consumer group is stored; concurrent callers share one write.

        A group that cannot be stored is dropped, and the next request loads its last stored state. If the
        group is replaced before it is stored, the caller gets `error_if_replaced` and its client retries.
        """
        error = await asyncio.shield(self._start(self._store_or_downgrade(cached, error_if_replaced)))
        if error is not ErrorCode.none:
            raise GroupError(error, f"group {cached.group.group_id!r} could not be stored")

    def store_later(self, cached: CachedGroup) -> None:
        """Store a consumer group without waiting for the write."""
        self._start(self._store_or_downgrade(cached, ErrorCode.coordinator_load_in_progress))

    def _store_or_downgrade(
        self, cached: CachedGroup, error_if_replaced: ErrorCode
    ) -> Coroutine[None, None, ErrorCode]:
        """Return the write of a consumer group. A downgrade happens before this returns."""
        group = cached.group
        if not isinstance(group, ConsumerGroup):
            raise TypeError(f"classic group {group.group_id!r} stores itself")
        if group.downgrade is None:
            return self._store_consumer(cached, group, error_if_replaced)
        must_rebalance = group.downgrade is Downgrade.MEMBER_LEFT
        snapshot = downgrade_snapshot(group.snapshot(), must_rebalance=must_rebalance)
        classic = self.new_classic_group(group.group_id, snapshot, cached)
        self.replace(cached, classic, ErrorCode.rebalance_in_progress)
        self.counters.downgrades += 1
        return self._store_downgraded(cached, classic, snapshot)

    async def _store_consumer(
        self, cached: CachedGroup, group: ConsumerGroup, error_if_replaced: ErrorCode
    ) -> ErrorCode:
        wanted_version = group.version
        async with cached.write_lock:
            if group.is_dead:
                return ErrorCode.not_coordinator if cached.group.is_dead else error_if_replaced
            if cached.stored_version >= wanted_version:
                return ErrorCode.none
            version, snapshot = group.version, group.snapshot()

            def save() -> bool:
                # Encoding a large group takes some milliseconds, so the thread does it, not the event loop.
                return self._table.save(cached.claim_id, encode_consumer_group(group.group_id, snapshot))

            error = await self._try_save(cached, save, ErrorCode.coordinator_not_available)
            if error is not ErrorCode.none:
                self._on_lost(cached, error)
            elif cached.group is group:  # it may have been replaced in the meantime
                cached.stored_version = version
        return error

    async def _store_classic(
        self, cached: CachedGroup, snapshot: ClassicGroupSnapshot, on_stored: Callable[[ErrorCode], None]
    ) -> ErrorCode:
        record = encode_classic_group(cached.group.group_id, snapshot)
        async with cached.write_lock:
            save = partial(self._table.save, cached.claim_id, record)
            error = await self._try_save(cached, save, ErrorCode.unknown_server_error)
            if error is ErrorCode.not_coordinator:
                self._on_lost(cached, error)
        on_stored(error)
        self._on_stored(cached)
        return error

    async def _store_downgraded(
        self, cached: CachedGroup, classic: ClassicGroup, snapshot: ClassicGroupSnapshot
    ) -> ErrorCode:
        """Store a group that was converted to a classic group; drop it if it cannot be stored."""
        error = await self._store_classic(cached, snapshot, lambda _: None)
        if error is not ErrorCode.none and cached.group is classic:
            self._on_lost(cached, ErrorCode.coordinator_not_available)
        return error

    async def _try_save(
        self, cached: CachedGroup, save: Callable[[], bool], unexpected: ErrorCode
    ) -> ErrorCode:
        """Return `none`, NOT_COORDINATOR if the claim was lost, or the error; `unexpected` for a bug."""
        group_id = cached.group.group_id
        try:
            return ErrorCode.none if await self.call(save) else ErrorCode.not_coordinator
        except GroupError as failure:
            _log.warning("a group could not be stored", group=group_id, reason=str(failure))
            return failure.code
        except Exception:  # noqa: BLE001  # requests wait for the outcome and must get an error
            _log.exception("a group could not be stored", group=group_id)
            return unexpected
