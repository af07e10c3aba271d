"""Members of the classic protocol in a consumer group, as while a group is rolled from one to the other.

To the group they are members like others: their generation is their epoch, nobody leads, and the coordinator
assigns. Only how they learn of it differs. A heartbeat tells them to join again when the group's epoch has
risen, when they must give something up, and when what they wait for is free; a join is one step of
reconciliation, answered at once; the sync behind it brings what they may read. Those that rebalance eagerly
own nothing when they join, and are where they shall be after one join; cooperative ones may need several.

Rules and errors are those of Kafka's coordinator (GroupMetadataManager.java, classicGroup…ToConsumerGroup).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from agent.group_settings import MigrationPolicy
from agent.groups.classic.embedded_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    read_subscription,
    write_assignment,
)
from agent.groups.consumer.checks import check_is_known
from agent.groups.consumer.member import ConsumerMember, MemberState
from agent.groups.consumer.messages import NOTHING
from agent.groups.consumer.state_machine import ConsumerStateMachine, Downgrade, Waiting
from agent.groups.messages import JoinAnswer, SyncAnswer
from agent.kafka.errors import ErrorCode, KafkaError
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.groups.consumer.member import ClassicSide
    from agent.groups.consumer.messages import Assignment
    from agent.groups.consumer.topics import TopicView
    from agent.groups.messages import JoinRequest, LeavingMember, MemberStamp, SyncRequest

_log = structlog.get_logger(__name__)


class ClassicMembers(ConsumerStateMachine):
    """What the classic protocol asks of a consumer group. Refusals are raised."""

    def join(self, request: JoinRequest, topics: TopicView) -> JoinAnswer:
        """Let a member in, or a step further; what it is told must be stored first."""
        if self._settings.group_consumer_migration_policy is MigrationPolicy.DISABLED:
            raise KafkaError(
                ErrorCode.inconsistent_group_protocol,
                f"Cannot join the consumer group {self.group_id} with the classic protocol because the group"
                " migration is disabled.",
            )
        member_id = request.member_id or self._new_member_id()
        self._require_room(member_id)
        said = self._subscription(request)
        is_static = request.instance_id is not None
        if not request.member_id and not is_static and request.requires_known_member_id:
            return JoinAnswer(error=ErrorCode.member_id_required, member_id=member_id)
        holder = self._roster.of_instance(request.instance_id) if request.instance_id is not None else None
        known = self._known(request, member_id)
        member = self._admit(known.joined(request, said), known=known, owned=self._owned(said), topics=topics)
        self._deadlines.cancel((Waiting.JOIN, member_id))
        self._keep_session(member)
        self._wait_for(Waiting.SYNC, member, member.rebalance_timeout_ms, "it did not ask for its assignment")
        if holder is not None and not holder.is_classic and self._is_to_be_classic():
            self.downgrade = Downgrade.AFTER_A_REPLACEMENT
        return JoinAnswer(
            generation=member.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol=request.protocols[0].name,
            member_id=member_id,
        )

    def sync(self, request: SyncRequest) -> SyncAnswer:
        """What a member may read."""
        member, side = self._classic(request.member_id, request.instance_id)
        _check_generation(member, request.generation)
        if request.protocol_type not in {None, CONSUMER_PROTOCOL_TYPE} or request.protocol not in {
            None,
            side.protocols[0].name,
        }:
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if self.group_epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._call(member)
            raise KafkaError(
                ErrorCode.rebalance_in_progress, f"Member {member.member_id} should join again to catch up."
            )
        self._deadlines.cancel((Waiting.SYNC, member.member_id))
        self._keep_session(member)
        said = read_subscription(side.protocols)
        return SyncAnswer(
            protocol_type=request.protocol_type,
            protocol=request.protocol,
            assignment=write_assignment(0 if said is None else said.version, self._named(member.assigned)),
        )

    def beat(self, stamp: MemberStamp) -> ErrorCode:
        """Keep a member's session; `rebalance_in_progress` calls it to join again."""
        member, _ = self._classic(stamp.member_id, stamp.instance_id)
        _check_generation(member, stamp.generation)
        self._keep_session(member)
        if (
            member.epoch < self.group_epoch
            or member.state is MemberState.UNREVOKED
            or (member.state is MemberState.UNRELEASED and self._is_waited_for_no_more(member))
        ):
            self._call(member)
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Let members go, those of the other protocol too, as administrators ask; an error for each."""
        return [self._leave_one(each) for each in leaving]

    def _leave_one(self, leaving: LeavingMember) -> ErrorCode:
        try:
            if leaving.instance_id is None or leaving.member_id:
                member = self._member(leaving.member_id, leaving.instance_id)
            else:  # an administrator names the instance alone
                holder = self._roster.of_instance(leaving.instance_id)
                member = self._member("" if holder is None else holder.member_id, leaving.instance_id)
        except KafkaError as error:
            return error.code
        self._fence(member.member_id, f"it left: {leaving.reason or 'no reason given'}")
        return ErrorCode.none

    # Who joins

    def _subscription(self, request: JoinRequest) -> Subscription:
        """What the member says; raises unless its protocols are those of consumers, and common to all."""
        sides = [member.classic for member in self._roster if member.classic is not None]
        known = [{protocol.name for protocol in side.protocols} for side in sides]
        common = {protocol.name for protocol in request.protocols}.intersection(*known)
        said = read_subscription(request.protocols)
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common or said is None:
            raise KafkaError(
                ErrorCode.inconsistent_group_protocol,
                f"Member {request.member_id}'s protocols are not supported.",
            )
        return said

    def _known(self, request: JoinRequest, member_id: str) -> ConsumerMember:
        """The member that joins, new or known; a static one takes the place of whoever has its instance."""
        if request.instance_id is None:
            return self._roster.get(member_id) or self._newcomer(member_id)
        holder = self._roster.of_instance(request.instance_id)
        if request.member_id:
            return check_is_known(holder, request.instance_id, member_id)
        return self._newcomer(member_id) if holder is None else self._replace(holder, member_id)

    def _require_room(self, member_id: str) -> None:
        most = self._settings.group_consumer_max_size
        if len(self._roster) >= most and member_id not in self._roster:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def _newcomer(self, member_id: str) -> ConsumerMember:
        _log.info("a member joins a consumer group", group=self.group_id, member=member_id)
        return ConsumerMember(member_id=member_id)

    def _new_member_id(self) -> str:
        return str(self._ids.new_uuid())

    def _replace(self, holder: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back: it takes the place of its former self."""
        member = holder.renamed(member_id)
        self._drop(holder.member_id)
        if holder.member_id in self._targets:
            self._targets[member_id] = self._targets.pop(holder.member_id)
        self._put(member)
        return member

    # Whoever is in

    def _classic(self, member_id: str, instance_id: str | None) -> tuple[ConsumerMember, ClassicSide]:
        """A member of the classic protocol; those of the other one are strangers here."""
        member = self._member(member_id, instance_id)
        if member.classic is None:
            raise self._unknown(member_id)
        return member, member.classic

    def _member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """A member, whichever protocol it speaks."""
        if instance_id is None:
            member = self._roster.get(member_id)
        else:
            member = check_is_known(self._roster.of_instance(instance_id), instance_id, member_id)
        if member is None:
            raise self._unknown(member_id)
        return member

    def _call(self, member: ConsumerMember) -> None:
        """It shall join again, within its rebalance timeout from the first call on."""
        if not self._deadlines.is_set((Waiting.JOIN, member.member_id)):
            timeout_ms = member.rebalance_timeout_ms
            self._wait_for(Waiting.JOIN, member, timeout_ms, "it did not join again in time")

    def _is_waited_for_no_more(self, member: ConsumerMember) -> bool:
        """Whether all that it shall have, and has not, is free by now."""
        missing = self._targets.get(member.member_id, NOTHING) - member.assigned
        return all(map(self._roster.is_free, missing))

    def _is_to_be_classic(self) -> bool:
        return (
            self._settings.group_consumer_migration_policy.allows_downgrade
            and len(self._roster) <= self._settings.group_max_size
            and all(member.is_classic for member in self._roster)
        )

    def _owned(self, said: Subscription) -> Assignment:
        """What a member says that it has, of topics that there are."""
        return frozenset(
            PartitionId(self._topics[name].topic_id, number)
            for name, number in said.owned
            if name in self._topics
        )

    def _named(self, assignment: Assignment) -> list[tuple[str, int]]:
        names = {topic.topic_id: name for name, topic in self._topics.items()}
        return [(names[each.topic_id], each.partition) for each in assignment if each.topic_id in names]

    def _unknown(self, member_id: str) -> KafkaError:
        return KafkaError(
            ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
        )


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if member.epoch != generation:
        raise KafkaError(
            ErrorCode.illegal_generation,
            f"Generation {generation} is not the epoch {member.epoch} of member {member.member_id}.",
        )
