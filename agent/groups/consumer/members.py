"""The members of a consumer group."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.groups.errors import ErrorCode, GroupError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.groups.consumer.member import ConsumerMember
    from agent.groups.consumer.topics import Selection, TopicView
    from catalog.model import PartitionId

DEFAULT_ASSIGNOR = "uniform"


class ConsumerMembers:
    """Members in the order in which they joined, with indexes by instance and by owned partition."""

    def __init__(self) -> None:
        self._members: dict[str, ConsumerMember] = {}
        self._instances: dict[str, str] = {}
        self._owners: dict[PartitionId, str] = {}
        self._classic_count = 0
        self.memory_bytes = 0

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> ConsumerMember:
        return self._members[member_id]

    def get(self, member_id: str) -> ConsumerMember | None:
        """Return the member with this id."""
        return self._members.get(member_id)

    def of_instance(self, instance_id: str) -> ConsumerMember | None:
        """Return the static member with this instance id."""
        return self._members.get(self._instances.get(instance_id, ""))

    def require_instance(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Return the static member with this instance id.

        Raises UNKNOWN_MEMBER_ID if there is none, FENCED_INSTANCE_ID if it has another member id.
        """
        member = self.of_instance(instance_id)
        if member is None:
            raise GroupError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise GroupError(
                ErrorCode.fenced_instance_id,
                f"Static member {member_id} with instance id {instance_id} was fenced by member"
                f" {member.member_id}.",
            )
        return member

    def put(self, member: ConsumerMember) -> None:
        """Add a member or replace the member with the same id, which gives up another instance id."""
        self._disown(member.member_id)
        previous = self._members.get(member.member_id)
        if previous is not None and previous.instance_id != member.instance_id:
            self._forget_instance(previous)
        self._classic_count += member.is_classic
        self.memory_bytes += member.memory_bytes
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        for partition in member.owned:
            owner = self._owners.setdefault(partition, member.member_id)
            if owner != member.member_id:
                raise AssertionError(f"{partition} belongs to {owner} and to {member.member_id}")

    def remove(self, member_id: str) -> None:
        """Remove a member and free its partitions."""
        self._disown(member_id)
        self._forget_instance(self._members.pop(member_id))

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self._instances.get(member.instance_id) == member.member_id:
            del self._instances[member.instance_id]

    def _disown(self, member_id: str) -> None:
        member = self._members.get(member_id)
        if member is not None:
            self._classic_count -= member.is_classic
            self.memory_bytes -= member.memory_bytes
            for partition in member.owned:
                del self._owners[partition]

    def is_free(self, partition: PartitionId) -> bool:
        """Return True if no member owns the partition."""
        return partition not in self._owners

    @property
    def are_classic(self) -> bool:
        """Return True if all members use the classic protocol."""
        return self._classic_count == len(self._members)

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; of equals, the one of the oldest member."""
        votes = Counter(member.assignor for member in self._members.values() if member.assignor)
        return max(votes, key=votes.__getitem__, default=DEFAULT_ASSIGNOR)

    def subscribed_topics(self, topics: TopicView) -> frozenset[str]:
        """Return the names that members subscribe to; some of these topics may not exist."""
        named = {member.topics for member in self._members.values()}
        return frozenset().union(*named, *map(topics.matching, self.selections(topics)))

    def selections(self, topics: TopicView) -> set[Selection]:
        """Return the patterns of the members, each limited to what a member may describe."""
        found = [member.selection(topics) for member in self._members.values() if member.regex]
        return {each for each in found if each is not None}
