"""Requests and responses of the classic group protocol, independent of the version of the Kafka API.

Generations count from 1; -1 means no generation. The member id is empty until the coordinator assigns one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from kio.schema.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER = ""


class ClassicGroupState(StrEnum):
    """State of a classic group; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class MemberProtocol:
    """An assignment protocol that a member supports, with the member's metadata for the leader."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """Request of a member to take part in the next generation."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str = ""
    client_host: str = ""
    reason: str = ""
    # Set from the version of the request: KIP-394 (version 4 and later) and KIP-814 (9 and later).
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """A member's part in a generation, or an error. Only the leader receives `members`."""

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
    """Request of a member for its assignment; the leader sends the assignments of all members."""

    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """A member's assignment in the generation, or an error."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """Sender of a heartbeat or an offset commit; `generation` is the epoch of a consumer-protocol member."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """A member to remove. A static member may be named by its instance id alone."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberDescription:
    """Description of a member for administrators; `metadata` is empty unless the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupDescription:
    """Description of a classic group for administrators."""

    group_id: str
    state: ClassicGroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[ClassicMemberDescription, ...] = ()


JoinCallback = Callable[[JoinResponse], None]
SyncCallback = Callable[[SyncResponse], None]
