"""A group's snapshot as the catalog keeps it: JSON, with bytes in base64.

Members of a group may run for years under coordinators of several versions, so the form has a version: a
coordinator that does not know it takes the group for empty, and its members join anew.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from agent.groups.messages import GroupSnapshot, MemberSnapshot, Protocol
from catalog.groups.repository import GroupRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_log = structlog.get_logger(__name__)
_VERSION = 1


def record_of(group_id: str, snapshot: GroupSnapshot) -> GroupRecord:
    """What the catalog keeps of a group."""
    return GroupRecord(
        group_id=group_id,
        generation=snapshot.generation,
        protocol_type=snapshot.protocol_type,
        member_count=len(snapshot.members),
        subscribed_topics=snapshot.subscribed_topics,
        state=orjson.dumps(
            {
                "version": _VERSION,
                "protocol": snapshot.protocol,
                "leader": snapshot.leader,
                "rebalance": snapshot.must_rebalance,
                "members": [_member_json(member) for member in snapshot.members],
            }
        ),
        state_ms=snapshot.state_ms,
    )


def snapshot_of(record: GroupRecord) -> GroupSnapshot:
    """What a coordinator goes on from."""
    known = {} if record.state is None else orjson.loads(record.state)
    if known.get("version", _VERSION) != _VERSION:
        _log.warning("a group was kept in an unknown form", group=record.group_id, version=known["version"])
        known = {}
    return GroupSnapshot(
        generation=record.generation,
        protocol_type=record.protocol_type,
        protocol=known.get("protocol"),
        leader=known.get("leader"),
        members=tuple(_member_of(member) for member in known.get("members", ())),
        subscribed_topics=record.subscribed_topics,
        must_rebalance=known.get("rebalance", False),
        state_ms=record.state_ms,
    )


def protocols_json(protocols: Iterable[Protocol]) -> list[list[str]]:
    """What a member supports, for the catalog."""
    return [[each.name, b64encode(each.metadata).decode()] for each in protocols]


def protocols_of(kept: Iterable[Iterable[str]]) -> tuple[Protocol, ...]:
    """The same, out of the catalog."""
    return tuple(Protocol(name, b64decode(metadata)) for name, metadata in kept)


def _member_json(member: MemberSnapshot) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "protocols": protocols_json(member.protocols),
        "assignment": b64encode(member.assignment).decode(),
    }


def _member_of(kept: Mapping[str, Any]) -> MemberSnapshot:
    return MemberSnapshot(
        member_id=kept["id"],
        instance_id=kept["instance"],
        client_id=kept["client_id"],
        client_host=kept["client_host"],
        session_timeout_ms=kept["session_timeout_ms"],
        rebalance_timeout_ms=kept["rebalance_timeout_ms"],
        protocols=protocols_of(kept["protocols"]),
        assignment=b64decode(kept["assignment"]),
    )
