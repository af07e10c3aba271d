"""Whether a heartbeat makes sense, before any group is asked (Kafka's GroupMetadataManager)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.consumer.assignors import ASSIGNORS
from agent.groups.consumer.messages import JOINS, LEAVES, LEAVES_FOR_A_WHILE
from agent.groups.consumer.topics import compiled
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from agent.groups.consumer.member import ConsumerMember
    from agent.groups.consumer.messages import Assignment, ConsumerHeartbeat


def check_heartbeat(group_id: str, heartbeat: ConsumerHeartbeat) -> None:
    """Raise for a heartbeat that no group could take."""
    _require(group_id.strip(), "GroupId can't be empty.")
    _require(heartbeat.instance_id is None or heartbeat.instance_id.strip(), "InstanceId can't be empty.")
    _require(heartbeat.rack_id is None or heartbeat.rack_id.strip(), "RackId can't be empty.")
    _check_epoch(heartbeat)
    if heartbeat.assignor is not None and heartbeat.assignor not in ASSIGNORS:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {heartbeat.assignor} is not supported."
            f" Supported assignors: {', '.join(ASSIGNORS)}.",
        )
    if heartbeat.regex:
        compiled(heartbeat.regex)


def _check_epoch(heartbeat: ConsumerHeartbeat) -> None:
    epoch = heartbeat.member_epoch
    _require(epoch >= LEAVES_FOR_A_WHILE, "MemberEpoch is invalid.")
    if epoch != JOINS or heartbeat.member_id_required:
        _require(heartbeat.member_id.strip(), "MemberId can't be empty.")
    if epoch == LEAVES_FOR_A_WHILE:
        _require(heartbeat.instance_id is not None, "InstanceId can't be null.")
    if epoch == JOINS:
        _require(
            heartbeat.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request."
        )
        _require(heartbeat.owned == frozenset(), "TopicPartitions must be empty when (re-)joining.")
        # Either may be empty: a pattern that a client matches itself matches nothing before a topic comes.
        _require(
            heartbeat.topics is not None or heartbeat.regex is not None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def check_member_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    """Raise FENCED_MEMBER_EPOCH for an epoch that is not the member's.

    The one before is let pass when the member has nothing else than what it was given last: it may not have
    had the answer that took it further. Whoever joins again, after it was fenced perhaps, has no epoch yet.
    """
    if epoch == JOINS:
        return
    repeated = epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    if epoch > member.epoch or (epoch < member.epoch and not repeated):
        relation = "greater" if epoch > member.epoch else "smaller"
        raise KafkaError(
            ErrorCode.fenced_member_epoch,
            f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the"
            f" group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )


def check_is_known(member: ConsumerMember | None, instance_id: str, member_id: str) -> ConsumerMember:
    """The member that has the instance; raises unless that is `member_id`. An empty one is nobody's."""
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member"
            f" {member.member_id}.",
        )
    return member


def leaves(heartbeat: ConsumerHeartbeat) -> bool:
    """Whether the member says good-bye."""
    return heartbeat.member_epoch in {LEAVES, LEAVES_FOR_A_WHILE}


def _require(condition: object, message: str) -> None:
    if not condition:
        raise KafkaError(ErrorCode.invalid_request, message)
