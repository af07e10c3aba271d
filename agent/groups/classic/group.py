"""A classic group: the requests of its members and administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from agent.groups.classic.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from agent.groups.classic.join_handler import JoinHandler
from agent.groups.classic.messages import (
    ClassicGroupDescription,
    ClassicGroupState,
    ClassicMemberDescription,
    MemberIdentity,
    SyncResponse,
)
from agent.groups.classic.state_machine import ClassicStateMachine
from agent.groups.metrics import GroupCounters
from catalog.groups.repository import GroupType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.group_settings import GroupSettings
    from agent.groups.classic.messages import (
        JoinCallback,
        JoinRequest,
        LeavingMember,
        SyncCallback,
        SyncRequest,
    )
    from agent.groups.classic.snapshot import ClassicGroupSnapshot, SaveSnapshot
    from core.clock import Clock
    from core.ids import Ids


class ClassicGroup:
    """One group of Kafka's classic protocol.

    The group does no I/O and never blocks. JoinGroup and SyncGroup take a callback, which is called exactly
    once. `save` stores a snapshot and calls back. The owner of the group calls `expire` at `next_deadline`.
    Not safe for threads.
    """

    group_type = GroupType.CLASSIC

    def __init__(
        self,
        group_id: str,
        *,
        settings: GroupSettings,
        clock: Clock,
        ids: Ids,
        save: SaveSnapshot,
        counters: GroupCounters | None = None,
        snapshot: ClassicGroupSnapshot | None = None,
    ) -> None:
        self._machine = ClassicStateMachine(
            group_id,
            settings=settings,
            clock=clock,
            save=save,
            counters=counters or GroupCounters(),
            snapshot=snapshot,
        )
        self._members = self._machine.members
        self._join_handler = JoinHandler(self._machine, ids)
        if len(self._members) > settings.group_max_size:
            self._machine.prepare_rebalance("the group is larger than group.max.size")
        elif self._members and snapshot is not None and snapshot.must_rebalance:
            self._machine.prepare_rebalance("partitions of a member that has left are unassigned")

    @property
    def group_id(self) -> str:
        """The group id."""
        return self._machine.group_id

    @property
    def state(self) -> ClassicGroupState:
        """The state."""
        return self._machine.state

    @property
    def is_dead(self) -> bool:
        """Return True if the group was unloaded."""
        return self._machine.state is ClassicGroupState.DEAD

    @property
    def is_empty(self) -> bool:
        """Return True if the group has no members and none is joining."""
        return self._machine.state is ClassicGroupState.EMPTY

    @property
    def member_count(self) -> int:
        """The number of members."""
        return len(self._members)

    @property
    def memory_bytes(self) -> int:
        """About the memory of the members."""
        return self._members.memory_bytes

    def memory_of(self, member_id: str, instance_id: str | None = None) -> int:
        """Return about the memory of a member, or of the static member with this instance; 0 without it."""
        if not member_id and instance_id is not None:
            member_id = self._members.member_id_of_instance(instance_id) or ""
        return self._members.size_of(member_id)

    @property
    def assignment_bytes(self) -> int:
        """The bytes of the assignments of all members."""
        return sum(len(member.assignment) for member in self._members)

    @property
    def generation(self) -> int:
        """The current generation; 0 before the first."""
        return self._machine.generation

    @property
    def protocol_type(self) -> str | None:
        """The members' protocol type, usually "consumer"; None for a group that never had members."""
        return self._machine.protocol_type

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`, in seconds of the monotonic clock."""
        return self._machine.deadlines.earliest

    def expire(self) -> None:
        """Expire the sessions and complete the rebalances whose time has come."""
        self._machine.deadlines.expire()

    def postpone_deadlines(self, seconds: float) -> None:
        """Give all members more time, because the coordinator could not do its part."""
        self._machine.deadlines.postpone(seconds)

    def join(self, request: JoinRequest, callback: JoinCallback) -> None:
        """Handle a JoinGroup; the response is sent when the member's generation begins."""
        self._join_handler.join(request, callback)

    def sync(self, request: SyncRequest, callback: SyncCallback) -> None:
        """Handle a SyncGroup; the response is sent when the leader's assignments are stored."""
        machine = self._machine
        error = self._check_sync(request)
        if error is not ErrorCode.none:
            callback(SyncResponse(error=error))
            return
        member = self._members[request.member_id]
        machine.record_sync(request.member_id)
        if machine.state is ClassicGroupState.STABLE:
            callback(
                SyncResponse(
                    protocol_type=machine.protocol_type,
                    protocol=machine.protocol,
                    assignment=member.assignment,
                )
            )
            return
        member.await_sync(callback)
        if self._members.leader == request.member_id:
            machine.assign(request.assignments)

    def heartbeat(self, identity: MemberIdentity) -> ErrorCode:
        """Extend a member's session. `rebalance_in_progress` asks the member to join again."""
        error = self._check_member(identity)
        if error is not ErrorCode.none:
            return error
        self._machine.extend_session(self._members[identity.member_id])
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Remove members; return an error code for each, in order. The group must not be dead."""
        errors = [self._remove(each) for each in leaving]
        if ErrorCode.none in errors:
            self._machine.rebalance_after_removal("members have left")
        return errors

    def _remove(self, leaving: LeavingMember) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = self._members.member_id_of_instance(leaving.instance_id) or ""
        error = ErrorCode.none
        if member_id not in self._members.pending:
            error = self._members.check(member_id, leaving.instance_id)
        if error is ErrorCode.none:
            self._machine.remove_member(member_id)
        return error

    def check_commit(self, identity: MemberIdentity, *, is_transactional: bool = False) -> ErrorCode:
        """Extend the member's session; return `none` if it may commit offsets, otherwise the error.

        As in Kafka, the offsets of a transaction may be committed while the rebalance is completed.
        """
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if identity.generation < 0 and self.state is ClassicGroupState.EMPTY:
            return ErrorCode.none
        if identity.generation < 0 and not identity.member_id and identity.instance_id is None:
            return ErrorCode.unknown_member_id
        error = self._check_member(identity)
        is_completing = self.state is ClassicGroupState.COMPLETING_REBALANCE
        if error is ErrorCode.none and is_completing and not is_transactional:
            return ErrorCode.rebalance_in_progress
        if error is ErrorCode.none:
            self._machine.extend_session(self._members[identity.member_id])
        return error

    def check_delete(self) -> ErrorCode:
        """Return `none` if the group has no members and may be deleted, otherwise the error."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.group_id_not_found
        return ErrorCode.none if self.state is ClassicGroupState.EMPTY else ErrorCode.non_empty_group

    def check_delete_offsets(self) -> ErrorCode:
        """Return `none` if offsets of topics that are not subscribed may be deleted, otherwise the error."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.group_id_not_found
        if self.state is ClassicGroupState.EMPTY or self.protocol_type == CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.none
        return ErrorCode.non_empty_group

    def is_subscribed(self, topic: str) -> bool:
        """Return True if a member subscribes to the topic, or may: its metadata cannot be parsed."""
        topics = self._machine.subscribed_topics
        if topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in topics

    def describe(self) -> ClassicGroupDescription:
        """Return the description for administrators."""
        is_stable = self.state is ClassicGroupState.STABLE
        protocol = (self._machine.protocol or "") if is_stable else ""
        return ClassicGroupDescription(
            group_id=self.group_id,
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol=protocol,
            members=tuple(
                ClassicMemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(protocol) if is_stable else b"",
                    assignment=member.assignment,
                )
                for member in self._members
            ),
        )

    def snapshot(self) -> ClassicGroupSnapshot:
        """Return the group's state with its last assignments, also during a rebalance."""
        return self._machine.snapshot({member.member_id: member.assignment for member in self._members})

    def unload(self, error: ErrorCode) -> None:
        """Refuse all pending requests with `error` and make the group dead."""
        self._machine.unload(error)

    def _check_member(self, identity: MemberIdentity) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self._members.check(identity.member_id, identity.instance_id)
        if error is ErrorCode.none and identity.generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        error = self._check_member(
            MemberIdentity(
                member_id=request.member_id,
                instance_id=request.instance_id,
                generation=request.generation,
            )
        )
        if error is not ErrorCode.none:
            return error
        if _differs(request.protocol_type, self.protocol_type):
            return ErrorCode.inconsistent_group_protocol
        if _differs(request.protocol, self._machine.protocol):
            return ErrorCode.inconsistent_group_protocol
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none


def _differs(requested: str | None, current: str | None) -> bool:
    return requested is not None and current is not None and requested != current
