"""Requests, responses and descriptions of consumer groups (KIP-848).

A member's epoch rises with the epoch of its group. Heartbeats use three reserved epochs: 0 joins, -1 leaves,
and -2 lets a static member leave temporarily.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from agent.security.identity import ANONYMOUS
from catalog.model import PartitionId

Assignment: TypeAlias = frozenset[PartitionId]
EMPTY_ASSIGNMENT: Assignment = frozenset()
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2


class ConsumerGroupState(StrEnum):
    """State of a consumer group; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A heartbeat. A field that is None, or -1, has not changed since the member's last heartbeat.

    `owned` are the partitions that the member reads. `member_id_required` is set for version 1 and later,
    where the member chooses its own id.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    principal: str = str(ANONYMOUS)
    member_id_required: bool = False

    @property
    def is_full(self) -> bool:
        """Return True if no field is omitted. The response then carries the whole assignment."""
        full = self.rebalance_timeout_ms != -1 and self.owned is not None
        return self.member_epoch == JOIN_EPOCH or (
            full and (self.topics is not None or self.regex is not None)
        )

    @property
    def is_leaving(self) -> bool:
        """Return True if the member leaves, temporarily or not."""
        return self.member_epoch in {LEAVE_EPOCH, LEAVE_STATIC_EPOCH}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """Response to a heartbeat. `assignment` is None if the member need not change anything.

    A member that leaves needs no heartbeat interval: it is 0 then.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberDescription:
    """Description of a member for administrators, with its current and its target assignment."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: frozenset[str]
    regex: str | None
    assignment: Assignment
    target: Assignment
    is_classic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """Description of a consumer group for administrators."""

    group_id: str
    state: ConsumerGroupState
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
