"""Who shall read what: the assignors that a consumer group may ask its coordinator for.

`range` gives each member a run of each topic's partitions, so that topics of equal size are read
side by side.
`uniform` gives everyone as much as anyone, and takes from nobody more than that needs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent.groups.consumer.messages import NOTHING
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from agent.groups.consumer.messages import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member for an assignor: its topics exist, `assigned` is what the last assignment gave it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    assigned: Assignment


class Assignor(Protocol):
    """Gives every partition of every topic to one of the topic's subscribers."""

    def __call__(
        self, subscribers: Sequence[Subscriber], partition_counts: Mapping[UUID, int], /
    ) -> dict[str, Assignment]:
        """What each member shall have; `partition_counts` knows every topic that is subscribed to."""
        ...


def assign_range(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    """Runs of partitions, in the order of instances and then of member ids."""
    shares: dict[str, set[PartitionId]] = {each.member_id: set() for each in subscribers}
    for topic_id, readers in _readers(sorted(subscribers, key=_by_instance)).items():
        least, extra = divmod(partition_counts[topic_id], len(readers))
        begin = 0
        for at, reader in enumerate(readers):
            end = begin + least + (at < extra)
            shares[reader.member_id].update(PartitionId(topic_id, each) for each in range(begin, end))
            begin = end
    return _frozen(shares)


def assign_uniform(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    """As many partitions for each as its topics allow; what can stay where it is stays."""
    shares: dict[str, set[PartitionId]] = {}
    taken: set[PartitionId] = set()
    for each in subscribers:
        # One partition may stand in two old assignments when a static member was replaced meanwhile.
        kept = {
            part
            for part in each.assigned - taken
            if part.topic_id in each.topics and part.partition < partition_counts[part.topic_id]
        }
        shares[each.member_id] = kept
        taken |= kept
    readers = _readers(sorted(subscribers, key=_by_instance))
    if len({each.topics for each in subscribers}) == 1:
        _fill_evenly(shares, _missing(readers, partition_counts, taken))
    else:
        names = {topic_id: [each.member_id for each in them] for topic_id, them in readers.items()}
        for part in sorted(_missing(readers, partition_counts, taken), key=lambda p: len(names[p.topic_id])):
            least = min(names[part.topic_id], key=lambda member_id: len(shares[member_id]))
            shares[least].add(part)
        _level(shares, names)
    return _frozen(shares)


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _by_instance(subscriber: Subscriber) -> tuple[bool, str]:
    """Static members first: their places outlive their member ids."""
    return subscriber.instance_id is None, subscriber.instance_id or subscriber.member_id


def _readers(subscribers: Iterable[Subscriber]) -> dict[UUID, list[Subscriber]]:
    readers: dict[UUID, list[Subscriber]] = defaultdict(list)
    for each in subscribers:
        for topic_id in each.topics:
            readers[topic_id].append(each)
    return readers


def _missing(
    topics: Iterable[UUID], partition_counts: Mapping[UUID, int], taken: set[PartitionId]
) -> list[PartitionId]:
    return [
        part
        for topic_id in sorted(topics)
        for part in (PartitionId(topic_id, at) for at in range(partition_counts[topic_id]))
        if part not in taken
    ]


def _fill_evenly(shares: dict[str, set[PartitionId]], free: list[PartitionId]) -> None:
    """All have the same topics: whoever has most may have one more than the others, where it must be."""
    total = len(free) + sum(map(len, shares.values()))
    least, extra = divmod(total, len(shares))
    quotas = {
        member_id: least + (at < extra)
        for at, member_id in enumerate(sorted(shares, key=lambda each: (-len(shares[each]), each)))
    }
    for member_id, share in shares.items():
        surplus = sorted(share)[quotas[member_id] :]
        share.difference_update(surplus)
        free += surplus
    for member_id, share in shares.items():
        count = quotas[member_id] - len(share)
        share.update(free[:count])
        del free[:count]


def _level(shares: dict[str, set[PartitionId]], readers: Mapping[UUID, Sequence[str]]) -> None:
    """Move partitions from whoever has much to whoever has at least two less, until nobody has."""

    def size(member_id: str) -> int:
        return len(shares[member_id])

    moved = True
    while moved:  # each move makes the sum of the squares of sizes smaller
        moved = False
        for member_id in sorted(shares, key=size, reverse=True):
            moved |= _give_away(member_id, shares, readers, size)


def _give_away(
    member_id: str,
    shares: dict[str, set[PartitionId]],
    readers: Mapping[UUID, Sequence[str]],
    size: Callable[[str], int],
) -> bool:
    moved = False
    for part in sorted(shares[member_id]):
        least = min(readers[part.topic_id], key=size)
        if size(least) + 2 <= size(member_id):
            shares[member_id].remove(part)
            shares[least].add(part)
            moved = True
    return moved


def _frozen(shares: Mapping[str, set[PartitionId]]) -> dict[str, Assignment]:
    return {member_id: frozenset(share) if share else NOTHING for member_id, share in shares.items()}
