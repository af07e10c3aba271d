"""What becomes of a request to join: who is let in, under which id, and whether the group must rebalance.

Two rules are worth knowing. A dynamic member that comes without an id is given one and sent back to use it
(KIP-394), so that a client that loses the answer leaves no ghost behind. A static member that comes without
one takes the place of the member with its instance, without a rebalance if the group is stable (KIP-345,
KIP-814).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from agent.groups.classic.member import Member
from agent.groups.messages import NO_MEMBER, GroupState, JoinAnswer

if TYPE_CHECKING:
    from agent.groups.classic.state_machine import ClassicStateMachine
    from agent.groups.messages import JoinReply, JoinRequest
    from core.ids import Ids


class Joining:
    """Decides about joins to one group."""

    def __init__(self, cycle: ClassicStateMachine, ids: Ids) -> None:
        self._cycle = cycle
        self._roster = cycle.roster
        self._ids = ids

    def join(self, request: JoinRequest, reply: JoinReply) -> None:
        """Take a request; `reply` is called once, now or when the generation begins."""
        refusal = self._refusal(request)
        if refusal is not ErrorCode.none:
            full = refusal is ErrorCode.group_max_size_reached
            reply(JoinAnswer(error=refusal, member_id=NO_MEMBER if full else request.member_id))
            if full and request.member_id:
                self._cycle.dismiss(request.member_id)
                self._cycle.members_left("a member was turned away from a full group")
        elif not request.member_id:
            self._join_new(request, reply)
        elif request.member_id in self._roster.pending:
            self._add(request.member_id, request, reply)
        else:
            self._join_again(request, reply)

    def _refusal(self, request: JoinRequest) -> ErrorCode:
        if self._cycle.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if not self._has_room(request.member_id):
            return ErrorCode.group_max_size_reached
        if not self._supports(request):
            return ErrorCode.inconsistent_group_protocol
        if request.member_id in self._roster.pending and request.instance_id is not None:
            return ErrorCode.invalid_request  # ids are given to dynamic members only
        return ErrorCode.none

    def _has_room(self, member_id: str) -> bool:
        most = self._cycle.settings.group_max_size
        if not member_id and len(self._roster.pending) >= most:
            return False
        match self._cycle.state:
            case GroupState.PREPARING_REBALANCE:
                waits = member_id in self._roster and self._roster[member_id].awaits_join
                return waits or self._roster.joined_count < most
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member_id in self._roster or len(self._roster) < most
            case _:
                return True

    def _supports(self, request: JoinRequest) -> bool:
        names = {protocol.name for protocol in request.protocols}
        if self._cycle.state is GroupState.EMPTY:
            return bool(request.protocol_type) and bool(names)
        if request.protocol_type != self._cycle.protocol_type or not names:
            return False
        return not self._roster or bool(names & self._roster.common_protocols())

    def _join_new(self, request: JoinRequest, reply: JoinReply) -> None:
        new_id = f"{request.instance_id or request.client_id}-{self._ids.new_uuid()}"
        if request.instance_id is not None:
            old_id = self._roster.member_of_instance(request.instance_id)
            if old_id is None:
                self._add(new_id, request, reply)
            else:
                self._replace(old_id, new_id, request, reply)
        elif request.requires_known_member_id:
            self._cycle.expect(new_id, request.session_timeout_ms)
            reply(JoinAnswer(error=ErrorCode.member_id_required, member_id=new_id))
        else:
            self._add(new_id, request, reply)

    def _add(self, member_id: str, request: JoinRequest, reply: JoinReply) -> None:
        member = Member.joining(member_id, request)
        self._cycle.add_member(member, request.protocol_type)
        member.await_join(reply)
        self._cycle.rebalance_or_complete(f"{member_id} joins: {request.reason or 'no reason given'}")

    def _join_again(self, request: JoinRequest, reply: JoinReply) -> None:
        """A known member: it is let off with its present place where nothing would change."""
        cycle, member_id = self._cycle, request.member_id
        error = self._roster.check(member_id, request.instance_id)
        if error is ErrorCode.none and cycle.state is GroupState.EMPTY:
            error = ErrorCode.unknown_member_id
        if error is not ErrorCode.none:
            reply(JoinAnswer(error=error, member_id=member_id))
            return
        member = self._roster[member_id]
        unchanged = member.protocols == request.protocols
        follows = cycle.state is GroupState.STABLE and self._roster.leader != member_id
        if unchanged and (follows or cycle.state is GroupState.COMPLETING_REBALANCE):
            reply(cycle.current_answer(member_id))
        else:
            member.update(request)
            member.await_join(reply)
            cycle.rebalance_or_complete(f"{member_id} joins again: {request.reason or 'no reason given'}")

    def _replace(self, old_id: str, new_id: str, request: JoinRequest, reply: JoinReply) -> None:
        """A static member is back after a restart, and its former self is fenced."""
        cycle, before = self._cycle, self._roster[old_id]
        member = before.successor(new_id)
        member.update(request)
        cycle.replace(before, member)
        member.await_join(reply)
        if cycle.state is GroupState.STABLE and self._roster.select_protocol() == cycle.protocol:
            self._hand_over(before, member, request)
        elif cycle.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            cycle.prepare_rebalance(f"static member {request.instance_id} is back as {new_id}")
        else:
            cycle.complete_join_if_ready()

    def _hand_over(self, before: Member, member: Member, request: JoinRequest) -> None:
        """Store that the place has a new holder, then answer; nobody else notices.

        Its client may come once more before that is stored: it is fenced then, as its former self was.
        """
        cycle, new_id, generation = self._cycle, member.member_id, self._cycle.generation

        def stored(error: ErrorCode) -> None:
            if cycle.state is not GroupState.STABLE or cycle.generation != generation:
                return  # a rebalance has begun, and its end answers the join
            if error is not ErrorCode.none:
                member.answer_join(JoinAnswer(error=error))
                if self._roster.check(new_id, member.instance_id) is ErrorCode.none:
                    cycle.replace(member, before)
            elif request.supports_skipping_assignment:
                member.answer_join(cycle.current_answer(new_id, skip_assignment=True))
            else:
                # Whoever thinks that it leads would assign anew: it is told that its former self leads.
                answer = cycle.current_answer(new_id, with_members=False)
                leader = before.member_id if answer.leader == new_id else answer.leader
                member.answer_join(
                    JoinAnswer(
                        generation=answer.generation,
                        protocol_type=answer.protocol_type,
                        protocol=answer.protocol,
                        leader=leader,
                        member_id=new_id,
                    )
                )

        cycle.save(cycle.snapshot({each.member_id: each.assignment for each in self._roster}), stored)
