"""The state machine of a consumer group.

1. A changed subscription or topic raises the group epoch.
2. The next heartbeat computes the target assignment of that epoch.
3. Each member reconciles its assignment with its target, at its own pace (`reconciliation`).

Rules and errors are those of Kafka's coordinator (GroupMetadataManager.java).
"""

from __future__ import annotations

from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from agent.groups.consumer.assignors import ASSIGNORS, Subscriber
from agent.groups.consumer.member import ConsumerMember, MemberState
from agent.groups.consumer.members import ConsumerMembers
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerGroupState
from agent.groups.consumer.reconciliation import reconcile
from agent.groups.consumer.snapshot import ConsumerGroupSnapshot
from agent.groups.deadlines import Deadlines
from agent.groups.errors import ErrorCode, GroupError
from agent.groups.metrics import GroupCounters
from catalog.config.values import GroupConfig

if TYPE_CHECKING:
    from uuid import UUID

    from agent.group_settings import GroupSettings
    from agent.groups.consumer.messages import Assignment
    from agent.groups.consumer.topics import Selection, TopicMetadata, TopicView
    from catalog.model import PartitionId
    from core.clock import Clock
    from core.ids import Ids

_log = structlog.get_logger(__name__)


MAX_SUBSCRIPTIONS: Final = 1_000_000
"""Bound on the topics of all members, each counted once for each member: 0.5 s of work for an assignment."""

MAX_PATTERNS: Final = 64

_Subscription: TypeAlias = "tuple[frozenset[str], Selection | None]"


class MemberTimeout(Enum):
    """The timeouts of a member. A member whose timeout ends is fenced."""

    SESSION = auto()
    REVOCATION = auto()
    JOIN = auto()
    SYNC = auto()


class Downgrade(Enum):
    """Reason why the owner of a group must convert it to a classic group now.

    The group then has members, and all of them use the classic protocol.
    """

    MEMBER_LEFT = auto()
    MEMBER_REPLACED = auto()


class ConsumerStateMachine:
    """Members, epochs, target assignment and timeouts of a consumer group.

    `version` rises with every change that must be stored. Not safe for threads.
    """

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
        initial = snapshot or ConsumerGroupSnapshot(state_ms=clock.now_ms())
        self.group_id = group_id
        self.settings = settings
        self.config = config or GroupConfig()
        self.group_epoch = initial.group_epoch
        self.assignment_epoch = initial.assignment_epoch
        self.state_ms = initial.state_ms
        self.version = 0
        self.downgrade: Downgrade | None = None
        self.subscribed_topics = initial.subscribed_topics
        self.topics: dict[str, TopicMetadata] = dict(initial.topics)
        self.members = ConsumerMembers()
        # Members that have not confirmed their last changed assignment yet. A response of the previous
        # coordinator may have been lost.
        self.unconfirmed: set[str] = {member.member_id for member in initial.members}
        self.deadlines = Deadlines(clock)
        self.is_dead = False
        self._clock = clock
        self._ids = ids
        self._counters = counters or GroupCounters()
        self._targets: dict[str, Assignment] = dict(initial.targets)
        # By member and partition: the member epoch since which the member owns the partition (KIP-1251).
        self._owned_since: dict[str, dict[PartitionId, int]] = {}
        self._view: TopicView | None = None
        self._matches: dict[str, frozenset[str]] = {}  # by member: the topics that match its pattern
        self._has_removals = False
        for member in initial.members:
            self.members.put(member)
            self._record_ownership(member)
            self.extend_session(member)
            self._update_revocation_timeout(member)

    @property
    def state(self) -> ConsumerGroupState:
        """The state."""
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self._is_reconciled(member) for member in self.members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def _is_reconciled(self, member: ConsumerMember) -> bool:
        return member.state is MemberState.STABLE and member.epoch == self.assignment_epoch

    def unload(self) -> None:
        """Make the group dead and cancel its timeouts."""
        self.is_dead = True
        self.deadlines.clear()

    def target(self, member_id: str) -> Assignment:
        """Return a member's target assignment."""
        return self._targets.get(member_id, EMPTY_ASSIGNMENT)

    def owned_since(self, member_id: str, partition: PartitionId) -> int | None:
        """Return the epoch since which a member owns a partition; None if it does not own it."""
        return self._owned_since[member_id].get(partition)

    # Members

    def require_capacity(self, member_id: str) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the group is full and this is not one of its members."""
        max_size = self.settings.group_consumer_max_size
        if len(self.members) >= max_size and member_id not in self.members:
            raise GroupError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {max_size} members.",
            )

    def new_member(self, member_id: str) -> ConsumerMember:
        """Return a member that is not in the group yet."""
        _log.debug("a member joins a consumer group", group=self.group_id, member=member_id)
        return ConsumerMember(member_id=member_id)

    def new_member_id(self) -> str:
        """Return a random member id."""
        return str(self._ids.new_uuid())

    def unknown_member(self, member_id: str) -> GroupError:
        """Return UNKNOWN_MEMBER_ID for a member id."""
        return GroupError(
            ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
        )

    def admit(
        self,
        member: ConsumerMember,
        *,
        previous: ConsumerMember,
        replaced: ConsumerMember | None = None,
        owned: Assignment | None,
        topics: TopicView,
    ) -> ConsumerMember:
        """Add or update a member and reconcile it; return the member after its next step.

        `previous` is the member before the request, and `replaced` the static member whose place it takes.
        `owned` are the partitions that the request lists. A GroupError leaves the group as it was.
        """
        # The first member starts epoch 1 even if it subscribes to no topic, because 0 means joining.
        changed = self.group_epoch == 0 or _subscription(member, topics) != _subscription(previous, topics)
        if changed:
            self._require_manageable(member, replaced, topics)
        if replaced is not None:
            self._replace_static_member(replaced, member.member_id)
        self.put(member)
        self._apply_topics(topics, subscriptions_changed=changed)
        if self.group_epoch > self.assignment_epoch:
            self._compute_targets(topics)
        reconciled = reconcile(
            member,
            target=self.target(member.member_id),
            target_epoch=self.assignment_epoch,
            owned=owned,
            is_free=self.members.is_free,
        )
        if reconciled != member:
            self.put(reconciled)
            self._update_revocation_timeout(reconciled)
        return reconciled

    def _require_manageable(
        self, member: ConsumerMember, replaced: ConsumerMember | None, topics: TopicView
    ) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if an assignment to all members would take the event loop too long."""
        own = {member.member_id} if replaced is None else {member.member_id, replaced.member_id}
        others = [each for each in self.members if each.member_id not in own]
        pairs = sum([_subscription_size(each, topics) for each in (member, *others)])
        if pairs > MAX_SUBSCRIPTIONS or len({each.regex for each in (member, *others)}) > MAX_PATTERNS:
            raise GroupError(
                ErrorCode.group_max_size_reached,
                f"The members of a consumer group can have {MAX_SUBSCRIPTIONS} subscriptions to topics and"
                f" {MAX_PATTERNS} regular expressions in all.",
            )

    def put(self, member: ConsumerMember) -> None:
        """Add a member or replace the member with the same id."""
        if self.members.get(member.member_id) != member:
            if not self.members:
                self.state_ms = self._clock.now_ms()
            self.members.put(member)
            self._record_ownership(member)
            self.version += 1

    def _replace_static_member(self, old: ConsumerMember, member_id: str) -> None:
        """Replace a static member by its restarted self, which keeps assignment and target."""
        self._remove(old.member_id)
        if old.member_id in self._targets:
            self._targets[member_id] = self._targets.pop(old.member_id)
        self.put(old.rejoined_as(member_id))

    def fence(self, member_id: str, reason: str) -> None:
        """Remove a member. Its partitions are assigned with the next heartbeats of the other members.

        Call `end_removals` after the last of several removals.
        """
        _log.info(
            "a member is removed from a consumer group", group=self.group_id, member=member_id, reason=reason
        )
        was_classic = self.members[member_id].is_classic
        self._remove(member_id)
        if not was_classic and self.may_downgrade():
            self.downgrade = Downgrade.MEMBER_LEFT
        self._targets.pop(member_id, None)
        if not self.members:
            self.downgrade = None  # the classic members were removed at the same time
        if self.downgrade is not None:
            return  # the classic members stay in this epoch; the classic group rebalances them
        self.group_epoch += 1
        if not self.members:
            self.state_ms = self._clock.now_ms()
            self.subscribed_topics, self.topics, self._matches = frozenset(), {}, {}
        self._has_removals = True

    def end_removals(self) -> None:
        """Update what follows from all members; once, because thousands of sessions may end together."""
        if self._has_removals and self.members and self._view is not None:
            self._update_subscriptions(self._view)
        self._has_removals = False

    def may_downgrade(self) -> bool:
        """Return True if the group is to be converted to a classic group."""
        return (
            self.settings.group_consumer_migration_policy.allows_downgrade
            and 0 < len(self.members) <= self.settings.group_max_size
            and self.members.are_classic
        )

    def _remove(self, member_id: str) -> None:
        for kind in MemberTimeout:
            self.cancel_timeout(kind, member_id)
        self.members.remove(member_id)
        self._owned_since.pop(member_id, None)
        self.unconfirmed.discard(member_id)
        self.version += 1

    def _record_ownership(self, member: ConsumerMember) -> None:
        """Note since which epoch the member owns its partitions.

        After a change of the coordinator that is the epoch of the member at that time.
        """
        known = self._owned_since.get(member.member_id, {})
        self._owned_since[member.member_id] = {each: known.get(each, member.epoch) for each in member.owned}

    # Topics and targets

    def unseen_selections(self, topics: TopicView) -> set[Selection]:
        """Return the patterns that the group will match with this view, none if it has done so already."""
        return set() if topics is self._view else self.members.selections(topics)

    def _apply_topics(self, topics: TopicView, *, subscriptions_changed: bool) -> None:
        """Raise the group epoch if a subscription or a subscribed topic has changed."""
        if topics is self._view and not subscriptions_changed:
            return
        self._view = topics
        if self._update_subscriptions(topics) or subscriptions_changed:
            self.group_epoch += 1
            self.version += 1

    def _update_subscriptions(self, topics: TopicView) -> bool:
        """Return True if the subscribed topics that exist, their sizes, or a member's share have changed."""
        self.subscribed_topics = self.members.subscribed_topics(topics)
        existing = {name: topics.by_name[name] for name in self.subscribed_topics if name in topics.by_name}
        changed = existing != self.topics
        self.topics = existing
        return self._update_matches(topics) or changed

    def _update_matches(self, topics: TopicView) -> bool:
        """Return True if the names that a member's pattern selects have changed.

        Those of a member of the previous coordinator are unknown. Its target must not exceed the new ones.
        """
        last = self._matches
        selections = {each.member_id: each.selection(topics) for each in self.members if each.regex}
        self._matches = {
            member_id: topics.matching(each) for member_id, each in selections.items() if each is not None
        }
        # Most members share their sets, and a frozen set remembers its hash.
        changes = {(last[each], names) for each, names in self._matches.items() if each in last}
        return any(before != after for before, after in changes) or any(
            self._exceeds_matches(self.members[each], topics) for each in self._matches.keys() - last.keys()
        )

    def _exceeds_matches(self, member: ConsumerMember, topics: TopicView) -> bool:
        """Return True if the target of a member has an existing topic to which it does not subscribe."""
        names = topics.names({each.topic_id for each in self.target(member.member_id)}).values()
        matches = self._matches[member.member_id]
        return any(each not in matches and each not in member.topics for each in names)

    def _compute_targets(self, topics: TopicView) -> None:
        """Compute the target assignment of the group epoch."""
        assignor = self.members.assignor
        ids: dict[_Subscription, frozenset[UUID]] = {}  # most members share their topics
        subscribers = []
        for member in self.members:
            subscription = _subscription(member, topics)
            if subscription not in ids:
                names = _subscribed_names(subscription, topics)
                ids[subscription] = frozenset(
                    [self.topics[name].topic_id for name in names if name in self.topics]
                )
            subscribers.append(
                Subscriber(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    topics=ids[subscription],
                    assigned=self.target(member.member_id),
                )
            )
        counts = {topic.topic_id: topic.partition_count for topic in self.topics.values()}
        self._targets = ASSIGNORS[assignor](subscribers, counts)
        self.assignment_epoch = self.group_epoch
        self._counters.rebalances += 1
        self.version += 1
        _log.debug(
            "computed the target assignment of a consumer group",
            group=self.group_id,
            epoch=self.group_epoch,
            assignor=assignor,
            members=len(self.members),
        )

    # Timeouts

    def extend_session(self, member: ConsumerMember) -> None:
        """Start the member's session timeout again."""
        timeout_ms = (
            self.settings.session_timeout_of(self.config)
            if member.classic is None
            else member.classic.session_timeout_ms
        )
        self.set_timeout(MemberTimeout.SESSION, member, timeout_ms, "its session has timed out")

    def set_timeout(self, kind: MemberTimeout, member: ConsumerMember, timeout_ms: int, reason: str) -> None:
        """Fence the member in `timeout_ms` milliseconds unless the timeout is set again or cancelled."""
        expire = partial(self._expire_member, member.member_id, reason)
        self.deadlines.set((kind, member.member_id), timeout_ms, expire)

    def has_timeout(self, kind: MemberTimeout, member_id: str) -> bool:
        """Return True if this timeout of the member is set."""
        return self.deadlines.is_set((kind, member_id))

    def cancel_timeout(self, kind: MemberTimeout, member_id: str) -> None:
        """Cancel a timeout of a member."""
        self.deadlines.cancel((kind, member_id))

    def _update_revocation_timeout(self, member: ConsumerMember) -> None:
        """Give a member that must revoke partitions its rebalance timeout to do so.

        Members of the classic protocol have a join timeout instead.
        """
        if member.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
            self.set_timeout(
                MemberTimeout.REVOCATION,
                member,
                member.rebalance_timeout_ms,
                "it did not revoke its partitions in time",
            )
        else:
            self.cancel_timeout(MemberTimeout.REVOCATION, member.member_id)

    def _expire_member(self, member_id: str, reason: str) -> None:
        self._counters.members_expired += 1
        self.fence(member_id, reason)

    def snapshot(self) -> ConsumerGroupSnapshot:
        """Return the state that another coordinator needs."""
        return ConsumerGroupSnapshot(
            group_epoch=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
            members=tuple(self.members),
            targets=dict(self._targets),
            topics=dict(self.topics),
            subscribed_topics=self.subscribed_topics,
            state_ms=self.state_ms,
        )


def _subscription_size(member: ConsumerMember, topics: TopicView) -> int:
    selection = member.selection(topics)
    return len(member.topics) + (0 if selection is None else len(topics.matching(selection)))


def _subscription(member: ConsumerMember, topics: TopicView) -> _Subscription:
    return member.topics, member.selection(topics)


def _subscribed_names(subscription: _Subscription, topics: TopicView) -> frozenset[str]:
    """Return the listed names, and those that the pattern selects."""
    names, selection = subscription
    return names if selection is None else names | topics.matching(selection)
