"""The groups that this agent coordinates: claimed in the catalog, held in memory, given up when they move.

A group belongs to the live agent that rendezvous hashing names. That alone is only a view, and views differ
for a moment when agents come and go, so whoever begins to coordinate a group claims it in the catalog, and
everything that matters is written under the claim. One that lost its claim learns so from its next write;
until then it can at worst answer heartbeats of members that nobody else knows. An agent that others may have
taken for dead, for it was paused or cut off from the catalog, gives up all that it holds before it answers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from agent.groups.cache.cached_group import CachedGroup
from agent.groups.cache.evictable_groups import EvictableGroups
from agent.groups.classic.group import ClassicGroup
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.snapshot import consumer_record_of, consumer_snapshot_of
from agent.groups.consumer.state_machine import Downgrade
from agent.groups.counts import GroupCounts
from agent.groups.migration import downgraded
from agent.groups.records import record_of, snapshot_of
from agent.kafka.errors import ErrorCode, KafkaError, message_of
from catalog.groups.names import check_group_name
from catalog.groups.repository import GroupType
from core.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from uuid import UUID

    from agent.group_settings import GroupSettings
    from agent.groups.cache.cached_group import Brokers, GroupTable
    from agent.groups.consumer.configs import GroupConfigViews
    from agent.groups.consumer.snapshot import ConsumerGroupSnapshot
    from agent.groups.messages import GroupSnapshot
    from agent.runtime.work_pool import WorkPool
    from catalog.groups.repository import GroupRecord
    from catalog.model import Broker
    from core.clock import Clock
    from core.ids import Ids

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_LOADS_AT_ONCE = 64
_LOOK_SECONDS = 0.5
# What a loop is always late by, on a busy machine too.
_LATE_SECONDS = 0.1


class CachedGroups:
    """The groups that this agent coordinates. Belongs to the event loop."""

    def __init__(
        self,
        *,
        table: GroupTable,
        brokers: Brokers,
        pool: WorkPool,
        clock: Clock,
        ids: Ids,
        settings: GroupSettings,
        configs: GroupConfigViews,
    ) -> None:
        self.settings = settings
        self.counts = GroupCounts()
        self._configs = configs
        self._table = table
        self._brokers = brokers
        self._pool = pool
        self._clock = clock
        self._ids = ids
        self._term = brokers.term()
        self._held: dict[str, CachedGroup] = {}
        self._spare = EvictableGroups()
        self._loading = [asyncio.Lock() for _ in range(_LOADS_AT_ONCE)]
        self._saving: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    def groups(self) -> list[ClassicGroup | ConsumerGroup]:
        """All groups in memory."""
        return [held.group for held in list(self._held.values())]

    def start(self) -> None:
        """Begin to notice when groups move to other agents."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="group placement")

    def release(self) -> None:
        """Give up every group: whoever waits is sent to look for the next coordinator."""
        self._closed = True
        self._drop_all()

    async def stop(self) -> None:
        """Stop; what is being written is written."""
        self.release()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*self._saving, return_exceptions=True)

    async def is_own(self, group_id: str) -> bool:
        """Whether this agent coordinates that group, as far as it knows."""
        coordinator = await self._brokers.coordinator(group_id)
        return coordinator.node_id == self._brokers.own.node_id

    async def require_own(self, group_id: str) -> None:
        """Raise NOT_COORDINATOR unless this agent coordinates that group, InvalidGroupError if nobody can."""
        check_group_name(group_id)
        if self._closed or not await self.is_own(group_id):
            raise KafkaError(ErrorCode.not_coordinator, f"group {group_id!r} is coordinated by another agent")

    def peek(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        """The group, if it is in memory."""
        held = self._held.get(group_id)
        return None if held is None else held.group

    async def find(self, group_id: str, *, create: bool = False) -> CachedGroup | None:
        """The group, claimed and loaded if need be; None when there is none and it shall not be made."""
        await self.require_own(group_id)
        self._give_up_after_a_lapse()
        held = self._held.get(group_id)
        if held is None:
            async with self._loading[hash(group_id) % _LOADS_AT_ONCE]:
                held = self._held.get(group_id) or await self._load(group_id, create=create)
        if held is not None:
            held.used = self._clock.monotonic()
            self._spare.note(held)
        return held

    async def call(self, work: Callable[[], T]) -> T:
        """What the catalog answers; COORDINATOR_NOT_AVAILABLE when it does not."""
        try:
            return await self._pool.run(work)
        except RetryableError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, message_of(error) or "") from error

    async def write(self, held: CachedGroup, work: Callable[[], T]) -> T:
        """As `call`, for those who have `held.writing`; it goes on to its end if they are cancelled."""
        return await held.writing.until_done(self._track(self.call(work)))

    def moved(self, held: CachedGroup) -> None:
        """Call after every request to a group: time must wake it when it has something to do."""
        if not held.group.is_dead:
            self._spare.note(held)
        deadline = held.group.next_deadline
        if deadline is None or held.group.is_dead:
            return
        if held.wakeup is not None:
            if held.wakes_at <= deadline:
                return
            held.wakeup.cancel()
        loop = asyncio.get_running_loop()
        due = loop.time() + max(deadline - self._clock.monotonic(), 0.0)
        held.wakes_at = deadline
        held.wakeup = loop.call_at(due, self._wake, held, due)

    def drop(self, held: CachedGroup, error: ErrorCode) -> None:
        """Give a group up: whoever waits in it is told `error`."""
        if self._held.get(held.group.group_id) is held:
            del self._held[held.group.group_id]
            self._spare.remove(held)
        if held.wakeup is not None:
            held.wakeup.cancel()
            held.wakeup = None
        if not held.group.is_dead:
            held.group.unload(error)

    def drop_idle(self) -> None:
        """Let go of groups without members that nobody asked for lately; the catalog keeps them."""
        before = self._clock.monotonic() - self.settings.idle_group_ms / 1000
        for held in self._spare.unused_since(before):
            self.drop(held, ErrorCode.not_coordinator)

    def forget(self, group_id: str) -> None:
        """The catalog does not have this group any more."""
        held = self._held.get(group_id)
        if held is not None:
            self.drop(held, ErrorCode.not_coordinator)

    def _give_up_after_a_lapse(self) -> None:
        """Others may have claimed what is held here: what is this agent's still is claimed anew on demand.

        Members that had not been stored join again, as when a coordinator dies; all others notice nothing.
        """
        term = self._brokers.term()
        if term != self._term:
            self._term = term
            _log.warning("taken for dead, maybe: groups are given up", groups=len(self._held))
            self._drop_all()

    def _drop_all(self) -> None:
        for held in list(self._held.values()):
            self.drop(held, ErrorCode.not_coordinator)

    def _wake(self, held: CachedGroup, due: float) -> None:
        """Time is up, unless this agent itself was away: then members get that long to be heard.

        Their heartbeats came while nobody read them, and are read only after the timers that are due. None
        needs more time than the shortest session.
        """
        loop = asyncio.get_running_loop()
        late = min(loop.time() - due, self.settings.group_min_session_timeout_ms / 1000)
        if late > _LATE_SECONDS:
            held.wakeup = loop.call_later(late, self._expire, held)
        else:
            self._expire(held)

    def _expire(self, held: CachedGroup) -> None:
        held.wakeup = None
        self._give_up_after_a_lapse()
        if held.group.is_dead:
            return
        held.group.expire()
        if isinstance(held.group, ConsumerGroup):
            self._track(self._kept(held, ErrorCode.coordinator_load_in_progress))
        self.moved(held)

    def _track(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)
        return task

    async def _load(self, group_id: str, *, create: bool) -> CachedGroup | None:
        if len(self._held) >= self.settings.max_groups:
            self._make_room()
        await self._configs.refresh()
        claim_id, term = self._ids.new_uuid(), self._brokers.term()
        record = await self.call(partial(self._table.claim, group_id, claim_id, create=create))
        await self.require_own(group_id)
        if self._brokers.term() != term:
            raise KafkaError(ErrorCode.not_coordinator, f"group {group_id!r} may have been claimed meanwhile")
        if record is None:
            return None
        held = self._held[group_id] = self._hold(record, claim_id)
        self.moved(held)
        return held

    def _make_room(self) -> None:
        """Let go of a group without members; the catalog keeps it.

        Ids that it gave to members who did not come yet (KIP-394) go with it: they are given others.
        """
        spare = self._spare.oldest()
        if spare is None:
            raise KafkaError(
                ErrorCode.coordinator_not_available, "this agent has max_groups groups with members"
            )
        self.drop(spare, ErrorCode.not_coordinator)

    def _hold(self, record: GroupRecord, claim_id: UUID) -> CachedGroup:
        held: CachedGroup

        def save(snapshot: GroupSnapshot, done: Callable[[ErrorCode], None]) -> None:
            self._track(self._save(held, snapshot, done))

        classic = partial(
            ClassicGroup,
            record.group_id,
            settings=self.settings,
            clock=self._clock,
            ids=self._ids,
            save=save,
            counts=self.counts,
        )

        def consumer(snapshot: ConsumerGroupSnapshot) -> ConsumerGroup:
            return ConsumerGroup(
                record.group_id,
                settings=self.settings,
                clock=self._clock,
                ids=self._ids,
                counts=self.counts,
                snapshot=snapshot,
                config=self._configs.of(record.group_id),
            )

        held = CachedGroup(
            group=(
                consumer(snapshot=consumer_snapshot_of(record))
                if record.group_type is GroupType.CONSUMER
                else classic(snapshot=snapshot_of(record))
            ),
            claim_id=claim_id,
            used=self._clock.monotonic(),
            as_classic=classic,
            as_consumer=consumer,
        )
        return held

    def exchange(self, held: CachedGroup, group: ClassicGroup | ConsumerGroup, *, told: ErrorCode) -> None:
        """Put `group` in the place of the one that is held; whoever waits in that one is told `told`."""
        before, held.group, held.stored_version = held.group, group, 0
        before.unload(told)
        if held.wakeup is not None:
            held.wakeup.cancel()
            held.wakeup = None

    async def keep(
        self, held: CachedGroup, *, exchanged: ErrorCode = ErrorCode.coordinator_load_in_progress
    ) -> None:
        """Until what a consumer group is now is stored; whoever asks meanwhile shares one write.

        A group that could not be stored is given up: the next request takes it from where it was stored last.
        When another took its place before it was stored, whoever waits is told `exchanged`, and comes again.
        """
        error = await asyncio.shield(self._track(self._kept(held, exchanged)))
        if error is not ErrorCode.none:
            raise KafkaError(error, f"group {held.group.group_id!r} could not be stored as it was")

    def _kept(self, held: CachedGroup, exchanged: ErrorCode) -> Coroutine[None, None, ErrorCode]:
        """What stores a consumer group; one that is to be classic from now on is that when this returns."""
        group = held.group
        if not isinstance(group, ConsumerGroup):
            raise TypeError(f"group {group.group_id!r} stores itself")
        if group.downgrade is None:
            return self._store(held, group, exchanged)
        snapshot = downgraded(group.snapshot(), must_rebalance=group.downgrade is Downgrade.AFTER_A_LEAVE)
        classic = held.as_classic(snapshot=snapshot)
        self.exchange(held, classic, told=ErrorCode.rebalance_in_progress)
        self.counts.downgrades += 1
        return self._save_exchanged(held, classic, snapshot)

    async def _store(self, held: CachedGroup, group: ConsumerGroup, exchanged: ErrorCode) -> ErrorCode:
        wanted = group.version
        async with held.writing:
            if group.is_dead:
                return ErrorCode.not_coordinator if held.group.is_dead else exchanged
            if held.stored_version >= wanted:
                return ErrorCode.none
            version, snapshot = group.version, group.snapshot()

            def save() -> bool:
                # A large group takes some milliseconds to be written down: not on the loop.
                return self._table.save(held.claim_id, consumer_record_of(group.group_id, snapshot))

            try:
                if await self.call(save):
                    if held.group is group:  # another may have taken its place meanwhile
                        held.stored_version = version
                    return ErrorCode.none
                error = ErrorCode.not_coordinator
            except KafkaError as failure:
                _log.warning("a group could not be kept", group=group.group_id, reason=str(failure))
                error = failure.code
            except Exception:  # noqa: BLE001  # whoever waits for this is answered
                _log.exception("a group could not be kept", group=group.group_id)
                error = ErrorCode.coordinator_not_available
            self.drop(held, error)
        return error

    async def _save(
        self, held: CachedGroup, snapshot: GroupSnapshot, done: Callable[[ErrorCode], None]
    ) -> ErrorCode:
        error = ErrorCode.none
        record = record_of(held.group.group_id, snapshot)
        async with held.writing:
            try:
                if not await self.call(partial(self._table.save, held.claim_id, record)):
                    error = ErrorCode.not_coordinator
                    self.drop(held, error)
            except KafkaError as failure:
                _log.warning("a group could not be kept", group=held.group.group_id, reason=str(failure))
                error = failure.code
            except Exception:  # noqa: BLE001  # whoever waits for this is answered
                _log.exception("a group could not be kept", group=held.group.group_id)
                error = ErrorCode.unknown_server_error
        done(error)
        self.moved(held)
        return error

    async def _save_exchanged(
        self, held: CachedGroup, classic: ClassicGroup, snapshot: GroupSnapshot
    ) -> ErrorCode:
        """Store a group that was exchanged for a classic one; it is given up if it could not be."""
        error = await self._save(held, snapshot, lambda _: None)
        if error is not ErrorCode.none and held.group is classic:
            self.drop(held, ErrorCode.coordinator_not_available)
        return error

    async def _watch(self) -> None:
        seen: Sequence[Broker] = ()
        while True:
            live = await self._brokers.live()
            self._give_up_after_a_lapse()
            if live != seen:
                seen = live
                for held in list(self._held.values()):
                    if not await self.is_own(held.group.group_id):
                        self.drop(held, ErrorCode.not_coordinator)
            await asyncio.sleep(_LOOK_SECONDS)
