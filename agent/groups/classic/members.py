"""The members of a classic group."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from agent.groups.classic.member import MEMBER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.groups.classic.member import ClassicMember


class ClassicMembers:
    """Members in the order in which they joined, with an index of static members and the leader.

    The first member leads. When the leader leaves, the longest-standing member leads.
    """

    def __init__(self) -> None:
        self.leader: str | None = None
        self._members: dict[str, ClassicMember] = {}
        self._instances: dict[str, str] = {}
        # Member ids that the coordinator assigned and no client has joined with yet (KIP-394).
        self.pending: set[str] = set()
        self._sizes: dict[str, int] = {}  # of members and of pending member ids
        self._protocols: dict[str, frozenset[str]] = {}  # the names that each member supports
        self._not_joined = ""  # a member that had not joined again, or empty
        self._supporters: Counter[str] = Counter()  # the number of members that support each protocol
        self.memory_bytes = 0

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> ClassicMember:
        return self._members[member_id]

    def add_pending(self, member_id: str) -> None:
        """Add a member id that was assigned to a client."""
        self.pending.add(member_id)
        self._count(member_id, MEMBER_BYTES + len(member_id))

    def size_of(self, member_id: str) -> int:
        """Return the counted bytes of a member; 0 if it is not in the group."""
        return self._sizes.get(member_id, 0)

    def update_size(self, member: ClassicMember) -> None:
        """Count a member whose protocols or assignment have changed."""
        self._count(member.member_id, member.memory_bytes)
        self._count_protocols(member.member_id, frozenset(each.name for each in member.protocols))

    def _count_protocols(self, member_id: str, names: frozenset[str]) -> None:
        known = self._protocols.pop(member_id, frozenset())
        if names:
            self._protocols[member_id] = names
        self._supporters.update(names - known)
        for name in known - names:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    def _count(self, member_id: str, size: int) -> None:
        self.memory_bytes += size - self._sizes.pop(member_id, 0)
        if size:
            self._sizes[member_id] = size

    def member_id_of_instance(self, instance_id: str) -> str | None:
        """Return the current member id of a static member."""
        return self._instances.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return `none` if the member exists and its instance, if any, is not another member's."""
        if instance_id is not None:
            owner = self._instances.get(instance_id)
            if owner is None:
                return ErrorCode.unknown_member_id
            if owner != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self._members else ErrorCode.unknown_member_id

    def add(self, member: ClassicMember) -> None:
        """Add a new member. Raises ValueError if its member id or its instance id is in use."""
        if member.member_id in self._members or member.instance_id in self._instances:
            raise ValueError(f"member {member.member_id!r} or its instance is already in the group")
        self.pending.discard(member.member_id)
        self._members[member.member_id] = member
        self.update_size(member)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member id."""
        self.pending.discard(member_id)
        self._count(member_id, 0)
        self._count_protocols(member_id, frozenset())
        member = self._members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)

    def replace(self, old_id: str, member: ClassicMember) -> None:
        """Replace a static member by its restarted self, at the same position and as leader if it led."""
        self._count(old_id, 0)
        self._count_protocols(old_id, frozenset())
        self.update_size(member)
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
        """Return True if every member's JoinGroup is pending and no assigned member id is unused."""
        if self.pending:
            return False
        missing = self._members.get(self._not_joined)
        if missing is not None and not missing.is_awaiting_join:
            return False
        # From the last one: members often join again in their order, and then this one stays missing.
        members = reversed(self._members.values())
        self._not_joined = next((each.member_id for each in members if not each.is_awaiting_join), "")
        return not self._not_joined

    @property
    def joined_count(self) -> int:
        """The number of members whose JoinGroup is pending."""
        return sum(member.is_awaiting_join for member in self._members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined the leader. Return False if none has joined."""
        if self.leader is None:
            return False
        if self._members[self.leader].is_awaiting_join:
            return True
        joined = next(
            (member.member_id for member in self._members.values() if member.is_awaiting_join), None
        )
        if joined is not None:
            self.leader = joined
        return joined is not None

    def have_in_common(self, names: Iterable[str]) -> bool:
        """Return True if every member supports one and the same of these protocols."""
        return any(self._supporters[name] == len(self._members) for name in names)

    def common_protocols(self) -> set[str]:
        """Return the protocols that every member supports."""
        return {name for name, count in self._supporters.items() if count == len(self._members)}

    def select_protocol(self) -> str | None:
        """Return the common protocol that most members prefer; of equals, the one named first."""
        candidates = self.common_protocols()
        votes = Counter(
            vote for member in self._members.values() if (vote := member.vote(candidates)) is not None
        )
        return max(votes, key=votes.__getitem__, default=None)
