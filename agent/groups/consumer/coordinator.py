"""What members of consumer groups, of either protocol, and those who look at them ask of the coordinator."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent.groups.classic.group import ClassicGroup
from agent.groups.consumer.checks import check_heartbeat
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.messages import JOINS
from agent.groups.consumer.snapshot import ConsumerGroupSnapshot
from agent.groups.messages import GroupSnapshot
from agent.groups.migration import check_upgrade, upgraded
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.groups.cache.cached_group import CachedGroup
    from agent.groups.cache.group_cache import CachedGroups
    from agent.groups.consumer.configs import GroupConfigViews
    from agent.groups.consumer.messages import ConsumerGroupDescription, ConsumerHeartbeat, HeartbeatAnswer
    from agent.groups.consumer.topics import TopicView, TopicViews
    from agent.groups.messages import JoinAnswer, JoinRequest, LeavingMember
    from core.clock import Clock

# How often a member that waits is noticed: well within the shortest session.
_NOTICED_SECONDS = 1.0


class ConsumerGroups:
    """The consumer groups among those that this agent coordinates. Belongs to the event loop.

    A group without members takes the protocol of the first that joins. One with members becomes a consumer
    group when a member of that protocol comes, and a classic one when the last of them goes, as far as
    `group.consumer.migration.policy` lets it.
    """

    def __init__(
        self, held: CachedGroups, views: TopicViews, configs: GroupConfigViews, clock: Clock
    ) -> None:
        self._held = held
        self._views = views
        self._configs = configs
        self._clock = clock

    async def heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        """Take a member's heartbeat; answered when what it says is stored."""
        check_heartbeat(group_id, request)
        group = self._held.peek(group_id)
        if isinstance(group, ConsumerGroup):
            group.hear(request)
        topics = await self._views.current()
        await self._configs.refresh()
        joins = request.member_epoch == JOINS
        held = await self._find(group_id, topics, regex=request.regex, create=joins)
        if held is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        if joins and isinstance(held.group, ClassicGroup):
            answer = self._upgrade(held, held.group, request, topics)
        else:
            group = _consumer(held)
            group.config = self._configs.of(group_id)
            answer = group.heartbeat(request, topics)
        self._held.moved(held)
        if not _is_stored(held):
            await self._keep(held, answer.member_id)
        return answer

    async def _keep(self, held: CachedGroup, member_id: str) -> None:
        """Until the group is stored, however long that takes: who waits for an answer is not silent."""
        keeping = asyncio.ensure_future(self._held.keep(held))
        try:
            while not keeping.done():
                await asyncio.wait([keeping], timeout=_NOTICED_SECONDS)
                if isinstance(held.group, ConsumerGroup):
                    held.group.stays(member_id)
            keeping.result()
        finally:
            keeping.cancel()

    async def _find(
        self, group_id: str, topics: TopicView, *, regex: str | None = None, create: bool = False
    ) -> CachedGroup | None:
        """The group, once its members' patterns, and that one, are matched with these topics."""
        held = await self._held.find(group_id, create=create)
        if held is None:
            return None
        patterns = held.group.patterns_unseen_in(topics) if isinstance(held.group, ConsumerGroup) else set()
        await self._views.match(topics, patterns | {regex} if regex else patterns)
        return await self._held.find(group_id, create=create) if held.group.is_dead else held

    def _upgrade(
        self, held: CachedGroup, before: ClassicGroup, request: ConsumerHeartbeat, topics: TopicView
    ) -> HeartbeatAnswer:
        """Let a classic group be a consumer group, unless it cannot take this member."""
        if before.is_empty:
            epoch, now_ms = before.generation, self._clock.now_ms()
            kept = ConsumerGroupSnapshot(group_epoch=epoch, assignment_epoch=epoch, state_ms=now_ms)
        else:
            classic = before.snapshot()
            check_upgrade(before.group_id, classic, self._held.settings)
            kept = upgraded(before.group_id, classic, topics)
        group = held.as_consumer(snapshot=kept)
        answer = group.heartbeat(request, topics)
        self._held.counts.upgrades += bool(kept.members)
        told = ErrorCode.unknown_member_id if before.is_empty else ErrorCode.rebalance_in_progress
        self._held.exchange(held, group, told=told)
        return answer

    def empty_to_classic(self, held: CachedGroup) -> ClassicGroup:
        """Let a consumer group without members be a classic one. Generations go on from where epochs were."""
        epoch = _consumer(held).group_epoch
        snapshot = GroupSnapshot(generation=epoch, state_ms=self._clock.now_ms())
        classic = held.as_classic(snapshot=snapshot)
        self._held.exchange(held, classic, told=ErrorCode.unknown_member_id)
        return classic

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Let a member of the classic protocol into a consumer group that has members, or a step further."""
        topics = await self._views.current()
        held = await self._find(group_id, topics)
        if held is None or not isinstance(held.group, ConsumerGroup):
            # It was one a moment ago: what it is now is found by whoever comes again.
            raise KafkaError(ErrorCode.rebalance_in_progress, f"Group {group_id} has changed its protocol.")
        answer = held.group.join(request, topics)
        self._held.moved(held)
        await self._held.keep(held, exchanged=ErrorCode.rebalance_in_progress)
        return answer

    async def leave(self, held: CachedGroup, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Let members of the classic protocol go; an error for each, in order."""
        errors = _consumer(held).leave(leaving)
        self._held.moved(held)
        await self._held.keep(held)
        return errors

    async def describe(self, group_id: str) -> tuple[ConsumerGroupDescription, TopicView]:
        """A consumer group with its members, and the topics that there are."""
        topics = await self._views.current()
        held = await self._held.find(group_id)
        if held is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        return _consumer(held).describe(), topics


def _consumer(held: CachedGroup) -> ConsumerGroup:
    if not isinstance(held.group, ConsumerGroup):
        raise KafkaError(
            ErrorCode.group_id_not_found, f"Group {held.group.group_id} is not a consumer group."
        )
    return held.group


def _is_stored(held: CachedGroup) -> bool:
    """Whether the catalog has all of a consumer group, so that nobody need wait for what is written of it."""
    group = _consumer(held)
    return group.downgrade is None and held.stored_version >= group.version
