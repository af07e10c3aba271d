"""One member of a consumer group: what it wants, what it has, and how far it is on its way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from agent.groups.consumer.messages import JOINS, LEAVES_FOR_A_WHILE, NOTHING

if TYPE_CHECKING:
    from agent.groups.classic.embedded_protocol import Subscription
    from agent.groups.consumer.messages import Assignment, ConsumerHeartbeat
    from agent.groups.messages import JoinRequest, Protocol


class MemberState(StrEnum):
    """STABLE has all that it may have, UNREVOKED must give something up, UNRELEASED waits for others to."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """What is particular to a member of the classic protocol in a consumer group."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member; each change makes a new one.

    `assigned` is what it may read, `revoking` what it was told to give up and has not yet: both are its own.
    `classic` is None unless it speaks the classic protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    assignor: str | None = None
    state: MemberState = MemberState.STABLE
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    classic: ClassicSide | None = None

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol."""
        return self.classic is not None

    @property
    def owned(self) -> Assignment:
        """What no other member may be given."""
        return self.assigned | self.revoking

    @property
    def is_away(self) -> bool:
        """Whether it is static, and has left for a while."""
        return self.epoch == LEAVES_FOR_A_WHILE

    def updated(self, heartbeat: ConsumerHeartbeat) -> ConsumerMember:
        """The member with what the heartbeat says of it. An empty pattern takes the pattern back."""
        said = heartbeat.regex
        return replace(
            self,
            instance_id=heartbeat.instance_id or self.instance_id,
            rack_id=heartbeat.rack_id or self.rack_id,
            client_id=heartbeat.client_id,
            client_host=heartbeat.client_host,
            rebalance_timeout_ms=(
                self.rebalance_timeout_ms
                if heartbeat.rebalance_timeout_ms == -1
                else heartbeat.rebalance_timeout_ms
            ),
            topics=self.topics if heartbeat.topics is None else heartbeat.topics,
            regex=self.regex if said is None else said or None,
            assignor=heartbeat.assignor or self.assignor,
            classic=None,
        )

    def joined(self, request: JoinRequest, said: Subscription) -> ConsumerMember:
        """The member with what its JoinGroup says of it: it speaks the classic protocol."""
        return replace(
            self,
            instance_id=request.instance_id or self.instance_id,
            rack_id=said.rack_id or self.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=said.topics,
            regex=None,
            classic=ClassicSide(request.session_timeout_ms, request.protocols),
        )

    def moved(
        self,
        epoch: int,
        state: MemberState = MemberState.STABLE,
        *,
        assigned: Assignment,
        revoking: Assignment = NOTHING,
    ) -> ConsumerMember:
        """The member in that epoch, which may be the one that it is in already."""
        return replace(
            self, epoch=epoch, previous_epoch=self.epoch, state=state, assigned=assigned, revoking=revoking
        )

    def renamed(self, member_id: str) -> ConsumerMember:
        """The static member that comes back under a new id: it must be told what it has."""
        return replace(self, member_id=member_id, epoch=JOINS, previous_epoch=JOINS)

    def away(self) -> ConsumerMember:
        """The static member that leaves for a while, and keeps what it was assigned."""
        return replace(self, epoch=LEAVES_FOR_A_WHILE, revoking=NOTHING)
