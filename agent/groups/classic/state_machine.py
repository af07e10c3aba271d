"""The state machine of a classic group.

::

    Empty ──join──▶ PreparingRebalance ──all joined, or timeout──▶ CompletingRebalance
      ▲                │      ▲   ▲                                  │         │
      └──no members────┘      │   └──member joins or leaves──────────┘         │ assignment stored
                              └──member joins, leaves or changes── Stable ◀────┘

States and the order of events are those of Kafka's coordinator (GroupMetadataManager.java, "classic group").
Where Kafka leaves a request without a response, this coordinator responds.

A generation is stored before any member receives its assignment. From then on the catalog rejects offset
commits of the previous generation, so the offsets that the new members fetch are final.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog
from kio.schema.errors import ErrorCode

from agent.groups.classic.embedded_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from agent.groups.classic.member import ClassicMember
from agent.groups.classic.members import ClassicMembers
from agent.groups.classic.messages import (
    NO_MEMBER,
    ClassicGroupState,
    JoinedMember,
    JoinResponse,
    SyncResponse,
)
from agent.groups.classic.snapshot import ClassicGroupSnapshot
from agent.groups.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.group_settings import GroupSettings
    from agent.groups.classic.snapshot import SaveSnapshot
    from agent.groups.metrics import GroupCounters
    from core.clock import Clock

_log = structlog.get_logger(__name__)

_JOIN, _SYNC = "join", "sync"
_VALID_PREVIOUS_STATES = {
    ClassicGroupState.EMPTY: {ClassicGroupState.PREPARING_REBALANCE},
    ClassicGroupState.PREPARING_REBALANCE: {
        ClassicGroupState.STABLE,
        ClassicGroupState.COMPLETING_REBALANCE,
        ClassicGroupState.EMPTY,
    },
    ClassicGroupState.COMPLETING_REBALANCE: {ClassicGroupState.PREPARING_REBALANCE},
    ClassicGroupState.STABLE: {ClassicGroupState.COMPLETING_REBALANCE},
    ClassicGroupState.DEAD: set(ClassicGroupState),
}


class ClassicStateMachine:
    """Members, state and deadlines of a classic group, and the transitions between states.

    `save` may call back at any later time. Not safe for threads.
    """

    def __init__(
        self,
        group_id: str,
        *,
        settings: GroupSettings,
        clock: Clock,
        save: SaveSnapshot,
        counters: GroupCounters,
        snapshot: ClassicGroupSnapshot | None = None,
    ) -> None:
        initial = snapshot or ClassicGroupSnapshot(state_ms=clock.now_ms())
        self.group_id = group_id
        self.settings = settings
        self.save = save
        self.counters = counters
        self.deadlines = Deadlines(clock)
        self.members = ClassicMembers()
        self.generation = initial.generation
        self.protocol_type = initial.protocol_type
        self.protocol = initial.protocol
        self.state_ms = initial.state_ms
        self.subscribed_topics: frozenset[str] | None = None
        self.state = ClassicGroupState.STABLE if initial.members else ClassicGroupState.EMPTY
        self._previous_state = ClassicGroupState.DEAD
        self._clock = clock
        # Members of this generation that have not sent SyncGroup yet.
        self._pending_syncs: set[str] = set()
        self._new_member_added = False
        self._assigned_generation = -1  # the last generation whose leader has sent its assignments
        for member in initial.members:
            self.members.add(ClassicMember.from_snapshot(member))
        if initial.leader is not None and initial.leader in self.members:
            self.members.leader = initial.leader
        for restored in self.members:
            self.extend_session(restored)
        self._update_subscribed_topics()

    # Members

    def add_member(self, member: ClassicMember, protocol_type: str) -> None:
        """Add a new member. The first member determines the protocol type of the group."""
        if (
            self.state is ClassicGroupState.PREPARING_REBALANCE
            and self._previous_state is ClassicGroupState.EMPTY
        ):
            self._new_member_added = True
        if not self.members:
            self.protocol_type = protocol_type
        self.members.add(member)
        self._set_session_deadline(member.member_id, self.settings.new_member_timeout_ms)

    def add_pending_member(self, member_id: str, session_timeout_ms: int) -> None:
        """Note a member id that was assigned to a client; it is valid for one session timeout."""
        self.members.add_pending(member_id)
        self._set_session_deadline(member_id, session_timeout_ms)

    def extend_session(self, member: ClassicMember) -> None:
        """Start the member's session timeout again."""
        self._set_session_deadline(member.member_id, member.session_timeout_ms)

    def remove_member(self, member_id: str) -> None:
        """Remove a member and reject its pending requests. Starts no rebalance."""
        self.deadlines.cancel(_session_key(member_id))
        if member_id in self.members:
            member = self.members[member_id]
            member.complete_join(JoinResponse(error=ErrorCode.unknown_member_id))
            member.complete_sync(SyncResponse(error=ErrorCode.unknown_member_id))
        self.members.remove(member_id)
        self._pending_syncs.discard(member_id)

    def replace_static_member(self, old: ClassicMember, new: ClassicMember) -> None:
        """Replace a static member by its restarted self; pending requests of the old one are fenced."""
        old.complete_join(JoinResponse(error=ErrorCode.fenced_instance_id, member_id=old.member_id))
        old.complete_sync(SyncResponse(error=ErrorCode.fenced_instance_id))
        self.deadlines.cancel(_session_key(old.member_id))
        self._pending_syncs.discard(old.member_id)
        self.members.replace(old.member_id, new)
        self.extend_session(new)

    def _set_session_deadline(self, member_id: str, timeout_ms: int) -> None:
        self.deadlines.set(_session_key(member_id), timeout_ms, partial(self._expire_session, member_id))

    def _expire_session(self, member_id: str) -> None:
        if member_id in self.members.pending:
            self.members.remove(member_id)
            self.complete_join_if_ready()
        elif member_id in self.members and not self.members[member_id].is_exempt_from_heartbeats:
            self.counters.members_expired += 1
            self.remove_member(member_id)
            self.rebalance_after_removal(f"the session of {member_id} has timed out")

    def rebalance_after_removal(self, reason: str) -> None:
        """Start or continue a rebalance after `remove_member`."""
        if self.state in {ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE}:
            self.prepare_rebalance(reason)
        else:
            self.complete_join_if_ready()

    # Joining

    def rebalance_or_complete_join(self, reason: str) -> None:
        """Start a rebalance, or complete the current one if all members have joined."""
        if self.state in _VALID_PREVIOUS_STATES[ClassicGroupState.PREPARING_REBALANCE]:
            self.prepare_rebalance(reason)
        else:
            self.complete_join_if_ready()

    def prepare_rebalance(self, reason: str) -> None:
        """Start a rebalance. The first rebalance of an empty group is delayed until more members join."""
        if self.state is ClassicGroupState.COMPLETING_REBALANCE:
            self._complete_syncs(ErrorCode.rebalance_in_progress, {})
        self._pending_syncs.clear()
        self.deadlines.cancel(_SYNC)
        is_first = self.state is ClassicGroupState.EMPTY
        self._move_to(ClassicGroupState.PREPARING_REBALANCE)
        _log.info("rebalancing a group", group=self.group_id, generation=self.generation, reason=reason)
        if is_first:
            delay_ms = self.settings.group_initial_rebalance_delay_ms
            self._delay_initial_rebalance(delay_ms, max(self.members.rebalance_timeout_ms - delay_ms, 0))
        elif self.members.all_joined:
            self._complete_join()
        else:
            self.deadlines.set(_JOIN, self.members.rebalance_timeout_ms, self._complete_join)

    def complete_join_if_ready(self) -> None:
        """Begin the generation if all members have joined. Does not shorten the initial rebalance delay."""
        if (
            self.state is ClassicGroupState.PREPARING_REBALANCE
            and self._previous_state is not ClassicGroupState.EMPTY
            and self.members.all_joined
        ):
            self._complete_join()

    def _delay_initial_rebalance(self, delay_ms: int, remaining_ms: int) -> None:
        """Delay the first generation while members keep joining, up to the rebalance timeout."""

        def delay_again_or_complete() -> None:
            if self._new_member_added and remaining_ms:
                self._new_member_added = False
                next_delay_ms = min(self.settings.group_initial_rebalance_delay_ms, remaining_ms)
                self._delay_initial_rebalance(next_delay_ms, max(remaining_ms - delay_ms, 0))
            else:
                self._complete_join()

        self.deadlines.set(_JOIN, delay_ms, delay_again_or_complete)

    def _complete_join(self) -> None:
        """Begin the next generation with the members that have joined and with all static members."""
        self.deadlines.cancel(_JOIN)
        self._new_member_added = False
        for member in self.members:
            if not member.is_awaiting_join and not member.is_static:
                self.remove_member(member.member_id)
        if not self.members.elect_joined_leader() and self.members:
            # Only static members are left, and none has joined: wait until one joins or its session ends.
            self.deadlines.set(_JOIN, self.members.rebalance_timeout_ms, self._complete_join)
            return
        self.generation += 1
        self.counters.rebalances += 1
        self._pending_syncs.clear()
        self.protocol = self.members.select_protocol() if self.members else None
        self._update_subscribed_topics()
        if not self.members:
            self._move_to(ClassicGroupState.EMPTY)
            self.save(self.snapshot({}), lambda _: None)
            return
        self._move_to(ClassicGroupState.COMPLETING_REBALANCE)
        for member in self.members:
            self._pending_syncs.add(member.member_id)
            member.is_new = False
            self.extend_session(member)
        timeout_ms = self.members.rebalance_timeout_ms
        self.deadlines.set(_SYNC, timeout_ms, partial(self._expire_pending_syncs, self.generation))
        for member in self.members:
            member.complete_join(self.join_response(member.member_id))

    def join_response(
        self, member_id: str, *, with_members: bool = True, skip_assignment: bool = False
    ) -> JoinResponse:
        """Return a member's part in the current generation; the leader's includes all members."""
        leads = self.members.leader == member_id
        return JoinResponse(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.members.leader or NO_MEMBER,
            member_id=member_id,
            members=self._members_for_leader() if leads and with_members else (),
            skip_assignment=skip_assignment and leads,
        )

    def _members_for_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol or ""),
            )
            for member in self.members
        )

    # Syncing

    def record_sync(self, member_id: str) -> None:
        """Note that a member has sent SyncGroup; cancel the deadline when all members have."""
        self._pending_syncs.discard(member_id)
        if not self._pending_syncs:
            self.deadlines.cancel(_SYNC)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Store the leader's assignments, then send them to the members.

        A member that the leader left out receives an empty assignment. The first assignments of a generation
        count: a leader that repeats its request while they are stored gets its part of them.
        """
        generation = self.generation
        if self._assigned_generation == generation:
            return
        self._assigned_generation = generation

        def on_stored(error: ErrorCode) -> None:
            if self.state is not ClassicGroupState.COMPLETING_REBALANCE or self.generation != generation:
                return
            if error is ErrorCode.none:
                self._move_to(ClassicGroupState.STABLE)
                self._complete_syncs(error, assignments)
            else:
                self._complete_syncs(error, {})
                self.prepare_rebalance("the assignment could not be stored")

        self.save(self.snapshot(assignments), on_stored)

    def _complete_syncs(self, error: ErrorCode, assignments: Mapping[str, bytes]) -> None:
        succeeded = error is ErrorCode.none
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            self.members.update_size(member)
        for member in self.members:
            response = SyncResponse(
                error=error,
                protocol_type=self.protocol_type if succeeded else None,
                protocol=self.protocol if succeeded else None,
                assignment=member.assignment,
            )
            if member.complete_sync(response):
                self.extend_session(member)

    def _expire_pending_syncs(self, generation: int) -> None:
        """Remove the members that have joined the generation and not sent SyncGroup."""
        states = {ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE}
        if generation == self.generation and self.state in states and self._pending_syncs:
            missing = sorted(self._pending_syncs)
            for member_id in missing:
                self.remove_member(member_id)
            self.prepare_rebalance(f"{len(missing)} members did not send SyncGroup")

    # Snapshots and transitions

    def snapshot(self, assignments: Mapping[str, bytes]) -> ClassicGroupSnapshot:
        """Return the state that another coordinator needs, with these assignments."""
        return ClassicGroupSnapshot(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.members.leader,
            members=tuple(member.snapshot(assignments.get(member.member_id, b"")) for member in self.members),
            subscribed_topics=self.subscribed_topics,
            state_ms=self.state_ms,
        )

    def unload(self, error: ErrorCode) -> None:
        """Refuse all pending requests with `error` and make the group dead."""
        self._move_to(ClassicGroupState.DEAD)
        self.deadlines.clear()
        for member in self.members:
            member.complete_join(JoinResponse(error=error, member_id=member.member_id))
            member.complete_sync(SyncResponse(error=error))

    def _move_to(self, state: ClassicGroupState) -> None:
        if self.state not in _VALID_PREVIOUS_STATES[state]:
            raise AssertionError(f"group {self.group_id!r} cannot go from {self.state} to {state}")
        self._previous_state, self.state = self.state, state
        self.state_ms = self._clock.now_ms()

    def _update_subscribed_topics(self) -> None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            self.subscribed_topics = None
        elif not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol is not None:
            self.subscribed_topics = subscribed_topics(
                member.metadata(self.protocol) for member in self.members
            )


def _session_key(member_id: str) -> tuple[str, str]:
    return ("session", member_id)
