"""The group coordinator of an agent: the entry point for all group requests.

Errors are `GroupError`s with the code that Kafka's coordinator returns.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from agent.groups.cache.group_cache import GroupCache
from agent.groups.classic.member import joining_size
from agent.groups.classic.messages import JoinResponse
from agent.groups.consumer.cached_lookups import GroupConfigCache, TopicCache
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer_coordinator import ConsumerGroupCoordinator
from agent.groups.errors import ErrorCode, GroupError
from agent.groups.expiry import OffsetExpiry
from agent.groups.listing import GroupList
from agent.groups.offsets import GroupOffsets
from agent.groups.ownership import GroupOwnership, require_group_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.group_settings import GroupSettings
    from agent.groups.classic.messages import (
        ClassicGroupDescription,
        JoinRequest,
        LeavingMember,
        MemberIdentity,
        SyncRequest,
        SyncResponse,
    )
    from agent.groups.interfaces import GroupConfigTable, GroupTable, OffsetTable, TopicTable
    from agent.groups.listing import ListedGroup
    from agent.groups.ownership import Brokers
    from agent.runtime.health import CallHealth
    from agent.runtime.work_pool import WorkPool
    from agent.security.acl_rules import AccessRules
    from core.clock import Clock
    from core.ids import Ids

T = TypeVar("T")
_MAX_PROTOCOL_TYPE = 2**15 - 1
"""Longest protocol type, which a group keeps. It is the longest string of Kafka's protocol."""


class GroupCoordinator:
    """Coordinator of the groups that this agent owns. Belongs to the event loop.

    This class handles the classic protocol and administration. `consumers` handles the consumer protocol,
    `offsets` the committed offsets of all groups.
    """

    def __init__(
        self,
        *,
        groups: GroupTable,
        offsets: OffsetTable,
        topics: TopicTable,
        configs: GroupConfigTable,
        brokers: Brokers,
        pool: WorkPool,
        clock: Clock,
        ids: Ids,
        settings: GroupSettings,
        catalog_health: CallHealth | None = None,
        rules: Callable[[], AccessRules | None] = lambda: None,
    ) -> None:
        """`rules` returns what decides about clients now; None if every client may do everything."""
        self.settings = settings
        self.ownership = GroupOwnership(brokers)
        refresh_ms = settings.topics_refresh_ms
        config_cache = GroupConfigCache(
            lambda: self.cache.store.call(configs.list), clock=clock, refresh_ms=refresh_ms
        )
        self.cache = GroupCache(
            table=groups,
            ownership=self.ownership,
            pool=pool,
            clock=clock,
            ids=ids,
            settings=settings,
            configs=config_cache,
            catalog_health=catalog_health,
        )
        topic_cache = TopicCache(
            topics, call=self.cache.store.call, clock=clock, refresh_ms=refresh_ms, rules=rules
        )
        self.consumers = ConsumerGroupCoordinator(
            cache=self.cache, topics=topic_cache, configs=config_cache, settings=settings, clock=clock
        )
        self.offsets = GroupOffsets(cache=self.cache, ownership=self.ownership, table=offsets)
        self._table = groups
        self._list = GroupList(cache=self.cache, ownership=self.ownership, table=groups)
        self._expiry = OffsetExpiry(
            cache=self.cache, groups=self._list, table=offsets, pool=pool, ids=ids, settings=settings
        )

    def start(self) -> None:
        """Start the background tasks."""
        self.cache.start()
        self._expiry.start()

    @property
    def is_running(self) -> bool:
        """Return True if both background tasks run."""
        return self.cache.is_running and self._expiry.is_running

    def release(self) -> None:
        """Refuse new and pending requests with NOT_COORDINATOR, so that clients look for another agent."""
        self.cache.release()

    async def stop(self) -> None:
        """Stop; writes in progress are completed."""
        await self._expiry.stop()
        await self.cache.stop()

    # Members of the classic protocol

    async def join(self, group_id: str, request: JoinRequest) -> JoinResponse:
        """Handle a JoinGroup; return when the member's generation begins."""
        require_group_id(group_id)
        min_ms = self.settings.group_min_session_timeout_ms
        max_ms = self.settings.group_max_session_timeout_ms
        if not min_ms <= request.session_timeout_ms <= max_ms:
            raise GroupError(
                ErrorCode.invalid_session_timeout, f"the session timeout must be {min_ms} to {max_ms} ms"
            )
        if "\0" in request.protocol_type or len(request.protocol_type) > _MAX_PROTOCOL_TYPE:
            raise GroupError(ErrorCode.inconsistent_group_protocol)
        cached = await self.cache.require(group_id, ErrorCode.unknown_member_id, create=not request.member_id)
        size = joining_size(request)
        self.cache.admit(cached, request.member_id, size, instance_id=request.instance_id)
        group = cached.group
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return await self.consumers.join(group_id, request)
            if request.member_id:
                return JoinResponse(error=ErrorCode.unknown_member_id, member_id=request.member_id)
            group = self.consumers.convert_empty_to_classic(cached)
        response: asyncio.Future[JoinResponse] = asyncio.get_running_loop().create_future()
        group.join(request, partial(_complete, response))
        self.cache.after_change(cached)
        return await response

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResponse:
        """Handle a SyncGroup; return when the leader's assignments are stored."""
        require_group_id(group_id)
        cached = await self.cache.require(group_id, ErrorCode.unknown_member_id)
        if isinstance(cached.group, ConsumerGroup):  # it assigns itself
            result = cached.group.classic.sync(request)
            self.cache.after_change(cached)
            return result
        self.cache.admit_assignments(cached, cached.group, request)
        response: asyncio.Future[SyncResponse] = asyncio.get_running_loop().create_future()
        cached.group.sync(request, partial(_complete, response))
        self.cache.after_change(cached)
        return await response

    async def heartbeat(self, group_id: str, identity: MemberIdentity) -> ErrorCode:
        """Handle a Heartbeat."""
        require_group_id(group_id)
        cached = await self.cache.require(group_id, ErrorCode.unknown_member_id)
        group = cached.group.classic if isinstance(cached.group, ConsumerGroup) else cached.group
        code = group.heartbeat(identity)
        self.cache.after_change(cached)
        return code

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Handle a LeaveGroup; return an error code for each member, in order."""
        require_group_id(group_id)
        cached = await self.cache.find(group_id)
        if cached is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        if isinstance(cached.group, ConsumerGroup):
            return await self.consumers.leave(cached, leaving)
        errors = cached.group.leave(leaving)
        self.cache.after_change(cached)
        return errors

    # Administration

    async def describe(self, group_id: str) -> ClassicGroupDescription:
        """Return the description of a classic group. Raises GROUP_ID_NOT_FOUND."""
        cached = await self.cache.find(group_id)
        if cached is None:
            raise GroupError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        if isinstance(cached.group, ConsumerGroup):
            raise GroupError(ErrorCode.group_id_not_found, f"Group {group_id} is not a classic group.")
        return cached.group.describe()

    async def list(self) -> list[ListedGroup]:
        """Return the groups that this agent coordinates."""
        return await self._list.all()

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets."""
        cached = await self.cache.require(group_id, ErrorCode.group_id_not_found)
        async with cached.write_lock:
            code = cached.group.check_delete()
            if code is not ErrorCode.none:
                raise GroupError(code)
            kept = await self.cache.store.write(
                cached, partial(self._table.delete, group_id, cached.claim_id)
            )
        self.cache.drop(cached, ErrorCode.coordinator_not_available)
        self.cache.require_claim(cached, kept=kept)


def _complete(future: asyncio.Future[T], response: T) -> None:
    """Send a response, unless the client has disconnected."""
    if not future.done():
        future.set_result(response)
