"""What members ask of a group's coordinator and what it answers, free of protocol versions.

Generations count from 1 on; -1 stands for none. An empty member id is one that was not given yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from kio.schema.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER = ""


class GroupState(StrEnum):
    """Where a classic group is; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of assigning work that a member knows, with what it tells the leader for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A member wants to be in the next generation."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str = ""
    client_host: str = ""
    reason: str = ""
    # What the version of the request asks for: KIP-394 (4 on), and KIP-814 (9 on).
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """A member's place in a generation, or the reason why it has none; only the leader sees `members`."""

    error: ErrorCode = ErrorCode.none
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER
    member_id: str = NO_MEMBER
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings everyone's."""

    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """A member's assignment in the generation."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStamp:
    """Who asks, and for which generation: heartbeats and commits carry it."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """A member that goes; a static one may be named by its instance alone."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """All that is kept of a member when its coordinator changes."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """All that is kept of a group when its coordinator changes: a stable group, or an empty one.

    `subscribed_topics` is None when they cannot be known: other protocol types, unreadable metadata. With
    `must_rebalance` the assignment does not share out everything: whoever goes on calls all to join again.
    """

    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: tuple[MemberSnapshot, ...] = ()
    subscribed_topics: frozenset[str] | None = None
    must_rebalance: bool = False
    state_ms: int = 0


JoinReply = Callable[[JoinAnswer], None]
SyncReply = Callable[[SyncAnswer], None]
# Stores a snapshot and calls back with `none`, or with what the members shall be told.
Save = Callable[[GroupSnapshot, Callable[[ErrorCode], None]], None]
