"""Stored state of a classic group: its snapshot and the JSON in the catalog.

The JSON has a version. A coordinator that does not know the version loads the group without members, and the
members join again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import structlog
from kio.schema.errors import ErrorCode

from agent.groups.classic.messages import MemberProtocol
from catalog.groups.repository import GroupRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_log = structlog.get_logger(__name__)
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberSnapshot:
    """State of one member that outlives its coordinator."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupSnapshot:
    """State of a stable or empty group that outlives its coordinator.

    `subscribed_topics` is None when they are unknown: the protocol type is not "consumer", or the metadata
    cannot be parsed. `must_rebalance` is set when the assignment leaves out partitions; the next coordinator
    then starts a rebalance.
    """

    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: tuple[ClassicMemberSnapshot, ...] = ()
    subscribed_topics: frozenset[str] | None = None
    must_rebalance: bool = False
    state_ms: int = 0


# Stores a snapshot and then calls back, with `none` or with the error to return to the members.
SaveSnapshot = Callable[[ClassicGroupSnapshot, Callable[[ErrorCode], None]], None]


def encode_classic_group(group_id: str, snapshot: ClassicGroupSnapshot) -> GroupRecord:
    """Return the catalog record of a group."""
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
                "members": [_encode_member(member) for member in snapshot.members],
            }
        ),
        state_ms=snapshot.state_ms,
    )


def decode_classic_group(record: GroupRecord) -> ClassicGroupSnapshot:
    """Return the snapshot in a catalog record."""
    state = {} if record.state is None else orjson.loads(record.state)
    if state.get("version", _VERSION) != _VERSION:
        _log.warning(
            "the stored state of a group has an unknown version; its members must join again",
            group=record.group_id,
            version=state["version"],
        )
        state = {}
    return ClassicGroupSnapshot(
        generation=record.generation,
        protocol_type=record.protocol_type,
        protocol=state.get("protocol"),
        leader=state.get("leader"),
        members=tuple(_decode_member(member) for member in state.get("members", ())),
        subscribed_topics=record.subscribed_topics,
        must_rebalance=state.get("rebalance", False),
        state_ms=record.state_ms,
    )


def encode_protocols(protocols: Iterable[MemberProtocol]) -> list[list[str]]:
    """Return the JSON of a member's protocols; metadata is in base64."""
    return [[each.name, b64encode(each.metadata).decode()] for each in protocols]


def decode_protocols(encoded: Iterable[Iterable[str]]) -> tuple[MemberProtocol, ...]:
    """Return the protocols that `encode_protocols` encoded."""
    return tuple(MemberProtocol(name, b64decode(metadata)) for name, metadata in encoded)


def _encode_member(member: ClassicMemberSnapshot) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "protocols": encode_protocols(member.protocols),
        "assignment": b64encode(member.assignment).decode(),
    }


def _decode_member(encoded: Mapping[str, Any]) -> ClassicMemberSnapshot:
    return ClassicMemberSnapshot(
        member_id=encoded["id"],
        instance_id=encoded["instance"],
        client_id=encoded["client_id"],
        client_host=encoded["client_host"],
        session_timeout_ms=encoded["session_timeout_ms"],
        rebalance_timeout_ms=encoded["rebalance_timeout_ms"],
        protocols=decode_protocols(encoded["protocols"]),
        assignment=b64decode(encoded["assignment"]),
    )
