"""Grouping of extents by partition and by file, for all who handle tens of thousands of them at once.

Keys are plain integers while the groups grow: the hash of a UUID is a Python function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID


class InPartition(Protocol):
    """What belongs to one partition, such as an input extent, an output extent, and a row of either."""

    @property
    def topic_id(self) -> UUID:
        """The partition's topic."""
        ...

    @property
    def partition(self) -> int:
        """The partition's number."""
        ...


class InFile(Protocol):
    """What lies in one file, such as an extent and a row of it."""

    @property
    def file_id(self) -> UUID:
        """The file."""
        ...


P = TypeVar("P", bound=InPartition)
F = TypeVar("F", bound=InFile)


def by_partition(members: Iterable[P]) -> dict[PartitionId, list[P]]:
    """Return the members of each partition, in the order in which they come."""
    return {PartitionId(group[0].topic_id, group[0].partition): group for group in partition_groups(members)}


def partition_groups(members: Iterable[P]) -> list[list[P]]:
    """Return the members of each partition as `by_partition` does, for callers that look none up."""
    groups: dict[tuple[int, int], list[P]] = {}
    for member in members:
        key = member.topic_id.int, member.partition
        if key in groups:
            groups[key].append(member)
        else:
            groups[key] = [member]
    return list(groups.values())


def by_file(members: Iterable[F]) -> dict[UUID, list[F]]:
    """Return the members of each file, in the order in which they come."""
    groups: dict[int, list[F]] = {}
    for member in members:
        key = member.file_id.int
        if key in groups:
            groups[key].append(member)
        else:
            groups[key] = [member]
    return {group[0].file_id: group for group in groups.values()}
