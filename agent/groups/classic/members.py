"""Who is in a classic group: members, static members by instance, the leader, and what all support."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.groups.classic.member import Member


class Members:
    """The members, in the order in which they came. The one that came first leads, and then the next."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self._members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        # Ids that were given and not used yet (KIP-394).
        self.pending: set[str] = set()

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def member_of_instance(self, instance_id: str) -> str | None:
        """The member id that a static member has now."""
        return self._instances.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """`none` when there is such a member, and no other has its instance."""
        if instance_id is not None:
            holder = self._instances.get(instance_id)
            if holder is None:
                return ErrorCode.unknown_member_id
            if holder != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self._members else ErrorCode.unknown_member_id

    def add(self, member: Member) -> None:
        """A new member; it must have no namesake and, if static, its instance no other member."""
        if member.member_id in self._members or member.instance_id in self._instances:
            raise ValueError(f"member {member.member_id!r} or its instance is in the group already")
        self.pending.discard(member.member_id)
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """A member, or an id that was only given, goes; the leadership passes on."""
        self.pending.discard(member_id)
        member = self._members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)

    def replace(self, old_id: str, member: Member) -> None:
        """Let a static member that came back take its former self's place, and the leadership."""
        self._members = {
            each.member_id: each
            for each in (member if each.member_id == old_id else each for each in self._members.values())
        }
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        if self.leader == old_id:
            self.leader = member.member_id

    @property
    def all_joined(self) -> bool:
        """Whether everyone waits for the generation, and no id was given that did not come back yet."""
        return not self.pending and all(member.awaits_join for member in self._members.values())

    @property
    def joined_count(self) -> int:
        """How many wait for the generation."""
        return sum(member.awaits_join for member in self._members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """As long as the most patient member takes to join again."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Let someone lead who has joined; tells whether there is one."""
        if self.leader is None:
            return False
        if self._members[self.leader].awaits_join:
            return True
        joined = next((member.member_id for member in self._members.values() if member.awaits_join), None)
        if joined is not None:
            self.leader = joined
        return joined is not None

    def common_protocols(self) -> set[str]:
        """The protocols that every member supports."""
        votes = Counter(
            name for member in self._members.values() for name in {each.name for each in member.protocols}
        )
        return {name for name, count in votes.items() if count == len(self._members)}

    def select_protocol(self) -> str | None:
        """The common protocol that most members like best; of equals the one named first."""
        candidates = self.common_protocols()
        votes = Counter(
            vote for member in self._members.values() if (vote := member.vote(candidates)) is not None
        )
        return max(votes, key=votes.__getitem__, default=None)
