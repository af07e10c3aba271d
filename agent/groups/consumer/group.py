"""A consumer group of KIP-848: a pure state machine that its coordinator asks and stores.

Members say in heartbeats what they want and what they have. A change of what is wanted raises the group's
epoch; the next heartbeat computes the target assignment of that epoch; every member then goes there at its
own pace (`reconciling`). Rules and errors are those of Kafka's coordinator (GroupMetadataManager.java).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.groups.consumer.assignors import ASSIGNORS, Subscriber
from agent.groups.consumer.checks import check_is_known, check_member_epoch, leaves
from agent.groups.consumer.member import ConsumerMember, MemberState
from agent.groups.consumer.messages import (
    JOINS,
    LEAVES_FOR_A_WHILE,
    NOTHING,
    ConsumerGroupDescription,
    ConsumerGroupState,
    ConsumerMemberDescription,
    HeartbeatAnswer,
)
from agent.groups.consumer.reconciling import reconcile
from agent.groups.consumer.roster import ConsumerRoster, subscription
from agent.groups.consumer.snapshot import PROTOCOL_TYPE, ConsumerGroupSnapshot
from agent.groups.counts import GroupCounts
from agent.groups.deadlines import Deadlines
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from agent.groups.consumer.messages import Assignment, ConsumerHeartbeat
    from agent.groups.consumer.topics import SeenTopic, TopicView
    from agent.groups.settings import GroupSettings
    from bedrock.clock import Clock
    from bedrock.ids import Ids

_log = structlog.get_logger(__name__)


class ConsumerGroup:
    """One group. It does no input or output and never waits; not safe for threads.

    `version` rises with every change. What a member is told must be stored first: whoever owns the group
    stores `snapshot()` and hands the answer out then. It also calls `expire` when `next_deadline` has come.
    """

    def __init__(
        self,
        group_id: str,
        *,
        settings: GroupSettings,
        clock: Clock,
        ids: Ids,
        counts: GroupCounts | None = None,
        snapshot: ConsumerGroupSnapshot | None = None,
    ) -> None:
        kept = snapshot or ConsumerGroupSnapshot(state_ms=clock.now_ms())
        self.group_id = group_id
        self.group_epoch = kept.group_epoch
        self.assignment_epoch = kept.assignment_epoch
        self.state_ms = kept.state_ms
        self.version = 0
        self.subscribed_topics = kept.subscribed_topics
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._counts = counts or GroupCounts()
        self._roster = ConsumerRoster()
        self._targets: dict[str, Assignment] = dict(kept.targets)
        self._topics: dict[str, SeenTopic] = dict(kept.topics)
        self._view: TopicView | None = None
        self._deadlines = Deadlines(clock)
        self._is_dead = False
        for member in kept.members:
            self._roster.put(member)
            self._keep_session(member.member_id)
            self._watch_revocation(member)

    # What it is

    @property
    def protocol_type(self) -> str:
        """As lists of groups name it."""
        return PROTOCOL_TYPE

    @property
    def state(self) -> ConsumerGroupState:
        """Where the group is."""
        if self._is_dead:
            return ConsumerGroupState.DEAD
        if not self._roster:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self._is_reconciled(member) for member in self._roster):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def _is_reconciled(self, member: ConsumerMember) -> bool:
        return member.state is MemberState.STABLE and member.epoch == self.assignment_epoch

    @property
    def is_dead(self) -> bool:
        """Whether it was unloaded."""
        return self._is_dead

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self._roster

    @property
    def member_count(self) -> int:
        """How many members it has, those away for a while among them."""
        return len(self._roster)

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`, in seconds of the monotonic clock."""
        return self._deadlines.earliest

    def expire(self) -> None:
        """Let happen what happens by time alone: sessions end, revocations take too long."""
        self._deadlines.expire()

    def unload(self, error: ErrorCode) -> None:
        """The group lives elsewhere, or nowhere, from now on. Nobody waits inside to be told `error`."""
        del error
        self._is_dead = True
        self._deadlines.clear()

    # Heartbeats

    def heartbeat(self, request: ConsumerHeartbeat, topics: TopicView) -> HeartbeatAnswer:
        """Take a heartbeat that `check_heartbeat` has let pass; raises what the member shall be told."""
        if leaves(request):
            return self._leave(request)
        if len(self._roster) >= self._settings.consumer_max_size and request.member_id not in self._roster:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {self._settings.consumer_max_size}"
                " members.",
            )
        known = self._subscribe(request)
        member = known.updated(request)
        changed = (member.topics, member.regex) != (known.topics, known.regex)
        self._put(member)
        self._notice_topics(topics, changed=changed)
        if self.group_epoch > self.assignment_epoch:
            self._assign(topics)
        member = self._reconcile(member, request.owned)
        self._keep_session(member.member_id)
        news = request.is_full or member.assigned != known.assigned
        return HeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=member.epoch,
            assignment=member.assigned if news else None,
        )

    def _subscribe(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """The member that sends this, new or known, in its right epoch."""
        if request.instance_id is not None:
            return self._subscribe_static(request, request.instance_id)
        known = self._roster.get(request.member_id)
        if known is None and request.member_epoch != JOINS:
            raise self._unknown(request.member_id)
        if known is None:
            return self._newcomer(request)
        check_member_epoch(known, request.member_epoch, request.owned)
        return known

    def _subscribe_static(self, request: ConsumerHeartbeat, instance_id: str) -> ConsumerMember:
        holder = self._roster.of_instance(instance_id)
        if request.member_epoch != JOINS:
            known = check_is_known(holder, instance_id, request.member_id)
            check_member_epoch(known, request.member_epoch, request.owned)
            return known
        if holder is None:
            return self._roster.get(request.member_id) or self._newcomer(request)
        if not holder.is_away:
            raise KafkaError(
                ErrorCode.unreleased_instance_id,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group"
                f" because the instance id is owned by {holder.member_id} member.",
            )
        return self._replace(holder, request.member_id or self._new_member_id())

    def _newcomer(self, request: ConsumerHeartbeat) -> ConsumerMember:
        member_id = request.member_id or self._new_member_id()
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

    def _leave(self, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        member = self._roster.get(request.member_id)
        if request.instance_id is not None:
            holder = self._roster.of_instance(request.instance_id)
            member = check_is_known(holder, request.instance_id, request.member_id)
        if member is None:
            raise self._unknown(request.member_id)
        if request.instance_id is not None and request.member_epoch == LEAVES_FOR_A_WHILE:
            self._deadlines.cancel(_revocation(member.member_id))
            self._put(member.away())
        else:
            self._fence(member.member_id, "it left")
        return HeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)

    # Moving on

    def _notice_topics(self, topics: TopicView, *, changed: bool) -> None:
        """A member wants other topics, or those that are wanted have changed: the group's epoch rises."""
        if topics is self._view and not changed:
            return
        self._view = topics
        if self._see(topics) or changed:
            self.group_epoch += 1
            self.version += 1

    def _see(self, topics: TopicView) -> bool:
        """Note what is subscribed to; tells whether the topics that exist of it have changed."""
        self.subscribed_topics = self._roster.names(topics)
        seen = {name: topics.by_name[name] for name in self.subscribed_topics if name in topics.by_name}
        changed = seen != self._topics
        self._topics = seen
        return changed

    def _assign(self, topics: TopicView) -> None:
        """Compute what every member shall have in the group's epoch."""
        assignor = self._roster.assignor
        subscribers = [
            Subscriber(
                member_id=member.member_id,
                instance_id=member.instance_id,
                topics=frozenset(
                    self._topics[name].topic_id
                    for name in subscription(member, topics)
                    if name in self._topics
                ),
                assigned=self._targets.get(member.member_id, NOTHING),
            )
            for member in self._roster
        ]
        counts = {topic.topic_id: topic.partition_count for topic in self._topics.values()}
        self._targets = ASSIGNORS[assignor](subscribers, counts)
        self.assignment_epoch = self.group_epoch
        self._counts.rebalances += 1
        self.version += 1
        _log.info(
            "a consumer group is assigned anew",
            group=self.group_id,
            epoch=self.group_epoch,
            assignor=assignor,
            members=len(self._roster),
        )

    def _reconcile(self, member: ConsumerMember, owned: Assignment | None) -> ConsumerMember:
        moved = reconcile(
            member,
            target=self._targets.get(member.member_id, NOTHING),
            target_epoch=self.assignment_epoch,
            owned=owned,
            is_free=self._roster.is_free,
        )
        if moved != member:
            self._put(moved)
            self._watch_revocation(moved)
        return moved

    def _put(self, member: ConsumerMember) -> None:
        if self._roster.get(member.member_id) != member:
            if not self._roster:
                self.state_ms = self._clock.now_ms()
            self._roster.put(member)
            self.version += 1

    def _expire(self, member_id: str, reason: str) -> None:
        self._counts.members_expired += 1
        self._fence(member_id, reason)

    def _fence(self, member_id: str, reason: str) -> None:
        """Take a member away; the others get what it had with their next heartbeats."""
        _log.info("a member is out of a consumer group", group=self.group_id, member=member_id, reason=reason)
        self._drop(member_id)
        self._targets.pop(member_id, None)
        self.group_epoch += 1
        if not self._roster:
            self.state_ms = self._clock.now_ms()
            self.subscribed_topics, self._topics = frozenset(), {}
        elif self._view is not None:
            self._see(self._view)

    def _drop(self, member_id: str) -> None:
        self._deadlines.cancel(_session(member_id))
        self._deadlines.cancel(_revocation(member_id))
        self._roster.remove(member_id)
        self.version += 1

    # Time

    def _keep_session(self, member_id: str) -> None:
        timeout_ms = self._settings.consumer_session_timeout_ms
        over = partial(self._expire, member_id, "its session is over")
        self._deadlines.set(_session(member_id), timeout_ms, over)

    def _watch_revocation(self, member: ConsumerMember) -> None:
        """Whoever must give something up has its own rebalance timeout for it."""
        key = _revocation(member.member_id)
        if member.state is MemberState.UNREVOKED:
            over = partial(self._expire, member.member_id, "it did not give up its partitions in time")
            self._deadlines.set(key, member.rebalance_timeout_ms, over)
        else:
            self._deadlines.cancel(key)

    # Offsets and administration

    def check_commit(self, member_id: str, epoch: int, *, knows_epochs: bool) -> ErrorCode:
        """Whether offsets may be committed; `knows_epochs` from version 9 of the request on."""
        if epoch < 0 and not self._roster:
            return ErrorCode.none
        member = self._roster.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if not knows_epochs:
            return ErrorCode.unsupported_version
        return ErrorCode.none if member.epoch == epoch else ErrorCode.stale_member_epoch

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a member may ask for offsets; who is none may."""
        if member_id is None and epoch < 0:
            return ErrorCode.none
        member = self._roster.get(member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        return ErrorCode.none if member.epoch == epoch else ErrorCode.stale_member_epoch

    def check_delete(self) -> ErrorCode:
        """Whether the group may be deleted: only without members."""
        return ErrorCode.none if self.is_empty else ErrorCode.non_empty_group

    def check_delete_offsets(self) -> ErrorCode:
        """Offsets may be deleted at any time; `is_subscribed` protects those in use."""
        return ErrorCode.group_id_not_found if self._is_dead else ErrorCode.none

    def check_classic_leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """What somebody is told who wants members of the classic protocol to leave: there are none here."""
        holder = None if instance_id is None else self._roster.of_instance(instance_id)
        if holder is not None and member_id and holder.member_id != member_id:
            return ErrorCode.fenced_instance_id
        return ErrorCode.unknown_member_id

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
                )
                for member in self._roster
            ),
        )

    def snapshot(self) -> ConsumerGroupSnapshot:
        """All that another coordinator would need in order to go on."""
        return ConsumerGroupSnapshot(
            group_epoch=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
            members=tuple(self._roster),
            targets=dict(self._targets),
            topics=dict(self._topics),
            subscribed_topics=self.subscribed_topics,
            state_ms=self.state_ms,
        )

    def _unknown(self, member_id: str) -> KafkaError:
        return KafkaError(
            ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
        )


def _session(member_id: str) -> tuple[str, str]:
    return ("session", member_id)


def _revocation(member_id: str) -> tuple[str, str]:
    return ("revocation", member_id)
