"""What moves a consumer group on: topics and subscriptions that change, targets, sessions that end.

A change of what is wanted raises the group's epoch; `_assign` computes the target assignment of that epoch;
every member then goes there at its own pace (`reconciling`).
"""

from __future__ import annotations

from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.groups.consumer.assignment import reconcile
from agent.groups.consumer.assignors import ASSIGNORS, Subscriber
from agent.groups.consumer.member import MemberState
from agent.groups.consumer.members import ConsumerRoster, subscription
from agent.groups.consumer.messages import NOTHING, ConsumerGroupState
from agent.groups.consumer.snapshot import PROTOCOL_TYPE, ConsumerGroupSnapshot
from agent.groups.counts import GroupCounts
from agent.groups.deadlines import Deadlines
from catalog.config.group_config import GroupConfig

if TYPE_CHECKING:
    from agent.group_settings import GroupSettings
    from agent.groups.consumer.member import ConsumerMember
    from agent.groups.consumer.messages import Assignment
    from agent.groups.consumer.topics import SeenTopic, TopicView
    from agent.kafka.errors import ErrorCode
    from catalog.model import PartitionId
    from core.clock import Clock
    from core.ids import Ids

_log = structlog.get_logger(__name__)


class Waiting(Enum):
    """What a member is waited for, each within a time of its own."""

    SESSION = auto()
    REVOCATION = auto()
    JOIN = auto()
    SYNC = auto()


class Downgrade(Enum):
    """Why a group is to be a classic one now: whoever owns it puts that in its place.

    It has members then, and all of them speak the classic protocol.
    """

    AFTER_A_LEAVE = auto()
    AFTER_A_REPLACEMENT = auto()


class ConsumerStateMachine:
    """A group's state, apart from what members and administrators say to it (`ConsumerGroup` takes that)."""

    def __init__(
        self,
        group_id: str,
        *,
        settings: GroupSettings,
        clock: Clock,
        ids: Ids,
        counts: GroupCounts | None = None,
        snapshot: ConsumerGroupSnapshot | None = None,
        config: GroupConfig | None = None,
    ) -> None:
        kept = snapshot or ConsumerGroupSnapshot(state_ms=clock.now_ms())
        self.group_id = group_id
        # Whoever owns the group keeps this up to date.
        self.config = config or GroupConfig()
        self.group_epoch = kept.group_epoch
        self.assignment_epoch = kept.assignment_epoch
        self.state_ms = kept.state_ms
        self.version = 0
        self.downgrade: Downgrade | None = None
        self.subscribed_topics = kept.subscribed_topics
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._counts = counts or GroupCounts()
        self._roster = ConsumerRoster()
        self._targets: dict[str, Assignment] = dict(kept.targets)
        # By member: the epoch since which it has each of its partitions, as far as is known (KIP-1251).
        self._since: dict[str, dict[PartitionId, int]] = {}
        # Members that were told of a change, and have not said since that they have what they may have.
        self._unheard: set[str] = set()
        self._topics: dict[str, SeenTopic] = dict(kept.topics)
        self._view: TopicView | None = None
        self._deadlines = Deadlines(clock)
        self._is_dead = False
        for member in kept.members:
            self._roster.put(member)
            self._note_epochs(member)
            self._keep_session(member)
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

    # Moving on

    def patterns_unseen_in(self, topics: TopicView) -> set[str]:
        """The patterns that it will ask of these topics: its members', unless it has seen them already."""
        return set() if topics is self._view else self._roster.patterns

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

    def _admit(
        self,
        member: ConsumerMember,
        *,
        known: ConsumerMember,
        owned: Assignment | None,
        topics: TopicView,
    ) -> ConsumerMember:
        """Take what a member says of itself, and let it go as far as it may; `known` is how it was known."""
        # The first member begins the first epoch, though it may want no topic: 0 is that of nobody.
        changed = self.group_epoch == 0 or (member.topics, member.regex) != (known.topics, known.regex)
        self._put(member)
        self._notice_topics(topics, changed=changed)
        if self.group_epoch > self.assignment_epoch:
            self._assign(topics)
        return self._reconcile(member, owned)

    def _put(self, member: ConsumerMember) -> None:
        if self._roster.get(member.member_id) != member:
            if not self._roster:
                self.state_ms = self._clock.now_ms()
            self._roster.put(member)
            self._note_epochs(member)
            self.version += 1

    def _note_epochs(self, member: ConsumerMember) -> None:
        """Since when it has what it has: after a failover, since the epoch that it was in then."""
        known = self._since.get(member.member_id, {})
        self._since[member.member_id] = {each: known.get(each, member.epoch) for each in member.owned}

    def _expire(self, member_id: str, reason: str) -> None:
        self._counts.members_expired += 1
        self._fence(member_id, reason)

    def _fence(self, member_id: str, reason: str) -> None:
        """Take a member away; the others get what it had with their next heartbeats."""
        _log.info("a member is out of a consumer group", group=self.group_id, member=member_id, reason=reason)
        if self._leaves_classic_members_alone(member_id):
            self.downgrade = Downgrade.AFTER_A_LEAVE
        self._drop(member_id)
        self._targets.pop(member_id, None)
        if not self._roster:
            self.downgrade = None  # those who were left have gone at the same time
        if self.downgrade is not None:
            return  # those who are left are in this epoch, and called to rebalance by the classic group
        self.group_epoch += 1
        if not self._roster:
            self.state_ms = self._clock.now_ms()
            self.subscribed_topics, self._topics = frozenset(), {}
        elif self._view is not None:
            self._see(self._view)

    def _leaves_classic_members_alone(self, member_id: str) -> bool:
        """Whether the group is to be classic without this member."""
        others = [member for member in self._roster if member.member_id != member_id]
        return (
            self._settings.group_consumer_migration_policy.allows_downgrade
            and 0 < len(others) <= self._settings.group_max_size
            and all(member.is_classic for member in others)
            and len(others) < len(self._roster)
            and not self._roster[member_id].is_classic
        )

    def _drop(self, member_id: str) -> None:
        for kind in Waiting:
            self._deadlines.cancel((kind, member_id))
        self._roster.remove(member_id)
        self._since.pop(member_id, None)
        self._unheard.discard(member_id)
        self.version += 1

    # Time

    def _keep_session(self, member: ConsumerMember) -> None:
        side = member.classic
        timeout_ms = (
            self._settings.session_timeout_of(self.config) if side is None else side.session_timeout_ms
        )
        self._wait_for(Waiting.SESSION, member, timeout_ms, "its session is over")

    def _forgive(self, member: ConsumerMember) -> None:
        """The member need not give anything up any more."""
        self._deadlines.cancel((Waiting.REVOCATION, member.member_id))

    def _watch_revocation(self, member: ConsumerMember) -> None:
        """Whoever must give something up has its own rebalance timeout for it.

        Members of the classic protocol are called to join again, and have as long for that.
        """
        if member.state is MemberState.UNREVOKED and not member.is_classic:
            timeout_ms = member.rebalance_timeout_ms
            self._wait_for(
                Waiting.REVOCATION, member, timeout_ms, "it did not give up its partitions in time"
            )
        else:
            self._forgive(member)

    def _wait_for(self, what: Waiting, member: ConsumerMember, timeout_ms: int, otherwise: str) -> None:
        """Take the member away when nothing cancels this or puts it off in time."""
        over = partial(self._expire, member.member_id, otherwise)
        self._deadlines.set((what, member.member_id), timeout_ms, over)

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
