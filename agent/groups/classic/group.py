"""A classic consumer group as its members and its administrators see it: a pure state machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from agent.groups.classic.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from agent.groups.classic.joining import Joining
from agent.groups.classic.state_machine import ClassicStateMachine
from agent.groups.counts import GroupCounts
from agent.groups.messages import GroupState, MemberStamp, SyncAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.group_settings import GroupSettings
    from agent.groups.messages import (
        GroupSnapshot,
        JoinReply,
        JoinRequest,
        LeavingMember,
        Save,
        SyncReply,
        SyncRequest,
    )
    from core.clock import Clock
    from core.ids import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member for administrators; metadata only while the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group for administrators."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDescription, ...] = ()


class ClassicGroup:
    """One group of Kafka's classic protocol.

    It does no input or output and never waits. Requests that must wait are answered through the callable that
    comes with them, exactly once. `save` stores a snapshot and reports back; time comes from the clock, and
    whoever owns the group calls `expire` when `next_deadline` has come. Not safe for threads.
    """

    def __init__(
        self,
        group_id: str,
        *,
        settings: GroupSettings,
        clock: Clock,
        ids: Ids,
        save: Save,
        counts: GroupCounts | None = None,
        snapshot: GroupSnapshot | None = None,
    ) -> None:
        self._cycle = ClassicStateMachine(
            group_id,
            settings=settings,
            clock=clock,
            save=save,
            counts=counts or GroupCounts(),
            snapshot=snapshot,
        )
        self._roster = self._cycle.roster
        self._joining = Joining(self._cycle, ids)
        if len(self._roster) > settings.group_max_size:
            self._cycle.prepare_rebalance("the group is larger than groups may be now")
        elif self._roster and snapshot is not None and snapshot.must_rebalance:
            self._cycle.prepare_rebalance("somebody has left whose part nobody has")

    @property
    def group_id(self) -> str:
        """The group's name."""
        return self._cycle.group_id

    @property
    def state(self) -> GroupState:
        """Where the group is."""
        return self._cycle.state

    @property
    def is_dead(self) -> bool:
        """Whether it was unloaded."""
        return self._cycle.state is GroupState.DEAD

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, and none is coming."""
        return self._cycle.state is GroupState.EMPTY

    @property
    def member_count(self) -> int:
        """How many members it has."""
        return len(self._roster)

    @property
    def generation(self) -> int:
        """The number of the present generation; 0 before the first."""
        return self._cycle.generation

    @property
    def protocol_type(self) -> str | None:
        """What kind of members it has, mostly "consumer"; None for a group that only ever had offsets."""
        return self._cycle.protocol_type

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`, in seconds of the monotonic clock."""
        return self._cycle.deadlines.earliest

    def expire(self) -> None:
        """Let happen what happens by time alone: sessions that end, rebalances that wait no longer."""
        self._cycle.deadlines.expire()

    def join(self, request: JoinRequest, reply: JoinReply) -> None:
        """Take a member in; answered when its generation begins."""
        self._joining.join(request, reply)

    def sync(self, request: SyncRequest, reply: SyncReply) -> None:
        """Give a member its assignment; answered when the leader has assigned."""
        cycle = self._cycle
        error = self._check_sync(request)
        if error is not ErrorCode.none:
            reply(SyncAnswer(error=error))
            return
        member = self._roster[request.member_id]
        cycle.has_synced(request.member_id)
        if cycle.state is GroupState.STABLE:
            reply(
                SyncAnswer(
                    protocol_type=cycle.protocol_type, protocol=cycle.protocol, assignment=member.assignment
                )
            )
            return
        member.await_sync(reply)
        if self._roster.leader == request.member_id:
            cycle.assign(request.assignments)

    def heartbeat(self, stamp: MemberStamp) -> ErrorCode:
        """Keep a member's session; `rebalance_in_progress` calls it to join again."""
        error = self._check_member(stamp)
        if error is not ErrorCode.none:
            return error
        self._cycle.touch(self._roster[stamp.member_id])
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Let members go; an error for each, in order. The group must not be dead."""
        errors = [self._leave_one(each) for each in leaving]
        if ErrorCode.none in errors:
            self._cycle.members_left("members have left")
        return errors

    def _leave_one(self, leaving: LeavingMember) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = self._roster.member_of_instance(leaving.instance_id) or ""
        error = ErrorCode.none
        if member_id not in self._roster.pending:
            error = self._roster.check(member_id, leaving.instance_id)
        if error is ErrorCode.none:
            self._cycle.dismiss(member_id)
        return error

    def check_commit(self, stamp: MemberStamp) -> ErrorCode:
        """Whether offsets may be committed under this stamp; a commit is a sign of life, too."""
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if stamp.generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.none
        if stamp.generation < 0 and not stamp.member_id and stamp.instance_id is None:
            return ErrorCode.unknown_member_id
        error = self._check_member(stamp)
        if error is ErrorCode.none and self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        if error is ErrorCode.none:
            self._cycle.touch(self._roster[stamp.member_id])
        return error

    def check_delete(self) -> ErrorCode:
        """Whether the group may be deleted: only without members."""
        if self.state is GroupState.DEAD:
            return ErrorCode.group_id_not_found
        return ErrorCode.none if self.state is GroupState.EMPTY else ErrorCode.non_empty_group

    def check_delete_offsets(self) -> ErrorCode:
        """Whether offsets may be deleted at all; `is_subscribed` protects those in use."""
        if self.state is GroupState.DEAD:
            return ErrorCode.group_id_not_found
        if self.state is GroupState.EMPTY or self.protocol_type == CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.none
        return ErrorCode.non_empty_group

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads this topic; taken for granted of consumers whose metadata is unreadable."""
        topics = self._cycle.subscribed_topics
        if topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in topics

    def describe(self) -> GroupDescription:
        """The group for administrators."""
        stable = self.state is GroupState.STABLE
        protocol = (self._cycle.protocol or "") if stable else ""
        return GroupDescription(
            group_id=self.group_id,
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol=protocol,
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(protocol) if stable else b"",
                    assignment=member.assignment,
                )
                for member in self._roster
            ),
        )

    def snapshot(self) -> GroupSnapshot:
        """The group with what was assigned last, whatever goes on in it now."""
        cycle = self._cycle
        return cycle.snapshot({member.member_id: member.assignment for member in self._roster})

    def unload(self, error: ErrorCode) -> None:
        """Give the group up: everyone who waits is answered with `error`, and it is dead."""
        self._cycle.unload(error)

    def _check_member(self, stamp: MemberStamp) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self._roster.check(stamp.member_id, stamp.instance_id)
        if error is ErrorCode.none and stamp.generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        error = self._check_member(
            MemberStamp(
                member_id=request.member_id,
                instance_id=request.instance_id,
                generation=request.generation,
            )
        )
        if error is not ErrorCode.none:
            return error
        if _differs(request.protocol_type, self.protocol_type):
            return ErrorCode.inconsistent_group_protocol
        if _differs(request.protocol, self._cycle.protocol):
            return ErrorCode.inconsistent_group_protocol
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none


def _differs(asked: str | None, present: str | None) -> bool:
    return asked is not None and present is not None and asked != present
