"""Groups that go from one of Kafka's group protocols to the other, with their members and offsets.

A classic group of consumers becomes a consumer group when a member of that protocol joins it: its members
stay, at their generation, with what their leader has assigned to them, and are served inside. It is classic
again when only such members are left; what they were on their way to is the assignment of its generation, and
they rebalance. This is Kafka's ConsumerGroup.fromClassicGroup and ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.classic.embedded_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
    write_assignment,
)
from agent.groups.classic.member import Member
from agent.groups.classic.members import Members
from agent.groups.consumer.member import ClassicSide, ConsumerMember
from agent.groups.consumer.snapshot import ConsumerGroupSnapshot
from agent.groups.messages import GroupSnapshot, MemberSnapshot
from agent.kafka.errors import ErrorCode, KafkaError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from agent.group_settings import GroupSettings
    from agent.groups.consumer.messages import Assignment
    from agent.groups.consumer.topics import TopicView


def check_upgrade(group_id: str, kept: GroupSnapshot, settings: GroupSettings) -> None:
    """Raise unless a classic group with members may become a consumer group."""
    if (
        not settings.group_consumer_migration_policy.allows_upgrade
        or kept.protocol_type != CONSUMER_PROTOCOL_TYPE
        or len(kept.members) > settings.group_consumer_max_size
    ):
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")


def upgraded(group_id: str, kept: GroupSnapshot, topics: TopicView) -> ConsumerGroupSnapshot:
    """The consumer group that a classic one becomes.

    Raises GROUP_ID_NOT_FOUND where its members' metadata and assignments make no sense.
    """
    members = tuple(_as_consumer(group_id, member, kept.generation, topics) for member in kept.members)
    targets = {member.member_id: member.assigned for member in members}
    if len(frozenset().union(*targets.values())) != sum(map(len, targets.values())):
        raise _senseless(group_id)
    return ConsumerGroupSnapshot(
        group_epoch=kept.generation,
        assignment_epoch=kept.generation,
        members=members,
        targets=targets,
        subscribed_topics=frozenset().union(*(member.topics for member in members)),
        state_ms=kept.state_ms,
    )


def downgraded(kept: ConsumerGroupSnapshot, *, must_rebalance: bool = False) -> GroupSnapshot:
    """The classic group that a consumer group becomes whose members all speak that protocol.

    `must_rebalance` when somebody has left whose part none of them has.
    """
    names = {topic.topic_id: name for name, topic in kept.topics.items()}
    members = tuple(
        _as_classic(member, kept.targets.get(member.member_id, frozenset()), names) for member in kept.members
    )
    roster = Members()
    for member in members:
        roster.add(Member.restored(member))
    return GroupSnapshot(
        generation=kept.group_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=roster.select_protocol(),
        leader=roster.leader,
        members=members,
        subscribed_topics=kept.subscribed_topics,
        must_rebalance=must_rebalance,
        state_ms=kept.state_ms,
    )


def _as_consumer(group_id: str, member: MemberSnapshot, generation: int, topics: TopicView) -> ConsumerMember:
    said, assigned = read_subscription(member.protocols), read_assignment(member.assignment)
    if said is None or assigned is None:
        raise _senseless(group_id)
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=said.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=said.topics,
        epoch=generation,
        previous_epoch=generation,
        assigned=frozenset(
            PartitionId(topics.by_name[name].topic_id, number)
            for name, number in assigned
            if name in topics.by_name
        ),
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
    )


def _as_classic(member: ConsumerMember, target: Assignment, names: Mapping[UUID, str]) -> MemberSnapshot:
    side = member.classic
    if side is None:
        raise AssertionError(f"member {member.member_id!r} speaks the consumer protocol")
    said = read_subscription(side.protocols)
    named = [(names[each.topic_id], each.partition) for each in target if each.topic_id in names]
    return MemberSnapshot(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=side.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=side.protocols,
        assignment=write_assignment(0 if said is None else said.version, named),
    )


def _senseless(group_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade the classic group {group_id} to a consumer group because the embedded consumer"
        " protocol is malformed.",
    )
