"""Conversion of groups between Kafka's two group protocols.

A classic group of consumers becomes a consumer group when a member of the consumer protocol joins it. Its
members keep their generation as their epoch, and the leader's assignment as their assignment.

A consumer group becomes a classic group when only classic members are left. The target assignment becomes the
assignment of the generation, and the members rebalance. (Kafka: ConsumerGroup.fromClassicGroup and
ClassicGroup.fromConsumerGroup.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.classic.embedded_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
    write_assignment,
)
from agent.groups.classic.member import ClassicMember
from agent.groups.classic.members import ClassicMembers
from agent.groups.classic.snapshot import ClassicGroupSnapshot, ClassicMemberSnapshot
from agent.groups.consumer.member import ClassicMemberMetadata, ConsumerMember
from agent.groups.consumer.snapshot import ConsumerGroupSnapshot
from agent.groups.errors import ErrorCode, GroupError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from agent.group_settings import GroupSettings
    from agent.groups.consumer.messages import Assignment
    from agent.groups.consumer.topics import TopicView


def check_upgrade(group_id: str, snapshot: ClassicGroupSnapshot, settings: GroupSettings) -> None:
    """Raise GROUP_ID_NOT_FOUND unless a classic group with members may become a consumer group."""
    if (
        not settings.group_consumer_migration_policy.allows_upgrade
        or snapshot.protocol_type != CONSUMER_PROTOCOL_TYPE
        or len(snapshot.members) > settings.group_consumer_max_size
    ):
        raise GroupError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")


def upgrade_snapshot(
    group_id: str, snapshot: ClassicGroupSnapshot, topics: TopicView
) -> ConsumerGroupSnapshot:
    """Return the consumer group that a classic group becomes.

    Raises GROUP_ID_NOT_FOUND if the metadata or assignments of its members are malformed.
    """
    members = tuple(
        _to_consumer_member(group_id, member, snapshot.generation, topics) for member in snapshot.members
    )
    targets = {member.member_id: member.assigned for member in members}
    if len(frozenset().union(*targets.values())) != sum(map(len, targets.values())):
        raise _malformed(group_id)
    return ConsumerGroupSnapshot(
        group_epoch=snapshot.generation,
        assignment_epoch=snapshot.generation,
        members=members,
        targets=targets,
        subscribed_topics=frozenset().union(*(member.topics for member in members)),
        state_ms=snapshot.state_ms,
    )


def downgrade_snapshot(
    snapshot: ConsumerGroupSnapshot, *, must_rebalance: bool = False
) -> ClassicGroupSnapshot:
    """Return the classic group that a consumer group becomes; all its members use the classic protocol.

    Set `must_rebalance` if a member has left whose partitions are in no target.
    """
    names = {topic.topic_id: name for name, topic in snapshot.topics.items()}
    snapshots = tuple(
        _to_classic_member(member, snapshot.targets.get(member.member_id, frozenset()), names)
        for member in snapshot.members
    )
    members = ClassicMembers()
    for member in snapshots:
        members.add(ClassicMember.from_snapshot(member))
    return ClassicGroupSnapshot(
        generation=snapshot.group_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=members.select_protocol(),
        leader=members.leader,
        members=snapshots,
        subscribed_topics=snapshot.subscribed_topics,
        must_rebalance=must_rebalance,
        state_ms=snapshot.state_ms,
    )


def _to_consumer_member(
    group_id: str, member: ClassicMemberSnapshot, generation: int, topics: TopicView
) -> ConsumerMember:
    subscription, assigned = read_subscription(member.protocols), read_assignment(member.assignment)
    if subscription is None or assigned is None:
        raise _malformed(group_id)
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=subscription.topics,
        epoch=generation,
        previous_epoch=generation,
        assigned=frozenset(
            PartitionId(topics.by_name[name].topic_id, partition)
            for name, partition in assigned
            if name in topics.by_name
        ),
        classic=ClassicMemberMetadata(member.session_timeout_ms, member.protocols),
    )


def _to_classic_member(
    member: ConsumerMember, target: Assignment, names: Mapping[UUID, str]
) -> ClassicMemberSnapshot:
    metadata = member.classic
    if metadata is None:
        raise AssertionError(f"member {member.member_id!r} uses the consumer protocol")
    subscription = read_subscription(metadata.protocols)
    partitions = [(names[each.topic_id], each.partition) for each in target if each.topic_id in names]
    return ClassicMemberSnapshot(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=metadata.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=metadata.protocols,
        assignment=write_assignment(0 if subscription is None else subscription.version, partitions),
    )


def _malformed(group_id: str) -> GroupError:
    return GroupError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade the classic group {group_id} to a consumer group because the embedded consumer"
        " protocol is malformed.",
    )
