"""JoinGroup requests to a classic group.

Two rules explain most of this module:

- A dynamic member without a member id is assigned one and must join again with it (KIP-394). If the response
  is lost, the unused id expires and the group keeps no member that no client knows.
- A static member without a member id replaces the member with its instance id. If the group is stable, that
  causes no rebalance (KIP-345, KIP-814).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from agent.groups.classic.member import ClassicMember
from agent.groups.classic.messages import NO_MEMBER, ClassicGroupState, JoinResponse

if TYPE_CHECKING:
    from agent.groups.classic.messages import JoinCallback, JoinRequest
    from agent.groups.classic.state_machine import ClassicStateMachine
    from core.ids import Ids

_MAX_PROTOCOLS = 64  # the votes for the protocols of all members are counted in each rebalance


class JoinHandler:
    """Handler of JoinGroup requests to one group."""

    def __init__(self, machine: ClassicStateMachine, ids: Ids) -> None:
        self._machine = machine
        self._members = machine.members
        self._ids = ids

    def join(self, request: JoinRequest, callback: JoinCallback) -> None:
        """Handle a request; `callback` is called once, now or when the generation begins."""
        error = self._check(request)
        if error is not ErrorCode.none:
            is_full = error is ErrorCode.group_max_size_reached
            callback(JoinResponse(error=error, member_id=NO_MEMBER if is_full else request.member_id))
            if is_full and request.member_id:
                self._machine.remove_member(request.member_id)
                self._machine.rebalance_after_removal("a member was rejected because the group is full")
        elif not request.member_id:
            self._join_without_id(request, callback)
        elif request.member_id in self._members.pending:
            self._add(request.member_id, request, callback)
        else:
            self._rejoin(request, callback)

    def _check(self, request: JoinRequest) -> ErrorCode:
        if self._machine.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if not self._has_capacity(request.member_id):
            return ErrorCode.group_max_size_reached
        if not self._supports(request):
            return ErrorCode.inconsistent_group_protocol
        if request.member_id in self._members.pending and request.instance_id is not None:
            return ErrorCode.invalid_request  # only dynamic members are assigned ids in advance
        return ErrorCode.none

    def _has_capacity(self, member_id: str) -> bool:
        max_size = self._machine.settings.group_max_size
        if not member_id and len(self._members.pending) >= max_size:
            return False
        match self._machine.state:
            case ClassicGroupState.PREPARING_REBALANCE:
                has_joined = member_id in self._members and self._members[member_id].is_awaiting_join
                has_space = len(self._members) < max_size  # or those that have joined must be counted
                return has_joined or has_space or self._members.joined_count < max_size
            case ClassicGroupState.COMPLETING_REBALANCE | ClassicGroupState.STABLE:
                return member_id in self._members or len(self._members) < max_size
            case _:
                return True

    def _supports(self, request: JoinRequest) -> bool:
        if len(request.protocols) > _MAX_PROTOCOLS:
            return False
        names = {protocol.name for protocol in request.protocols}
        if self._machine.state is ClassicGroupState.EMPTY:
            return bool(request.protocol_type) and bool(names)
        if request.protocol_type != self._machine.protocol_type or not names:
            return False
        return not self._members or self._members.have_in_common(names)

    def _join_without_id(self, request: JoinRequest, callback: JoinCallback) -> None:
        new_id = f"{request.instance_id or request.client_id}-{self._ids.new_uuid()}"
        if request.instance_id is not None:
            old_id = self._members.member_id_of_instance(request.instance_id)
            if old_id is None:
                self._add(new_id, request, callback)
            else:
                self._replace(old_id, new_id, request, callback)
        elif request.requires_known_member_id:
            self._machine.add_pending_member(new_id, request.session_timeout_ms)
            callback(JoinResponse(error=ErrorCode.member_id_required, member_id=new_id))
        else:
            self._add(new_id, request, callback)

    def _add(self, member_id: str, request: JoinRequest, callback: JoinCallback) -> None:
        member = ClassicMember.from_join(member_id, request)
        self._machine.add_member(member, request.protocol_type)
        member.await_join(callback)
        self._machine.rebalance_or_complete_join(f"{member_id} joins: {_reason(request)}")

    def _rejoin(self, request: JoinRequest, callback: JoinCallback) -> None:
        """Handle a request of an existing member; respond at once if the request changes nothing."""
        machine, member_id = self._machine, request.member_id
        error = self._members.check(member_id, request.instance_id)
        if error is ErrorCode.none and machine.state is ClassicGroupState.EMPTY:
            error = ErrorCode.unknown_member_id
        if error is not ErrorCode.none:
            callback(JoinResponse(error=error, member_id=member_id))
            return
        member = self._members[member_id]
        is_unchanged = member.protocols == request.protocols
        is_follower = machine.state is ClassicGroupState.STABLE and self._members.leader != member_id
        if is_unchanged and (is_follower or machine.state is ClassicGroupState.COMPLETING_REBALANCE):
            callback(machine.join_response(member_id))
        else:
            member.update(request)
            self._members.update_size(member)
            member.await_join(callback)
            machine.rebalance_or_complete_join(f"{member_id} joins again: {_reason(request)}")

    def _replace(self, old_id: str, new_id: str, request: JoinRequest, callback: JoinCallback) -> None:
        """Replace a static member that was restarted."""
        machine, old = self._machine, self._members[old_id]
        member = old.with_member_id(new_id)
        member.update(request)
        machine.replace_static_member(old, member)
        member.await_join(callback)
        if machine.state is ClassicGroupState.STABLE and self._members.select_protocol() == machine.protocol:
            self._store_replacement(old, member, request)
        elif machine.state in {ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE}:
            machine.prepare_rebalance(f"static member {request.instance_id} rejoins as {new_id}")
        else:
            machine.complete_join_if_ready()

    def _store_replacement(self, old: ClassicMember, member: ClassicMember, request: JoinRequest) -> None:
        """Store the new member id of a static member, then respond; no other member notices.

        The client may join once more before the snapshot is stored. `member` is then fenced as `old` was.
        """
        machine, new_id, generation = self._machine, member.member_id, self._machine.generation

        def on_stored(error: ErrorCode) -> None:
            if machine.state is not ClassicGroupState.STABLE or machine.generation != generation:
                return  # a rebalance has begun; the join response is sent when it completes
            if error is not ErrorCode.none:
                member.complete_join(JoinResponse(error=error))
                if self._members.check(new_id, member.instance_id) is ErrorCode.none:
                    machine.replace_static_member(member, old)
                return
            if request.supports_skipping_assignment:
                response = machine.join_response(new_id, skip_assignment=True)
            else:
                # A client that finds itself the leader would assign again. Name its old member id instead.
                response = machine.join_response(new_id, with_members=False)
                if response.leader == new_id:
                    response = replace(response, leader=old.member_id)
            if member.complete_join(response):
                machine.extend_session(member)  # it may have ended during the write

        machine.save(machine.snapshot({each.member_id: each.assignment for each in self._members}), on_stored)


def _reason(request: JoinRequest) -> str:
    return request.reason or "no reason given"
