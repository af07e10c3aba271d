"""What members of a consumer group (KIP-848) send, are answered, and what is kept of them.

An assignment is a set of partitions. A member's epoch counts up with the group's; 0 asks to join, -1 leaves,
and -2 leaves for a while, which only static members may do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from catalog.model import PartitionId

Assignment: TypeAlias = frozenset[PartitionId]
NOTHING: Assignment = frozenset()
JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2


class ConsumerGroupState(StrEnum):
    """Where a consumer group is; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A heartbeat: what is None has not changed since the member's last one.

    `rebalance_timeout_ms` is -1 for that. `member_id_required` says that the member gives itself an
    id (version 1).
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
    member_id_required: bool = False

    @property
    def is_full(self) -> bool:
        """Whether it says everything; whoever sends such a one wants to hear its whole assignment."""
        full = self.rebalance_timeout_ms != -1 and self.owned is not None
        return self.member_epoch == JOINS or (full and (self.topics is not None or self.regex is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """What a member is told; `assignment` is None when it need not change anything.

    Whoever leaves need not know when to send heartbeats.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberDescription:
    """A member for administrators, with what it has and what it shall have."""

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
    """A group for administrators."""

    group_id: str
    state: ConsumerGroupState
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
