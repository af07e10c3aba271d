"""One member of a consumer group: its subscription, its assignment and its epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from agent.groups.classic.member import MEMBER_BYTES, protocols_size
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, JOIN_EPOCH, LEAVE_STATIC_EPOCH
from agent.security.identity import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.groups.classic.embedded_protocol import Subscription
    from agent.groups.classic.messages import JoinRequest, MemberProtocol
    from agent.groups.consumer.messages import Assignment, ConsumerHeartbeat
    from agent.groups.consumer.topics import Selection, TopicView

_TOPIC_BYTES = _PARTITION_BYTES = 128


def topics_size(topics: Iterable[str]) -> int:
    """Return about the memory of the names that a member subscribes to."""
    return sum([_TOPIC_BYTES + len(each) for each in topics])


class MemberState(StrEnum):
    """State of a member's reconciliation.

    STABLE: the member has its target assignment. UNREVOKED_PARTITIONS: it must revoke partitions first.
    UNRELEASED_PARTITIONS: it waits for partitions that other members have not revoked yet.
    """

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked"
    UNRELEASED_PARTITIONS = "unreleased"


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    """Attributes that only members of the classic protocol have."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member of a consumer group. Immutable: each change makes a new object.

    `assigned` are the partitions that the member may read. `pending_revocation` are partitions that it was
    asked to revoke and may still read. `principal` limits what `regex` matches. `classic` is None unless the
    member uses the classic protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    principal: str = str(ANONYMOUS)
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    assignor: str | None = None
    state: MemberState = MemberState.STABLE
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = EMPTY_ASSIGNMENT
    pending_revocation: Assignment = EMPTY_ASSIGNMENT
    classic: ClassicMemberMetadata | None = None

    @property
    def memory_bytes(self) -> int:
        """About the memory of the member."""
        partitions = len(self.assigned) + len(self.pending_revocation)
        protocols = () if self.classic is None else self.classic.protocols
        return (
            MEMBER_BYTES
            + 2 * len(self.member_id)
            + len(self.instance_id or "")
            + len(self.rack_id or "")
            + len(self.client_id)
            + len(self.client_host)
            + topics_size(self.topics)
            + len(self.regex or "")
            + len(self.principal)
            + _PARTITION_BYTES * partitions
            + protocols_size(protocols)
        )

    @property
    def is_classic(self) -> bool:
        """Return True if the member uses the classic protocol."""
        return self.classic is not None

    @property
    def owned(self) -> Assignment:
        """The partitions that no other member may be assigned."""
        return self.assigned | self.pending_revocation

    @property
    def has_left_temporarily(self) -> bool:
        """Return True if the member is static and has left with the epoch for that."""
        return self.epoch == LEAVE_STATIC_EPOCH

    def selection(self, topics: TopicView) -> Selection | None:
        """Return the pattern of the member, limited to what it may describe; None if it has no pattern."""
        host = self.client_host.removeprefix("/")
        return topics.select(self.regex, self.principal, host) if self.regex else None

    def updated(self, heartbeat: ConsumerHeartbeat) -> ConsumerMember:
        """Return the member with the fields of a heartbeat. An empty regex ends the subscription by regex."""
        regex = heartbeat.regex
        return replace(
            self,
            instance_id=heartbeat.instance_id or self.instance_id,
            rack_id=heartbeat.rack_id or self.rack_id,
            client_id=heartbeat.client_id,
            client_host=heartbeat.client_host,
            principal=heartbeat.principal,
            rebalance_timeout_ms=(
                self.rebalance_timeout_ms
                if heartbeat.rebalance_timeout_ms == -1
                else heartbeat.rebalance_timeout_ms
            ),
            topics=self.topics if heartbeat.topics is None else heartbeat.topics,
            regex=self.regex if regex is None else regex or None,
            assignor=heartbeat.assignor or self.assignor,
            classic=None,
        )

    def joined(self, request: JoinRequest, subscription: Subscription) -> ConsumerMember:
        """Return the member with the fields of a JoinGroup: it uses the classic protocol."""
        return replace(
            self,
            instance_id=request.instance_id or self.instance_id,
            rack_id=subscription.rack_id or self.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=subscription.topics,
            regex=None,
            classic=ClassicMemberMetadata(request.session_timeout_ms, request.protocols),
        )

    def reconciled(
        self,
        epoch: int,
        state: MemberState = MemberState.STABLE,
        *,
        assigned: Assignment,
        pending_revocation: Assignment = EMPTY_ASSIGNMENT,
    ) -> ConsumerMember:
        """Return the member with a new assignment and an epoch, which may be the current one."""
        return replace(
            self,
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending_revocation,
        )

    def rejoined_as(self, member_id: str) -> ConsumerMember:
        """Return a static member that rejoins under a new id and must receive its assignment again."""
        return replace(self, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)

    def left_temporarily(self) -> ConsumerMember:
        """Return a static member that leaves temporarily and keeps its assignment."""
        return replace(self, epoch=LEAVE_STATIC_EPOCH, pending_revocation=EMPTY_ASSIGNMENT)
