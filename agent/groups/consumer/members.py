"""The members of a consumer group: who has which instance, which partition, and which assignor is wanted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.groups.consumer.member import ConsumerMember
    from agent.groups.consumer.topics import TopicView
    from catalog.model import PartitionId

DEFAULT_ASSIGNOR = "uniform"


class ConsumerRoster:
    """Members by id, in the order in which they came."""

    def __init__(self) -> None:
        self._members: dict[str, ConsumerMember] = {}
        self._instances: dict[str, str] = {}
        self._owners: dict[PartitionId, str] = {}

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> ConsumerMember:
        return self._members[member_id]

    def get(self, member_id: str) -> ConsumerMember | None:
        """The member with that id."""
        return self._members.get(member_id)

    def of_instance(self, instance_id: str) -> ConsumerMember | None:
        """The static member with that instance."""
        return self._members.get(self._instances.get(instance_id, ""))

    def put(self, member: ConsumerMember) -> None:
        """A new member, or a new form of one."""
        self._release(member.member_id)
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        for each in member.owned:
            holder = self._owners.setdefault(each, member.member_id)
            if holder != member.member_id:
                raise AssertionError(f"{each} belongs to {holder} and to {member.member_id}")

    def remove(self, member_id: str) -> None:
        """A member goes, and with it what it had."""
        self._release(member_id)
        member = self._members.pop(member_id)
        if member.instance_id is not None and self._instances.get(member.instance_id) == member_id:
            del self._instances[member.instance_id]

    def _release(self, member_id: str) -> None:
        before = self._members.get(member_id)
        if before is not None:
            for each in before.owned:
                del self._owners[each]

    def is_free(self, partition: PartitionId) -> bool:
        """Whether no member has that partition."""
        return partition not in self._owners

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; of equals the one asked for first."""
        votes = Counter(member.assignor for member in self._members.values() if member.assignor)
        return max(votes, key=votes.__getitem__, default=DEFAULT_ASSIGNOR)

    def names(self, topics: TopicView) -> frozenset[str]:
        """Every topic that a member subscribes to, whether it exists or not."""
        named = {member.topics for member in self._members.values()}
        return frozenset().union(*named, *map(topics.matching, self.patterns))

    @property
    def patterns(self) -> set[str]:
        """The patterns by which members subscribe to topics."""
        return {member.regex for member in self._members.values() if member.regex}


def subscription(member: ConsumerMember, topics: TopicView) -> frozenset[str]:
    """The topics that a member wants: those that it names, and those that its pattern matches now."""
    return member.topics | topics.matching(member.regex) if member.regex else member.topics
