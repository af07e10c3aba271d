"""Validation of heartbeats that needs no group (Kafka's GroupMetadataManager)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.consumer.assignors import ASSIGNORS
from agent.groups.consumer.messages import JOIN_EPOCH, LEAVE_STATIC_EPOCH
from agent.groups.consumer.topics import compile_pattern
from agent.groups.errors import ErrorCode, GroupError

if TYPE_CHECKING:
    from agent.groups.consumer.messages import ConsumerHeartbeat


def check_heartbeat(group_id: str, heartbeat: ConsumerHeartbeat) -> None:
    """Raise GroupError for a heartbeat that every group must reject."""
    _require(group_id.strip(), "GroupId can't be empty.")
    _require(heartbeat.instance_id is None or heartbeat.instance_id.strip(), "InstanceId can't be empty.")
    _require(heartbeat.rack_id is None or heartbeat.rack_id.strip(), "RackId can't be empty.")
    _check_epoch(heartbeat)
    if heartbeat.assignor is not None and heartbeat.assignor not in ASSIGNORS:
        raise GroupError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {heartbeat.assignor} is not supported."
            f" Supported assignors: {', '.join(ASSIGNORS)}.",
        )
    if heartbeat.regex:
        compile_pattern(heartbeat.regex)


def _check_epoch(heartbeat: ConsumerHeartbeat) -> None:
    epoch = heartbeat.member_epoch
    _require(epoch >= LEAVE_STATIC_EPOCH, "MemberEpoch is invalid.")
    if epoch != JOIN_EPOCH or heartbeat.member_id_required:
        _require(heartbeat.member_id.strip(), "MemberId can't be empty.")
    if epoch == LEAVE_STATIC_EPOCH:
        _require(heartbeat.instance_id is not None, "InstanceId can't be null.")
    if epoch == JOIN_EPOCH:
        _require(
            heartbeat.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request."
        )
        _require(heartbeat.owned == frozenset(), "TopicPartitions must be empty when (re-)joining.")
        # Either may be empty: a client that matches a pattern itself names no topic until one matches.
        _require(
            heartbeat.topics is not None or heartbeat.regex is not None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def _require(condition: object, message: str) -> None:
    if not condition:
        raise GroupError(ErrorCode.invalid_request, message)
