"""A consumer group of KIP-848: a pure state machine that its coordinator asks and stores.

Members say in heartbeats what they want and what they have. A change of what is wanted raises the group's
epoch; the next heartbeat computes the target assignment of that epoch; every member then goes there at its
own pace (`reconciling`). Rules and errors are those of Kafka's coordinator (GroupMetadataManager.java).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.consumer.checks import check_is_known, check_member_epoch, leaves
from agent.groups.consumer.classic_members import ClassicMembers
from agent.groups.consumer.messages import (
    JOINS,
    LEAVES_FOR_A_WHILE,
    NOTHING,
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    HeartbeatAnswer,
)
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.groups.consumer.member import ConsumerMember
    from agent.groups.consumer.messages import ConsumerHeartbeat
    from agent.groups.consumer.topics import TopicView
    from catalog.model import PartitionId


class ConsumerGroup(ClassicMembers):
    """One group, whose members may speak either protocol.

    It does no input or output and never waits; not safe for threads.
    `version` rises with every change. What a member is told must be stored first: whoever owns the group
    stores `snapshot()` and hands the answer out then. It also calls `expire` when `next_deadline` has come.
    """

    # Heartbeats

    def hear(self, request: ConsumerHeartbeat) -> None:
        """Keep the session of whoever sent this, which `heartbeat` takes later: the wait is not its own."""
        member = self._roster.get(request.member_id)
        if member is not None and not member.is_classic and 0 < request.member_epoch == member.epoch:
            self._keep_session(member)

    def stays(self, member_id: str) -> None:
        """Keep the session of a member that waits for the answer to its heartbeat."""
        member = self._roster.get(member_id)
        if member is not None and not member.is_classic and not member.is_away:
            self._keep_session(member)

    def heartbeat(self, request: ConsumerHeartbeat, topics: TopicView) -> HeartbeatAnswer:
        """Take a heartbeat that `check_heartbeat` has let pass; raises what the member shall be told."""
        if leaves(request):
            return self._leave(request)
        self._require_room(request.member_id)
        known = self._subscribe(request)
        member = self._admit(known.updated(request), known=known, owned=request.owned, topics=topics)
        self._keep_session(member)
        return HeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_of(self.config),
            assignment=member.assigned if self._is_to_be_told(request, member, known) else None,
        )

    def _is_to_be_told(
        self, request: ConsumerHeartbeat, member: ConsumerMember, known: ConsumerMember
    ) -> bool:
        """Whether it is told what it may have: when it asks, and from a change on until it says it has that.

        Kafka tells of a change once, and relies on members to ask when an answer does not come. librdkafka
        does not when one comes later than the heartbeat interval: it would never take what it was given, nor
        give up what it was to.
        """
        if request.owned == member.assigned:
            self._unheard.discard(member.member_id)
        elif request.is_full or member.assigned != known.assigned:
            self._unheard.add(member.member_id)
        return request.is_full or member.assigned != known.assigned or member.member_id in self._unheard

    def _subscribe(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """The member that sends this, new or known, in its right epoch."""
        if request.instance_id is not None:
            return self._subscribe_static(request, request.instance_id)
        known = self._roster.get(request.member_id)
        if known is None and request.member_epoch != JOINS:
            raise self._unknown(request.member_id)
        if known is None:
            return self._newcomer(request.member_id or self._new_member_id())
        check_member_epoch(known, request.member_epoch, request.owned)
        return known

    def _subscribe_static(self, request: ConsumerHeartbeat, instance_id: str) -> ConsumerMember:
        holder = self._roster.of_instance(instance_id)
        if request.member_epoch != JOINS:
            known = check_is_known(holder, instance_id, request.member_id)
            check_member_epoch(known, request.member_epoch, request.owned)
            return known
        if holder is None:
            member_id = request.member_id or self._new_member_id()
            return self._roster.get(member_id) or self._newcomer(member_id)
        if not holder.is_away and not holder.is_classic:
            raise KafkaError(
                ErrorCode.unreleased_instance_id,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group"
                f" because the instance id is owned by {holder.member_id} member.",
            )
        return self._replace(holder, request.member_id or self._new_member_id())

    def _leave(self, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        member = self._roster.get(request.member_id)
        if request.instance_id is not None:
            holder = self._roster.of_instance(request.instance_id)
            member = check_is_known(holder, request.instance_id, request.member_id)
        if member is None:
            raise self._unknown(request.member_id)
        if request.instance_id is not None and request.member_epoch == LEAVES_FOR_A_WHILE:
            self._forgive(member)
            self._put(member.away())
        else:
            self._fence(member.member_id, "it left")
        return HeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)

    # Offsets and administration

    def check_commit(self, member_id: str, epoch: int, *, knows_epochs: bool) -> ErrorCode:
        """Whether offsets may be committed; `knows_epochs` from version 9 of the request on."""
        if epoch < 0 and not self._roster:
            return ErrorCode.none
        member = self._roster.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if not knows_epochs and not member.is_classic:
            return ErrorCode.unsupported_version
        return _check_epoch(member, epoch)

    def check_commits(
        self, member_id: str, epoch: int, partitions: Sequence[PartitionId], *, knows_epochs: bool
    ) -> list[ErrorCode]:
        """An error for each partition, in order, and one where there is none.

        A member that has gone further meanwhile may still commit in an earlier epoch what it has had since
        then: nobody else had it (KIP-1251, Kafka's ConsumerGroup.validateOffsetCommit).
        """
        code = self.check_commit(member_id, epoch, knows_epochs=knows_epochs)
        member = self._roster.get(member_id)
        if code not in _WRONG_EPOCH or member is None or epoch > member.epoch:
            return [code] * max(1, len(partitions))
        since = self._since[member_id]
        return [
            ErrorCode.none if each in since and since[each] <= epoch else code for each in partitions
        ] or [code]

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a member may ask for offsets; who is none may."""
        if member_id is None and epoch < 0:
            return ErrorCode.none
        member = self._roster.get(member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        return _check_epoch(member, epoch)

    def check_delete(self) -> ErrorCode:
        """Whether the group may be deleted: only without members."""
        return ErrorCode.none if self.is_empty else ErrorCode.non_empty_group

    def check_delete_offsets(self) -> ErrorCode:
        """Offsets may be deleted at any time; `is_subscribed` protects those in use."""
        return ErrorCode.group_id_not_found if self._is_dead else ErrorCode.none

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads this topic."""
        return topic in self.subscribed_topics

    def describe(self) -> ConsumerGroupDescription:
        """The group for administrators."""
        return ConsumerGroupDescription(
            group_id=self.group_id,
            state=self.state,
            group_epoch=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
            assignor=self._roster.assignor,
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
                    target=self._targets.get(member.member_id, NOTHING),
                    is_classic=member.is_classic,
                )
                for member in self._roster
            ),
        )


_WRONG_EPOCH = frozenset({ErrorCode.stale_member_epoch, ErrorCode.illegal_generation})


def _check_epoch(member: ConsumerMember, epoch: int) -> ErrorCode:
    if member.epoch == epoch:
        return ErrorCode.none
    return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch
