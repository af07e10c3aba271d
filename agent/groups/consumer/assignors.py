"""Server-side assignors: functions that compute the target assignment of a consumer group.

`range` assigns each member consecutive partitions of each topic, so topics with the same number of partitions
are co-partitioned. `uniform` assigns members of equal subscriptions numbers of partitions that differ by at
most one, and moves as few partitions as possible.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from agent.groups.consumer.messages import EMPTY_ASSIGNMENT
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from agent.groups.consumer.messages import Assignment

_MAX_COMPARISONS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it: the existing topics it subscribes to, and its last target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    assigned: Assignment


class Assignor(Protocol):
    """Function that assigns every partition of every topic to one subscriber of the topic."""

    def __call__(
        self, subscribers: Sequence[Subscriber], partition_counts: Mapping[UUID, int], /
    ) -> dict[str, Assignment]:
        """Return the target of each member. `partition_counts` has every subscribed topic."""
        ...


def assign_range(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    """Assign consecutive partitions: first to static members by instance id, then by member id."""
    shares: dict[str, set[PartitionId]] = {each.member_id: set() for each in subscribers}
    for topic_id, members in _subscribers_by_topic(sorted(subscribers, key=_assignment_order)).items():
        minimum, extra = divmod(partition_counts[topic_id], len(members))
        begin = 0
        for index, member in enumerate(members):
            end = begin + minimum + (index < extra)
            if begin == end:
                break  # as all later members, it gets none
            shares[member.member_id].update(PartitionId(topic_id, each) for each in range(begin, end))
            begin = end
    return _as_assignments(shares)


def assign_uniform(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    """Assign as evenly as the subscriptions allow; keep previous assignments where possible."""
    shares: dict[str, set[PartitionId]] = {}
    taken: set[PartitionId] = set()
    for each in subscribers:
        # A partition may be in two previous assignments if a static member was replaced in the meantime.
        kept = {
            part
            for part in each.assigned - taken
            if part.topic_id in each.topics and part.partition < partition_counts[part.topic_id]
        }
        shares[each.member_id] = kept
        taken |= kept
    by_topic = _subscribers_by_topic(sorted(subscribers, key=_assignment_order))
    if len({each.topics for each in subscribers}) == 1:
        _fill_evenly(shares, _unassigned(by_topic, partition_counts, taken))
    else:
        ids = {topic_id: [each.member_id for each in members] for topic_id, members in by_topic.items()}
        free = sorted(_unassigned(by_topic, partition_counts, taken), key=lambda p: len(ids[p.topic_id]))
        _fill_least_loaded(shares, free, ids)
        _balance(shares, ids)
    return _as_assignments(shares)


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _assignment_order(subscriber: Subscriber) -> tuple[bool, str]:
    """Return a sort key that puts static members first, because instance ids survive restarts."""
    return subscriber.instance_id is None, subscriber.instance_id or subscriber.member_id


def _subscribers_by_topic(subscribers: Iterable[Subscriber]) -> dict[UUID, list[Subscriber]]:
    by_topic: dict[UUID, list[Subscriber]] = defaultdict(list)
    subscribers = list(subscribers)
    subscriptions = {each.topics for each in subscribers}
    if len(subscriptions) == 1:  # the usual case, for which one list is enough
        return dict.fromkeys(subscriptions.pop(), subscribers)
    for each in subscribers:
        for topic_id in each.topics:
            by_topic[topic_id].append(each)
    return by_topic


def _unassigned(
    topics: Iterable[UUID], partition_counts: Mapping[UUID, int], taken: set[PartitionId]
) -> list[PartitionId]:
    return [
        part
        for topic_id in sorted(topics)
        for part in (PartitionId(topic_id, index) for index in range(partition_counts[topic_id]))
        if part not in taken
    ]


def _fill_evenly(shares: dict[str, set[PartitionId]], free: list[PartitionId]) -> None:
    """Assign `free` so that shares differ by at most one; all members have the same subscription.

    If the partitions do not divide evenly, the members with the largest shares keep one more.
    """
    total = len(free) + sum(map(len, shares.values()))
    minimum, extra = divmod(total, len(shares))
    quotas = {
        member_id: minimum + (index < extra)
        for index, member_id in enumerate(sorted(shares, key=lambda each: (-len(shares[each]), each)))
    }
    for member_id, share in shares.items():
        surplus = sorted(share)[quotas[member_id] :]
        share.difference_update(surplus)
        free += surplus
    assigned = 0
    for member_id, share in shares.items():
        count = quotas[member_id] - len(share)
        share.update(free[assigned : assigned + count])
        assigned += count


def _fill_least_loaded(
    shares: dict[str, set[PartitionId]],
    free: Iterable[PartitionId],
    subscribers: Mapping[UUID, Sequence[str]],
) -> None:
    """Assign each partition, sorted by topic, to the subscriber of its topic that has the fewest."""
    for topic_id, parts in groupby(free, key=attrgetter("topic_id")):
        loads = [(len(shares[each]), number, each) for number, each in enumerate(subscribers[topic_id])]
        heapify(loads)
        for part in parts:
            load, number, member_id = loads[0]
            shares[member_id].add(part)
            heapreplace(loads, (load + 1, number, member_id))


def _balance(shares: dict[str, set[PartitionId]], subscribers: Mapping[UUID, Sequence[str]]) -> None:
    """Move partitions to members with at least two fewer, until there is no such member.

    After `_MAX_COMPARISONS` the rest stays as it is: every partition has an owner already, and the event loop
    waits for the result.
    """

    def size(member_id: str) -> int:
        return len(shares[member_id])

    moved, left = True, _MAX_COMPARISONS
    while moved and left > 0:  # terminates: each move reduces the sum of the squared share sizes
        moved = False
        for member_id in sorted(shares, key=size, reverse=True):
            for part in sorted(shares[member_id]):
                candidates = subscribers[part.topic_id]
                left -= len(candidates)
                if left <= 0:
                    return
                smallest = min(candidates, key=size)
                if size(smallest) + 2 <= size(member_id):
                    shares[member_id].remove(part)
                    shares[smallest].add(part)
                    moved = True


def _as_assignments(shares: Mapping[str, set[PartitionId]]) -> dict[str, Assignment]:
    return {member_id: frozenset(share) if share else EMPTY_ASSIGNMENT for member_id, share in shares.items()}
