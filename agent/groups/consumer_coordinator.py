"""Requests to consumer groups, and conversions of groups between the two protocols."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent.groups.classic.group import ClassicGroup
from agent.groups.classic.snapshot import ClassicGroupSnapshot
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.member import ConsumerMember
from agent.groups.consumer.messages import JOIN_EPOCH
from agent.groups.consumer.snapshot import ConsumerGroupSnapshot
from agent.groups.consumer.validation import check_heartbeat
from agent.groups.errors import ErrorCode, GroupError
from agent.groups.migration import check_upgrade, upgrade_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.group_settings import GroupSettings
    from agent.groups.cache.cached_group import CachedGroup
    from agent.groups.cache.group_cache import GroupCache
    from agent.groups.classic.messages import JoinRequest, JoinResponse, LeavingMember
    from agent.groups.consumer.cached_lookups import GroupConfigCache, TopicCache
    from agent.groups.consumer.messages import (
        ConsumerGroupDescription,
        ConsumerHeartbeat,
        HeartbeatResponse,
    )
    from agent.groups.consumer.topics import TopicView
    from core.clock import Clock

# Interval at which the session of a waiting member is extended; far below the shortest session timeout.
_SESSION_EXTENSION_SECONDS = 1.0


class ConsumerGroupCoordinator:
    """Coordinator of the consumer groups of this agent. Belongs to the event loop.

    A group without members takes the protocol of the first member that joins. A classic group becomes a
    consumer group when a member of the consumer protocol joins, and a consumer group becomes a classic group
    when the last such member leaves, as far as `group.consumer.migration.policy` allows.
    """

    def __init__(
        self,
        *,
        cache: GroupCache,
        topics: TopicCache,
        configs: GroupConfigCache,
        settings: GroupSettings,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._topics = topics
        self._configs = configs
        self._settings = settings
        self._clock = clock

    # Members of the consumer protocol

    async def heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> HeartbeatResponse:
        """Handle a heartbeat; return when the changes that it makes are stored."""
        check_heartbeat(group_id, request)
        group = self._cache.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.extend_session_on_arrival(request)
        topics = await self._topics.get()
        await self._configs.refresh()
        joins = request.member_epoch == JOIN_EPOCH
        cached = await self._find(group_id, topics, request, create=joins)
        if cached is None or (request.member_epoch > 0 and isinstance(cached.group, ClassicGroup)):
            raise _no_consumer_group(group_id, request)
        if joins or cached.group.memory_of(request.member_id, request.instance_id):
            size = ConsumerMember(member_id=request.member_id).updated(request).memory_bytes
            self._cache.admit(cached, request.member_id, size, instance_id=request.instance_id)
        if joins and isinstance(cached.group, ClassicGroup):
            response = self._upgrade(cached, cached.group, request, topics)
        else:
            group = _require_consumer_group(cached)
            group.config = self._configs.of(group_id)
            response = group.heartbeat(request, topics)
        self._cache.after_change(cached)
        if not _is_stored(cached):
            await self._store(cached, response.member_id)
        return response

    async def _store(self, cached: CachedGroup, member_id: str) -> None:
        """Wait until the group is stored; extend the session of the member that waits for the response."""
        storing = asyncio.ensure_future(self._cache.store.store(cached))
        try:
            while not storing.done():
                await asyncio.wait([storing], timeout=_SESSION_EXTENSION_SECONDS)
                if isinstance(cached.group, ConsumerGroup):
                    cached.group.extend_session_while_waiting(member_id)
            storing.result()
        finally:
            storing.cancel()

    async def _find(
        self,
        group_id: str,
        topics: TopicView,
        request: ConsumerHeartbeat | None = None,
        *,
        create: bool = False,
    ) -> CachedGroup | None:
        """Return the group; its patterns and that of the request have then been matched with these topics."""
        cached = await self._cache.find(group_id, create=create)
        if cached is None:
            return None
        group = cached.group if isinstance(cached.group, ConsumerGroup) else None
        selections = set() if group is None else group.unseen_selections(topics)
        if request is not None:
            sender = (None if group is None else group.sender(request)) or ConsumerMember(member_id="")
            selection = sender.updated(request).selection(topics)
            selections |= set() if selection is None else {selection}
        await self._topics.match(topics, selections)
        return await self._cache.find(group_id, create=create) if cached.group.is_dead else cached

    # Conversions

    def _upgrade(
        self, cached: CachedGroup, classic: ClassicGroup, request: ConsumerHeartbeat, topics: TopicView
    ) -> HeartbeatResponse:
        """Convert a classic group to a consumer group if it may become one and accepts this member."""
        if classic.is_empty:
            snapshot = ConsumerGroupSnapshot(
                group_epoch=classic.generation,
                assignment_epoch=classic.generation,
                state_ms=self._clock.now_ms(),
            )
        else:
            before = classic.snapshot()
            check_upgrade(classic.group_id, before, self._settings)
            snapshot = upgrade_snapshot(classic.group_id, before, topics)
        group = self._cache.store.new_consumer_group(classic.group_id, snapshot)
        response = group.heartbeat(request, topics)
        self._cache.counters.upgrades += bool(snapshot.members)
        error = ErrorCode.unknown_member_id if classic.is_empty else ErrorCode.rebalance_in_progress
        self._cache.store.replace(cached, group, error)
        return response

    def convert_empty_to_classic(self, cached: CachedGroup) -> ClassicGroup:
        """Convert a consumer group without members; the first generation follows the group epoch."""
        group = _require_consumer_group(cached)
        snapshot = ClassicGroupSnapshot(generation=group.group_epoch, state_ms=self._clock.now_ms())
        classic = self._cache.store.new_classic_group(group.group_id, snapshot, cached)
        self._cache.store.replace(cached, classic, ErrorCode.unknown_member_id)
        return classic

    # Members of the classic protocol

    async def join(self, group_id: str, request: JoinRequest) -> JoinResponse:
        """Handle a JoinGroup to a consumer group with members; return when its changes are stored."""
        topics = await self._topics.get()
        cached = await self._find(group_id, topics)
        if cached is None or not isinstance(cached.group, ConsumerGroup):
            # The group was converted in the meantime. The client joins again and finds the current group.
            raise GroupError(ErrorCode.rebalance_in_progress, f"Group {group_id} has changed its protocol.")
        response = cached.group.classic.join(request, topics)
        self._cache.after_change(cached)
        await self._cache.store.store(cached, error_if_replaced=ErrorCode.rebalance_in_progress)
        return response

    async def leave(self, cached: CachedGroup, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Handle a LeaveGroup to a consumer group; return an error code for each member, in order."""
        errors = _require_consumer_group(cached).classic.leave(leaving)
        self._cache.after_change(cached)
        await self._cache.store.store(cached)
        return errors

    # Administration

    async def describe(self, group_id: str) -> tuple[ConsumerGroupDescription, TopicView]:
        """Return the description of a consumer group, and the topics that exist."""
        topics = await self._topics.get()
        cached = await self._cache.find(group_id)
        if cached is None:
            raise GroupError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        return _require_consumer_group(cached).describe(), topics


def _no_consumer_group(group_id: str, request: ConsumerHeartbeat) -> GroupError:
    """Return the error for a member of a group that does not exist, or that is a classic group.

    A failover may have lost the group or its upgrade, so the member joins again. Kafka returns
    GROUP_ID_NOT_FOUND, which is fatal to clients.
    """
    if request.member_epoch > 0:
        return GroupError(ErrorCode.unknown_member_id, f"Consumer group {group_id} not found.")
    return GroupError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")


def _require_consumer_group(cached: CachedGroup) -> ConsumerGroup:
    if not isinstance(cached.group, ConsumerGroup):
        raise GroupError(
            ErrorCode.group_id_not_found, f"Group {cached.group.group_id} is not a consumer group."
        )
    return cached.group


def _is_stored(cached: CachedGroup) -> bool:
    """Return True if the catalog has the current state, so that no response must wait for a write."""
    group = _require_consumer_group(cached)
    return group.downgrade is None and cached.stored_version >= group.version
