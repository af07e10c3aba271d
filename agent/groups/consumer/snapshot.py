"""A consumer group as it outlives its coordinator, and its JSON.

Version 1 knows no members of the classic protocol. A group that has some is kept in version 2: a coordinator
that cannot serve them then takes the group for empty, and all members join it anew.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from agent.groups.consumer.member import ClassicSide, ConsumerMember, MemberState
from agent.groups.consumer.topics import SeenTopic
from agent.groups.records import protocols_json, protocols_of
from catalog.groups.repository import GroupRecord, GroupType
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.groups.consumer.messages import Assignment

PROTOCOL_TYPE = "consumer"
_VERSION, _VERSION_OF_MIXED_GROUPS = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSnapshot:
    """All that is kept of a group. `topics` are those that the last assignment knew."""

    group_epoch: int = 0
    assignment_epoch: int = 0
    members: tuple[ConsumerMember, ...] = ()
    targets: Mapping[str, Assignment] = field(default_factory=dict)
    topics: Mapping[str, SeenTopic] = field(default_factory=dict)
    subscribed_topics: frozenset[str] = frozenset()
    state_ms: int = 0


def consumer_record_of(group_id: str, snapshot: ConsumerGroupSnapshot) -> GroupRecord:
    """What the catalog keeps of a group."""
    is_mixed = any(member.is_classic for member in snapshot.members)
    return GroupRecord(
        group_id=group_id,
        group_type=GroupType.CONSUMER,
        generation=snapshot.group_epoch,
        protocol_type=PROTOCOL_TYPE,
        member_count=len(snapshot.members),
        subscribed_topics=snapshot.subscribed_topics,
        state=orjson.dumps(
            {
                "version": _VERSION_OF_MIXED_GROUPS if is_mixed else _VERSION,
                "assignment_epoch": snapshot.assignment_epoch,
                "topics": {
                    name: [str(topic.topic_id), topic.partition_count]
                    for name, topic in snapshot.topics.items()
                },
                "members": [
                    {
                        **_member_json(member),
                        "target": _json(snapshot.targets.get(member.member_id, frozenset())),
                    }
                    for member in snapshot.members
                ],
            }
        ),
        state_ms=snapshot.state_ms,
    )


def consumer_snapshot_of(record: GroupRecord) -> ConsumerGroupSnapshot:
    """What a coordinator goes on from. In a form that it does not know there are no members: they rejoin."""
    known = {} if record.state is None else orjson.loads(record.state)
    if known.get("version") not in {_VERSION, _VERSION_OF_MIXED_GROUPS}:
        return ConsumerGroupSnapshot(
            group_epoch=record.generation, assignment_epoch=record.generation, state_ms=record.state_ms
        )
    return ConsumerGroupSnapshot(
        group_epoch=record.generation,
        assignment_epoch=known["assignment_epoch"],
        members=tuple(_member_of(member) for member in known["members"]),
        targets={member["id"]: _assignment(member["target"]) for member in known["members"]},
        topics={name: SeenTopic(UUID(each[0]), each[1]) for name, each in known["topics"].items()},
        subscribed_topics=record.subscribed_topics or frozenset(),
        state_ms=record.state_ms,
    )


def _member_json(member: ConsumerMember) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "rack": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "subscription": sorted(member.topics),
        "regex": member.regex,
        "assignor": member.assignor,
        "state": member.state.value,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "assigned": _json(member.assigned),
        "revoking": _json(member.revoking),
        "classic": None if member.classic is None else _classic_json(member.classic),
    }


def _classic_json(side: ClassicSide) -> dict[str, Any]:
    return {
        "session_timeout_ms": side.session_timeout_ms,
        "protocols": protocols_json(side.protocols),
    }


def _member_of(kept: Mapping[str, Any]) -> ConsumerMember:
    return ConsumerMember(
        member_id=kept["id"],
        instance_id=kept["instance"],
        rack_id=kept["rack"],
        client_id=kept["client_id"],
        client_host=kept["client_host"],
        rebalance_timeout_ms=kept["rebalance_timeout_ms"],
        topics=frozenset(kept["subscription"]),
        regex=kept["regex"],
        assignor=kept["assignor"],
        state=MemberState(kept["state"]),
        epoch=kept["epoch"],
        previous_epoch=kept["previous_epoch"],
        assigned=_assignment(kept["assigned"]),
        revoking=_assignment(kept["revoking"]),
        classic=_classic_of(kept.get("classic")),
    )


def _classic_of(kept: Mapping[str, Any] | None) -> ClassicSide | None:
    return None if kept is None else ClassicSide(kept["session_timeout_ms"], protocols_of(kept["protocols"]))


def _json(assignment: Assignment) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for each in sorted(assignment):
        by_topic[str(each.topic_id)].append(each.partition)
    return by_topic


def _assignment(kept: Mapping[str, list[int]]) -> Assignment:
    return frozenset(
        PartitionId(UUID(topic_id), partition)
        for topic_id, partitions in kept.items()
        for partition in partitions
    )
