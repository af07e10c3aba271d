"""Requests of classic-protocol members to a consumer group, as during a migration between the protocols.

To the group they are members like others. Their generation is their member epoch, no member leads, and the
coordinator assigns. Changes reach them in another way:

- The response to a heartbeat asks a member to join again in three cases: the group epoch has risen, the
  member must revoke partitions, or the partitions that it waits for are free.
- A JoinGroup is one step of reconciliation. Its response is sent at once.
- The SyncGroup after it returns the member's assignment.

Members with an eager assignor own nothing when they join, so one JoinGroup takes them to their target.
Cooperative members may need several.

Rules and errors are those of Kafka's coordinator (GroupMetadataManager.java, classicGroup…ToConsumerGroup).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.group_settings import MigrationPolicy
from agent.groups.classic.embedded_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    read_subscription,
    write_assignment,
)
from agent.groups.classic.messages import JoinResponse, SyncResponse
from agent.groups.consumer.member import ConsumerMember, MemberState
from agent.groups.consumer.state_machine import ConsumerStateMachine, Downgrade, MemberTimeout
from agent.groups.errors import ErrorCode, GroupError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.groups.classic.messages import JoinRequest, LeavingMember, MemberIdentity, SyncRequest
    from agent.groups.consumer.member import ClassicMemberMetadata
    from agent.groups.consumer.messages import Assignment
    from agent.groups.consumer.topics import TopicView


class ClassicProtocolHandler:
    """Handler of JoinGroup, SyncGroup, Heartbeat and LeaveGroup requests to one consumer group.

    Raises GroupError for a rejected request.
    """

    def __init__(self, machine: ConsumerStateMachine) -> None:
        self._machine = machine
        self._members = machine.members

    def join(self, request: JoinRequest, topics: TopicView) -> JoinResponse:
        """Add a member or reconcile an existing one. Store the group before sending the response."""
        machine = self._machine
        if machine.settings.group_consumer_migration_policy is MigrationPolicy.DISABLED:
            raise GroupError(
                ErrorCode.inconsistent_group_protocol,
                f"Cannot join the consumer group {machine.group_id} with the classic protocol because the"
                " group migration is disabled.",
            )
        member_id = request.member_id or machine.new_member_id()
        machine.require_capacity(member_id)
        subscription = self._parse_subscription(request)
        is_static = request.instance_id is not None
        if not request.member_id and not is_static and request.requires_known_member_id:
            return JoinResponse(error=ErrorCode.member_id_required, member_id=member_id)
        former = None if request.instance_id is None else self._members.of_instance(request.instance_id)
        previous, replaced = self._find_or_create(request, member_id)
        member = machine.admit(
            previous.joined(request, subscription),
            previous=previous,
            replaced=replaced,
            owned=self._owned_partitions(subscription),
            topics=topics,
        )
        machine.cancel_timeout(MemberTimeout.JOIN, member_id)
        machine.extend_session(member)
        machine.set_timeout(
            MemberTimeout.SYNC, member, member.rebalance_timeout_ms, "it did not send SyncGroup in time"
        )
        if former is not None and not former.is_classic and machine.may_downgrade():
            machine.downgrade = Downgrade.MEMBER_REPLACED
        return JoinResponse(
            generation=member.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol=request.protocols[0].name,
            member_id=member_id,
        )

    def sync(self, request: SyncRequest) -> SyncResponse:
        """Return a member's assignment."""
        member, metadata = self._require_classic(request.member_id, request.instance_id)
        _check_generation(member, request.generation)
        if request.protocol_type not in {None, CONSUMER_PROTOCOL_TYPE} or request.protocol not in {
            None,
            metadata.protocols[0].name,
        }:
            raise GroupError(ErrorCode.inconsistent_group_protocol)
        if self._machine.group_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._require_join(member)
            raise GroupError(
                ErrorCode.rebalance_in_progress, f"Member {member.member_id} must join the new group epoch."
            )
        self._machine.cancel_timeout(MemberTimeout.SYNC, member.member_id)
        self._machine.extend_session(member)
        subscription = read_subscription(metadata.protocols)
        return SyncResponse(
            protocol_type=request.protocol_type,
            protocol=request.protocol,
            assignment=write_assignment(
                0 if subscription is None else subscription.version, self._named_partitions(member.assigned)
            ),
        )

    def heartbeat(self, identity: MemberIdentity) -> ErrorCode:
        """Extend a member's session. `rebalance_in_progress` asks the member to join again."""
        member, _ = self._require_classic(identity.member_id, identity.instance_id)
        _check_generation(member, identity.generation)
        self._machine.extend_session(member)
        if (
            member.epoch < self._machine.group_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and self._is_target_free(member))
        ):
            self._require_join(member)
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Remove members of either protocol, as administrators may; return an error code for each."""
        errors = [self._remove(each) for each in leaving]
        self._machine.end_removals()
        return errors

    def _remove(self, leaving: LeavingMember) -> ErrorCode:
        try:
            if leaving.instance_id is None or leaving.member_id:
                member = self._require_member(leaving.member_id, leaving.instance_id)
            else:  # an administrator names the instance id alone
                static = self._members.of_instance(leaving.instance_id)
                member = self._require_member("" if static is None else static.member_id, leaving.instance_id)
        except GroupError as error:
            return error.code
        self._machine.fence(member.member_id, f"it left: {leaving.reason or 'no reason given'}")
        return ErrorCode.none

    def _parse_subscription(self, request: JoinRequest) -> Subscription:
        """Return the member's subscription.

        Raises INCONSISTENT_GROUP_PROTOCOL unless the member is a consumer and shares a protocol with the
        other classic members.
        """
        others = [member.classic for member in self._members if member.classic is not None]
        names = [{protocol.name for protocol in metadata.protocols} for metadata in others]
        common = {protocol.name for protocol in request.protocols}.intersection(*names)
        subscription = read_subscription(request.protocols)
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common or subscription is None:
            raise GroupError(
                ErrorCode.inconsistent_group_protocol,
                f"Member {request.member_id}'s protocols are not supported.",
            )
        return subscription

    def _find_or_create(
        self, request: JoinRequest, member_id: str
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        """Return the member that joins, and the static member whose place it takes."""
        if request.instance_id is None:
            return self._members.get(member_id) or self._machine.new_member(member_id), None
        if request.member_id:
            return self._members.require_instance(request.instance_id, member_id), None
        static = self._members.of_instance(request.instance_id)
        if static is None:
            return self._machine.new_member(member_id), None
        return static.rejoined_as(member_id), static

    def _require_classic(
        self, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerMember, ClassicMemberMetadata]:
        """Return a member of the classic protocol; raise UNKNOWN_MEMBER_ID for one of the other protocol."""
        member = self._require_member(member_id, instance_id)
        if member.classic is None:
            raise self._machine.unknown_member(member_id)
        return member, member.classic

    def _require_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return a member of either protocol."""
        if instance_id is not None:
            return self._members.require_instance(instance_id, member_id)
        member = self._members.get(member_id)
        if member is None:
            raise self._machine.unknown_member(member_id)
        return member

    def _require_join(self, member: ConsumerMember) -> None:
        """Start the join timeout of a member that was asked to join again, unless it has started."""
        if not self._machine.has_timeout(MemberTimeout.JOIN, member.member_id):
            self._machine.set_timeout(
                MemberTimeout.JOIN, member, member.rebalance_timeout_ms, "it did not join again in time"
            )

    def _is_target_free(self, member: ConsumerMember) -> bool:
        """Return True if all partitions that the member misses are free."""
        missing = self._machine.target(member.member_id) - member.assigned
        return all(map(self._members.is_free, missing))

    def _owned_partitions(self, subscription: Subscription) -> Assignment:
        """Return the partitions that a member owns, of topics that exist."""
        topics = self._machine.topics
        return frozenset(
            PartitionId(topics[name].topic_id, partition)
            for name, partition in subscription.owned
            if name in topics
        )

    def _named_partitions(self, assignment: Assignment) -> list[tuple[str, int]]:
        names = {topic.topic_id: name for name, topic in self._machine.topics.items()}
        return [(names[each.topic_id], each.partition) for each in assignment if each.topic_id in names]


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if member.epoch != generation:
        raise GroupError(
            ErrorCode.illegal_generation,
            f"Generation {generation} is not the epoch {member.epoch} of member {member.member_id}.",
        )
