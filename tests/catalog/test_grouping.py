"""Grouping agrees with a dictionary of lists, for equal ids that are different objects, too."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from catalog.grouping import by_file, by_partition
from catalog.model import PartitionId


class _Member(NamedTuple):
    topic_id: UUID
    partition: int
    file_id: UUID
    number: int


_ids = st.integers(0, 2).map(lambda number: UUID(int=number << 64))
_members = st.lists(st.builds(_Member, _ids, st.integers(0, 2), _ids, st.integers(0, 9)))


@given(_members)
def test_groups_keep_the_order_of_their_members(members: list[_Member]) -> None:
    of_partition: dict[PartitionId, list[_Member]] = {}
    of_file: dict[UUID, list[_Member]] = {}
    for member in members:
        of_partition.setdefault(PartitionId(member.topic_id, member.partition), []).append(member)
        of_file.setdefault(member.file_id, []).append(member)

    assert list(by_partition(members).items()) == list(of_partition.items())
    assert list(by_file(members).items()) == list(of_file.items())
