"""A consumer group of KIP-848: the heartbeats of its members and the requests of administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.classic.embedded_protocol import CONSUMER_PROTOCOL_TYPE
from agent.groups.consumer.classic_protocol import ClassicProtocolHandler
from agent.groups.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    HeartbeatResponse,
)
from agent.groups.consumer.state_machine import ConsumerStateMachine, MemberTimeout
from agent.groups.errors import ErrorCode, GroupError
from catalog.groups.repository import GroupType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.group_settings import GroupSettings
    from agent.groups.consumer.member import ConsumerMember
    from agent.groups.consumer.messages import Assignment, ConsumerGroupState, ConsumerHeartbeat
    from agent.groups.consumer.snapshot import ConsumerGroupSnapshot
    from agent.groups.consumer.state_machine import Downgrade
    from agent.groups.consumer.topics import Selection, TopicView
    from agent.groups.metrics import GroupCounters
    from catalog.config.values import GroupConfig
    from catalog.model import PartitionId
    from core.clock import Clock
    from core.ids import Ids


class ConsumerGroup:
    """One consumer group. Its members may use either protocol; `classic` handles the classic one.

    The group does no I/O and never blocks. `version` rises with every change. The owner of the group stores
    `snapshot()` before it sends a response, and calls `expire` at `next_deadline`. Not safe for threads.
    """

    group_type = GroupType.CONSUMER
    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(
        self,
        group_id: str,
        *,
        settings: GroupSettings,
        clock: Clock,
        ids: Ids,
        counters: GroupCounters | None = None,
        snapshot: ConsumerGroupSnapshot | None = None,
        config: GroupConfig | None = None,
    ) -> None:
        self._machine = ConsumerStateMachine(
            group_id,
            settings=settings,
            clock=clock,
            ids=ids,
            counters=counters,
            snapshot=snapshot,
            config=config,
        )
        self._members = self._machine.members
        self.classic = ClassicProtocolHandler(self._machine)

    # Properties

    @property
    def group_id(self) -> str:
        """The group id."""
        return self._machine.group_id

    @property
    def state(self) -> ConsumerGroupState:
        """The state."""
        return self._machine.state

    @property
    def config(self) -> GroupConfig:
        """The group's own configuration; the owner of the group keeps it up to date."""
        return self._machine.config

    @config.setter
    def config(self, config: GroupConfig) -> None:
        self._machine.config = config

    @property
    def group_epoch(self) -> int:
        """The group epoch."""
        return self._machine.group_epoch

    @property
    def version(self) -> int:
        """The number of changes since the group was loaded."""
        return self._machine.version

    @property
    def downgrade(self) -> Downgrade | None:
        """The reason to convert the group to a classic group; None unless that is due."""
        return self._machine.downgrade

    @property
    def is_dead(self) -> bool:
        """Return True if the group was unloaded."""
        return self._machine.is_dead

    @property
    def is_empty(self) -> bool:
        """Return True if the group has no members."""
        return not self._members

    @property
    def member_count(self) -> int:
        """The number of members, including static members that have left temporarily."""
        return len(self._members)

    @property
    def memory_bytes(self) -> int:
        """About the memory of the members."""
        return self._members.memory_bytes

    def memory_of(self, member_id: str, instance_id: str | None = None) -> int:
        """Return about the memory of a member, or of the static member with this instance; 0 without it."""
        member = self._members.get(member_id) or self._members.of_instance(instance_id or "")
        return 0 if member is None else member.memory_bytes

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`, in seconds of the monotonic clock."""
        return self._machine.deadlines.earliest

    def expire(self) -> None:
        """Fence the members whose timeouts have ended."""
        self._machine.deadlines.expire()
        self._machine.end_removals()

    def postpone_deadlines(self, seconds: float) -> None:
        """Give all members more time, because the coordinator could not do its part."""
        self._machine.deadlines.postpone(seconds)

    def unload(self, error: ErrorCode) -> None:
        """Make the group dead. No request is pending inside, so nothing receives `error`."""
        del error
        self._machine.unload()

    def snapshot(self) -> ConsumerGroupSnapshot:
        """Return the state that another coordinator needs."""
        return self._machine.snapshot()

    def unseen_selections(self, topics: TopicView) -> set[Selection]:
        """Return the patterns that the next request will match with this view for the first time."""
        return self._machine.unseen_selections(topics)

    def sender(self, request: ConsumerHeartbeat) -> ConsumerMember | None:
        """Return the member that seems to send a heartbeat; its epoch may be wrong."""
        return self._members.get(request.member_id) or self._members.of_instance(request.instance_id or "")

    # Heartbeats

    def extend_session_on_arrival(self, request: ConsumerHeartbeat) -> None:
        """Extend the sender's session before `heartbeat` handles the request.

        Otherwise the time that the request waits would count against the member.
        """
        member = self._members.get(request.member_id)
        if member is not None and not member.is_classic and 0 < request.member_epoch == member.epoch:
            self._machine.extend_session(member)

    def extend_session_while_waiting(self, member_id: str) -> None:
        """Extend the session of a member that waits for a heartbeat response."""
        member = self._members.get(member_id)
        if member is not None and not member.is_classic and not member.has_left_temporarily:
            self._machine.extend_session(member)

    def heartbeat(self, request: ConsumerHeartbeat, topics: TopicView) -> HeartbeatResponse:
        """Handle a heartbeat that `check_heartbeat` has accepted. Raises GroupError."""
        if request.is_leaving:
            return self._leave(request)
        self._machine.require_capacity(request.member_id)
        previous, replaced = self._find_or_create(request)
        member = self._machine.admit(
            previous.updated(request),
            previous=previous,
            replaced=replaced,
            owned=request.owned,
            topics=topics,
        )
        self._machine.extend_session(member)
        return HeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._machine.settings.heartbeat_interval_of(self._machine.config),
            assignment=member.assigned if self._must_send_assignment(request, member, previous) else None,
        )

    def _must_send_assignment(
        self, request: ConsumerHeartbeat, member: ConsumerMember, previous: ConsumerMember
    ) -> bool:
        """Return True if the member asks for its assignment, or has not confirmed a changed one.

        Kafka sends a changed assignment once and relies on members to ask again if a response is lost.
        librdkafka does not ask again after a response that arrived later than the heartbeat interval. It
        would never take new partitions nor revoke old ones.
        """
        unconfirmed = self._machine.unconfirmed
        if request.owned == member.assigned:
            unconfirmed.discard(member.member_id)
        elif request.is_full or member.assigned != previous.assigned:
            unconfirmed.add(member.member_id)
        return request.is_full or member.assigned != previous.assigned or member.member_id in unconfirmed

    def _find_or_create(self, request: ConsumerHeartbeat) -> tuple[ConsumerMember, ConsumerMember | None]:
        """Return the member that sends this heartbeat, and the static member whose place it takes.

        Raises GroupError if its epoch is wrong.
        """
        if request.instance_id is not None:
            return self._find_or_create_static(request, request.instance_id)
        member = self._members.get(request.member_id)
        if member is None and request.member_epoch != JOIN_EPOCH:
            raise self._machine.unknown_member(request.member_id)
        if member is None:
            return self._machine.new_member(request.member_id or self._machine.new_member_id()), None
        _check_member_epoch(member, request.member_epoch, request.owned)
        return member, None

    def _find_or_create_static(
        self, request: ConsumerHeartbeat, instance_id: str
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        if request.member_epoch != JOIN_EPOCH:
            member = self._members.require_instance(instance_id, request.member_id)
            _check_member_epoch(member, request.member_epoch, request.owned)
            return member, None
        existing = self._members.of_instance(instance_id)
        if existing is not None and not existing.has_left_temporarily and not existing.is_classic:
            # Kafka refuses this member, too. Here, a join may be stored although its response is an error.
            if existing.member_id == request.member_id:
                return existing, None
            raise GroupError(
                ErrorCode.unreleased_instance_id,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group"
                f" because the instance id is owned by {existing.member_id} member.",
            )
        member_id = request.member_id or self._machine.new_member_id()
        if existing is None:
            return self._members.get(member_id) or self._machine.new_member(member_id), None
        return existing.rejoined_as(member_id), existing

    def _leave(self, request: ConsumerHeartbeat) -> HeartbeatResponse:
        if request.instance_id is None:
            member = self._members.get(request.member_id)
            if member is None:
                raise self._machine.unknown_member(request.member_id)
        else:
            member = self._members.require_instance(request.instance_id, request.member_id)
        if request.instance_id is not None and request.member_epoch == LEAVE_STATIC_EPOCH:
            self._machine.cancel_timeout(MemberTimeout.REVOCATION, member.member_id)
            self._machine.put(member.left_temporarily())
        else:
            self._machine.fence(member.member_id, "it left")
            self._machine.end_removals()
        return HeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)

    # Offsets and administration

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        partitions: Sequence[PartitionId],
        *,
        supports_member_epochs: bool,
    ) -> list[ErrorCode]:
        """Return an error code for each partition, in order, or one code if there are no partitions.

        A member may commit in an earlier epoch the partitions that it has owned since then, because no other
        member has owned them in between (KIP-1251, Kafka's ConsumerGroup.validateOffsetCommit).
        `supports_member_epochs` is True from version 9 of OffsetCommit.
        """
        code = self._check_epoch(member_id, epoch, supports_member_epochs=supports_member_epochs)
        member = self._members.get(member_id)
        if code not in _WRONG_EPOCH or member is None or epoch > member.epoch:
            return [code] * max(1, len(partitions))
        since = [self._machine.owned_since(member_id, each) for each in partitions]
        return [ErrorCode.none if each is not None and each <= epoch else code for each in since] or [code]

    def _check_epoch(self, member_id: str, epoch: int, *, supports_member_epochs: bool) -> ErrorCode:
        if epoch < 0 and not self._members:
            return ErrorCode.none
        member = self._members.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if not supports_member_epochs and not member.is_classic:
            return ErrorCode.unsupported_version
        return _compare_epoch(member, epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return `none` if a member, or a client outside the group, may fetch offsets; else the error."""
        if member_id is None and epoch < 0:
            return ErrorCode.none
        member = self._members.get(member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        return _compare_epoch(member, epoch)

    def check_delete(self) -> ErrorCode:
        """Return `none` if the group has no members and may be deleted, otherwise the error."""
        return ErrorCode.none if self.is_empty else ErrorCode.non_empty_group

    def check_delete_offsets(self) -> ErrorCode:
        """Return `none` if offsets of topics that are not subscribed may be deleted, otherwise the error."""
        return ErrorCode.group_id_not_found if self.is_dead else ErrorCode.none

    def is_subscribed(self, topic: str) -> bool:
        """Return True if a member subscribes to the topic."""
        return topic in self._machine.subscribed_topics

    def describe(self) -> ConsumerGroupDescription:
        """Return the description for administrators."""
        return ConsumerGroupDescription(
            group_id=self.group_id,
            state=self.state,
            group_epoch=self.group_epoch,
            assignment_epoch=self._machine.assignment_epoch,
            assignor=self._members.assignor,
            members=tuple(
                ConsumerMemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=member.epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    topics=member.topics,
                    regex=member.regex,
                    assignment=member.assigned,
                    target=self._machine.target(member.member_id),
                    is_classic=member.is_classic,
                )
                for member in self._members
            ),
        )


_WRONG_EPOCH = frozenset({ErrorCode.stale_member_epoch, ErrorCode.illegal_generation})


def _compare_epoch(member: ConsumerMember, epoch: int) -> ErrorCode:
    if member.epoch == epoch:
        return ErrorCode.none
    return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch


def _check_member_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    """Raise FENCED_MEMBER_EPOCH if the epoch is not the member's.

    The previous epoch is accepted if the member owns no more than its assignment: the response that raised
    its epoch may have been lost. A member that joins again, for example after it was fenced, sends epoch 0.
    """
    if epoch == JOIN_EPOCH:
        return
    is_retry = epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    if epoch > member.epoch or (epoch < member.epoch and not is_retry):
        relation = "greater" if epoch > member.epoch else "smaller"
        raise GroupError(
            ErrorCode.fenced_member_epoch,
            f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the"
            f" group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )
