"""The cycle of a classic group: everyone joins, the leader assigns, all work, until something changes.

::

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
      ▲                │      ▲   ▲                                      │         │
      └──nobody left───┘      │   └────────a member comes or goes────────┘         │ assignment stored
                              └──a member comes, goes or changes── Stable ◀────────┘

This is Kafka's coordinator (group-coordinator/.../GroupMetadataManager.java, "classic group"), with its order
of events; where it leaves a request without an answer, this one answers. A generation is stored before any
member learns its assignment, and so before anyone may read the offsets that the last generation committed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog
from kio.schema.errors import ErrorCode

from agent.groups.classic.embedded_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from agent.groups.classic.member import Member
from agent.groups.classic.members import Members
from agent.groups.deadlines import Deadlines
from agent.groups.messages import (
    NO_MEMBER,
    GroupSnapshot,
    GroupState,
    JoinAnswer,
    JoinedMember,
    SyncAnswer,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.group_settings import GroupSettings
    from agent.groups.counts import GroupCounts
    from agent.groups.messages import Save
    from core.clock import Clock

_log = structlog.get_logger(__name__)

_JOIN, _SYNC = "join", "sync"
_BEFORE = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


class ClassicStateMachine:
    """A group's state, and what moves it on. Not safe for threads; `save` may report back any time later."""

    def __init__(
        self,
        group_id: str,
        *,
        settings: GroupSettings,
        clock: Clock,
        save: Save,
        counts: GroupCounts,
        snapshot: GroupSnapshot | None = None,
    ) -> None:
        kept = snapshot or GroupSnapshot(state_ms=clock.now_ms())
        self.group_id = group_id
        self.settings = settings
        self.save = save
        self.counts = counts
        self.deadlines = Deadlines(clock)
        self.roster = Members()
        self.generation = kept.generation
        self.protocol_type = kept.protocol_type
        self.protocol = kept.protocol
        self.state_ms = kept.state_ms
        self.subscribed_topics: frozenset[str] | None = None
        self.state = GroupState.STABLE if kept.members else GroupState.EMPTY
        self._previous_state = GroupState.DEAD
        self._clock = clock
        self._pending_sync: set[str] = set()
        self._member_came = False
        for member in kept.members:
            self.roster.add(Member.restored(member))
        if kept.leader is not None and kept.leader in self.roster:
            self.roster.leader = kept.leader
        for restored in self.roster:
            self.touch(restored)
        self._learn_subscriptions()

    # Members

    def add_member(self, member: Member, protocol_type: str) -> None:
        """A new member; the first one says what kind of group it is."""
        if self.state is GroupState.PREPARING_REBALANCE and self._previous_state is GroupState.EMPTY:
            self._member_came = True
        if not self.roster:
            self.protocol_type = protocol_type
        self.roster.add(member)
        self._keep_until(member, self.settings.new_member_timeout_ms)

    def expect(self, member_id: str, session_timeout_ms: int) -> None:
        """An id was given away: wait a session long for the member to come back with it."""
        self.roster.pending.add(member_id)
        self.deadlines.set(_session(member_id), session_timeout_ms, partial(self._session_over, member_id))

    def touch(self, member: Member) -> None:
        """A sign of life: the session starts anew."""
        self._keep_until(member, member.session_timeout_ms)

    def dismiss(self, member_id: str) -> None:
        """Take a member away, and tell it so if it waits for something; the group does not move yet."""
        self.deadlines.cancel(_session(member_id))
        if member_id in self.roster:
            member = self.roster[member_id]
            member.answer_join(JoinAnswer(error=ErrorCode.unknown_member_id))
            member.answer_sync(SyncAnswer(error=ErrorCode.unknown_member_id))
        self.roster.remove(member_id)
        self._pending_sync.discard(member_id)

    def replace(self, old: Member, new: Member) -> None:
        """A static member has come back: whoever still waits under its old id is fenced."""
        old.answer_join(JoinAnswer(error=ErrorCode.fenced_instance_id, member_id=old.member_id))
        old.answer_sync(SyncAnswer(error=ErrorCode.fenced_instance_id))
        self.deadlines.cancel(_session(old.member_id))
        self._pending_sync.discard(old.member_id)
        self.roster.replace(old.member_id, new)
        self.touch(new)

    def _keep_until(self, member: Member, timeout_ms: int) -> None:
        member_id = member.member_id
        self.deadlines.set(_session(member_id), timeout_ms, partial(self._session_over, member_id))

    def _session_over(self, member_id: str) -> None:
        if member_id in self.roster.pending:
            self.roster.remove(member_id)
            self.complete_join_if_ready()
        elif member_id in self.roster and not self.roster[member_id].is_excused:
            self.counts.members_expired += 1
            self.dismiss(member_id)
            self.members_left(f"the session of {member_id} is over")

    def members_left(self, reason: str) -> None:
        """Move on after `dismiss`."""
        if self.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            self.prepare_rebalance(reason)
        else:
            self.complete_join_if_ready()

    # Joining

    def rebalance_or_complete(self, reason: str) -> None:
        """Something has changed: begin a rebalance, or finish the one that waits for nothing else."""
        if self.state in _BEFORE[GroupState.PREPARING_REBALANCE]:
            self.prepare_rebalance(reason)
        else:
            self.complete_join_if_ready()

    def prepare_rebalance(self, reason: str) -> None:
        """Call everyone to join again. An empty group waits a little for more members to come."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._answer_syncs(ErrorCode.rebalance_in_progress, {})
        self._pending_sync.clear()
        self.deadlines.cancel(_SYNC)
        first = self.state is GroupState.EMPTY
        self._move_to(GroupState.PREPARING_REBALANCE)
        _log.info("a group rebalances", group=self.group_id, generation=self.generation, reason=reason)
        if first:
            delay = self.settings.group_initial_rebalance_delay_ms
            self._wait_for_more(delay, max(self.roster.rebalance_timeout_ms - delay, 0))
        elif self.roster.all_joined:
            self._complete_join()
        else:
            self.deadlines.set(_JOIN, self.roster.rebalance_timeout_ms, self._complete_join)

    def complete_join_if_ready(self) -> None:
        """Begin the generation when everyone has joined; an initial rebalance keeps to its delay."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._previous_state is not GroupState.EMPTY
            and self.roster.all_joined
        ):
            self._complete_join()

    def _wait_for_more(self, delay_ms: int, remaining_ms: int) -> None:
        """Put the first generation off while members keep coming, within the rebalance timeout."""

        def look() -> None:
            if self._member_came and remaining_ms:
                self._member_came = False
                next_delay = min(self.settings.group_initial_rebalance_delay_ms, remaining_ms)
                self._wait_for_more(next_delay, max(remaining_ms - delay_ms, 0))
            else:
                self._complete_join()

        self.deadlines.set(_JOIN, delay_ms, look)

    def _complete_join(self) -> None:
        """Begin the next generation with those who have joined, and with the static members."""
        self.deadlines.cancel(_JOIN)
        self._member_came = False
        for member in self.roster:
            if not member.awaits_join and not member.is_static:
                self.dismiss(member.member_id)
        if not self.roster.elect_joined_leader() and self.roster:
            # Only static members, and none of them here: wait for one, they keep their places till then.
            self.deadlines.set(_JOIN, self.roster.rebalance_timeout_ms, self._complete_join)
            return
        self.generation += 1
        self.counts.rebalances += 1
        self._pending_sync.clear()
        self.protocol = self.roster.select_protocol() if self.roster else None
        self._learn_subscriptions()
        if not self.roster:
            self._move_to(GroupState.EMPTY)
            self.save(self.snapshot({}), lambda _: None)
            return
        self._move_to(GroupState.COMPLETING_REBALANCE)
        for member in self.roster:
            self._pending_sync.add(member.member_id)
            member.is_new = False
            self.touch(member)
        self.deadlines.set(_SYNC, self.roster.rebalance_timeout_ms, partial(self._sync_over, self.generation))
        for member in self.roster:
            member.answer_join(self.current_answer(member.member_id))

    def current_answer(
        self, member_id: str, *, with_members: bool = True, skip_assignment: bool = False
    ) -> JoinAnswer:
        """A member's place in the present generation; its leader also gets the members."""
        leads = self.roster.leader == member_id
        return JoinAnswer(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.roster.leader or NO_MEMBER,
            member_id=member_id,
            members=self._seen_by_leader() if leads and with_members else (),
            skip_assignment=skip_assignment and leads,
        )

    def _seen_by_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol or ""),
            )
            for member in self.roster
        )

    # Syncing

    def has_synced(self, member_id: str) -> None:
        """A member has asked for its assignment; when all have, nobody is waited for."""
        self._pending_sync.discard(member_id)
        if not self._pending_sync:
            self.deadlines.cancel(_SYNC)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Store what the leader has assigned, then hand it out; members without one get an empty one."""
        generation = self.generation

        def stored(error: ErrorCode) -> None:
            if self.state is not GroupState.COMPLETING_REBALANCE or self.generation != generation:
                return
            if error is ErrorCode.none:
                self._move_to(GroupState.STABLE)
                self._answer_syncs(error, assignments)
            else:
                self._answer_syncs(error, {})
                self.prepare_rebalance("the assignment could not be stored")

        self.save(self.snapshot(assignments), stored)

    def _answer_syncs(self, error: ErrorCode, assignments: Mapping[str, bytes]) -> None:
        good = error is ErrorCode.none
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
        for member in self.roster:
            answer = SyncAnswer(
                error=error,
                protocol_type=self.protocol_type if good else None,
                protocol=self.protocol if good else None,
                assignment=member.assignment,
            )
            if member.answer_sync(answer):
                self.touch(member)

    def _sync_over(self, generation: int) -> None:
        """Members that joined and never asked for their assignment are gone."""
        synced_states = {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
        if generation == self.generation and self.state in synced_states and self._pending_sync:
            late = sorted(self._pending_sync)
            for member_id in late:
                self.dismiss(member_id)
            self.prepare_rebalance(f"{len(late)} members did not ask for their assignment")

    # Keeping

    def snapshot(self, assignments: Mapping[str, bytes]) -> GroupSnapshot:
        """What another coordinator would need in order to go on, once these are assigned."""
        return GroupSnapshot(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.roster.leader,
            members=tuple(member.snapshot(assignments.get(member.member_id, b"")) for member in self.roster),
            subscribed_topics=self.subscribed_topics,
            state_ms=self.state_ms,
        )

    def unload(self, error: ErrorCode) -> None:
        """The group lives elsewhere, or nowhere, from now on: answer everyone who waits."""
        self._move_to(GroupState.DEAD)
        self.deadlines.clear()
        for member in self.roster:
            member.answer_join(JoinAnswer(error=error, member_id=member.member_id))
            member.answer_sync(SyncAnswer(error=error))

    def _move_to(self, state: GroupState) -> None:
        if self.state not in _BEFORE[state]:
            raise AssertionError(f"group {self.group_id!r} cannot go from {self.state} to {state}")
        self._previous_state, self.state = self.state, state
        self.state_ms = self._clock.now_ms()

    def _learn_subscriptions(self) -> None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            self.subscribed_topics = None
        elif not self.roster:
            self.subscribed_topics = frozenset()
        elif self.protocol is not None:
            self.subscribed_topics = subscribed_topics(
                member.metadata(self.protocol) for member in self.roster
            )


def _session(member_id: str) -> tuple[str, str]:
    return ("session", member_id)
