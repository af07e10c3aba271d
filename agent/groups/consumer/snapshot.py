"""Stored state of a consumer group: its snapshot and the JSON in the catalog.

Version 1 has no members of the classic protocol. A group with such members is stored in version 2. A
coordinator that does not know the version loads the group without members, and the members join again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from agent.groups.classic.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from agent.groups.classic.snapshot import decode_protocols, encode_protocols
from agent.groups.consumer.member import ClassicMemberMetadata, ConsumerMember, MemberState
from agent.groups.consumer.topics import TopicMetadata
from agent.security.identity import ANONYMOUS
from catalog.groups.repository import GroupRecord, GroupType
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.groups.consumer.messages import Assignment

_VERSION, _VERSION_WITH_CLASSIC_MEMBERS = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSnapshot:
    """State of a consumer group that outlives its coordinator.

    `topics` are the subscribed topics that existed at the last assignment.
    """

    group_epoch: int = 0
    assignment_epoch: int = 0
    members: tuple[ConsumerMember, ...] = ()
    targets: Mapping[str, Assignment] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    subscribed_topics: frozenset[str] = frozenset()
    state_ms: int = 0


def encode_consumer_group(group_id: str, snapshot: ConsumerGroupSnapshot) -> GroupRecord:
    """Return the catalog record of a group."""
    has_classic_members = any(member.is_classic for member in snapshot.members)
    return GroupRecord(
        group_id=group_id,
        group_type=GroupType.CONSUMER,
        generation=snapshot.group_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        member_count=len(snapshot.members),
        subscribed_topics=snapshot.subscribed_topics,
        state=orjson.dumps(
            {
                "version": _VERSION_WITH_CLASSIC_MEMBERS if has_classic_members else _VERSION,
                "assignment_epoch": snapshot.assignment_epoch,
                "topics": {
                    name: [str(topic.topic_id), topic.partition_count]
                    for name, topic in snapshot.topics.items()
                },
                "members": [
                    {
                        **_encode_member(member),
                        "target": _encode_assignment(snapshot.targets.get(member.member_id, frozenset())),
                    }
                    for member in snapshot.members
                ],
            }
        ),
        state_ms=snapshot.state_ms,
    )


def decode_consumer_group(record: GroupRecord) -> ConsumerGroupSnapshot:
    """Return the snapshot in a catalog record, without members if its version is unknown."""
    state = {} if record.state is None else orjson.loads(record.state)
    if state.get("version") not in {_VERSION, _VERSION_WITH_CLASSIC_MEMBERS}:
        return ConsumerGroupSnapshot(
            group_epoch=record.generation, assignment_epoch=record.generation, state_ms=record.state_ms
        )
    return ConsumerGroupSnapshot(
        group_epoch=record.generation,
        assignment_epoch=state["assignment_epoch"],
        members=tuple(_decode_member(member) for member in state["members"]),
        targets={member["id"]: _decode_assignment(member["target"]) for member in state["members"]},
        topics={
            name: TopicMetadata(UUID(topic_id), partition_count)
            for name, (topic_id, partition_count) in state["topics"].items()
        },
        subscribed_topics=record.subscribed_topics or frozenset(),
        state_ms=record.state_ms,
    )


def _encode_member(member: ConsumerMember) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "rack": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "principal": member.principal,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "subscription": sorted(member.topics),
        "regex": member.regex,
        "assignor": member.assignor,
        "state": member.state.value,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "assigned": _encode_assignment(member.assigned),
        "revoking": _encode_assignment(member.pending_revocation),
        "classic": None if member.classic is None else _encode_classic(member.classic),
    }


def _encode_classic(metadata: ClassicMemberMetadata) -> dict[str, Any]:
    return {
        "session_timeout_ms": metadata.session_timeout_ms,
        "protocols": encode_protocols(metadata.protocols),
    }


def _decode_member(encoded: Mapping[str, Any]) -> ConsumerMember:
    return ConsumerMember(
        member_id=encoded["id"],
        instance_id=encoded["instance"],
        rack_id=encoded["rack"],
        client_id=encoded["client_id"],
        client_host=encoded["client_host"],
        principal=encoded.get("principal", str(ANONYMOUS)),
        rebalance_timeout_ms=encoded["rebalance_timeout_ms"],
        topics=frozenset(encoded["subscription"]),
        regex=encoded["regex"],
        assignor=encoded["assignor"],
        state=MemberState(encoded["state"]),
        epoch=encoded["epoch"],
        previous_epoch=encoded["previous_epoch"],
        assigned=_decode_assignment(encoded["assigned"]),
        pending_revocation=_decode_assignment(encoded["revoking"]),
        classic=_decode_classic(encoded.get("classic")),
    )


def _decode_classic(encoded: Mapping[str, Any] | None) -> ClassicMemberMetadata | None:
    if encoded is None:
        return None
    return ClassicMemberMetadata(encoded["session_timeout_ms"], decode_protocols(encoded["protocols"]))


def _encode_assignment(assignment: Assignment) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for each in sorted(assignment):
        by_topic[str(each.topic_id)].append(each.partition)
    return by_topic


def _decode_assignment(encoded: Mapping[str, list[int]]) -> Assignment:
    return frozenset(
        PartitionId(UUID(topic_id), partition)
        for topic_id, partitions in encoded.items()
        for partition in partitions
    )
