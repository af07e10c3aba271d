"""What members of consumer groups, and those who look at them, ask of the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.consumer.checks import check_heartbeat
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.messages import JOINS
from agent.kafka.errors import ErrorCode, KafkaError
from catalog.groups import GroupType

if TYPE_CHECKING:
    from agent.groups.consumer.messages import ConsumerGroupDescription, ConsumerHeartbeat, HeartbeatAnswer
    from agent.groups.consumer.topics import TopicView, TopicViews
    from agent.groups.holding import HeldGroup, HeldGroups


class ConsumerGroups:
    """The consumer groups among those that this agent coordinates. Belongs to the event loop.

    Groups do not mix protocols: one without members takes the protocol of the first that joins, and as long
    as it has some, those of the other protocol are refused, as by a Kafka whose
    `group.consumer.migration.policy` is disabled.
    """

    def __init__(self, held: HeldGroups, views: TopicViews) -> None:
        self._held = held
        self._views = views

    async def heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        """Take a member's heartbeat; answered when what it says is stored."""
        check_heartbeat(group_id, request)
        topics = await self._views.current()
        joins = request.member_epoch == JOINS
        held = await self._held.find(group_id, create=joins)
        if held is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        if joins and held.group.is_empty:
            self._held.convert_empty(held, GroupType.CONSUMER)
        answer = _consumer(held).heartbeat(request, topics)
        self._held.moved(held)
        await self._held.keep(held)
        return answer

    async def describe(self, group_id: str) -> tuple[ConsumerGroupDescription, TopicView]:
        """A consumer group with its members, and the topics that there are."""
        topics = await self._views.current()
        held = await self._held.find(group_id)
        if held is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        return _consumer(held).describe(), topics


def _consumer(held: HeldGroup) -> ConsumerGroup:
    if not isinstance(held.group, ConsumerGroup):
        raise KafkaError(
            ErrorCode.group_id_not_found, f"Group {held.group.group_id} is not a consumer group."
        )
    return held.group
