"""What group coordination needs from the catalog. Tests substitute their own implementations.

All methods block: call them through `GroupStore.call`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.config.values import GroupConfig
    from catalog.groups.offsets import CommittedOffset, OffsetCommit
    from catalog.groups.repository import GroupListing, GroupRecord
    from catalog.model import PartitionId
    from catalog.topics.changes import TopicVersion
    from catalog.topics.repository import TopicList


class GroupTable(Protocol):
    """The groups in the catalog. A write takes effect only under the latest claim on its group."""

    def claim(self, group_id: str, claim_id: UUID, /, *, create: bool) -> GroupRecord | None:
        """Become a group's coordinator; None if the group does not exist and is not to be created."""
        ...

    def save(self, claim_id: UUID, record: GroupRecord, /) -> bool:
        """Store a group's state. Return False if the claim was lost."""
        ...

    def delete(self, group_id: str, claim_id: UUID, /) -> bool:
        """Delete a group and its offsets. Return False if the claim was lost."""
        ...

    def page(self, after: str, /, *, limit: int) -> list[GroupListing]:
        """Return the groups whose ids follow `after`, in order."""
        ...


class OffsetTable(Protocol):
    """The committed offsets in the catalog."""

    def commit(
        self,
        group_id: str,
        claim_id: UUID,
        generation: int | None,
        offsets: Sequence[CommittedOffset],
        /,
        *,
        retention_ms: int | None,
    ) -> OffsetCommit:
        """Store offsets under a claim and, unless it is None, a generation that is not older than stored."""
        ...

    def fetch(self, wanted: Sequence[tuple[str, PartitionId]], /) -> list[tuple[str, CommittedOffset]]:
        """Return the offsets of groups in single partitions, each with its group id."""
        ...

    def fetch_all(self, group_ids: Sequence[str], /) -> dict[str, list[tuple[str, CommittedOffset]]]:
        """Return all offsets of groups, each with its topic's name."""
        ...

    def delete(self, group_id: str, claim_id: UUID, partitions: Sequence[PartitionId], /) -> bool:
        """Delete offsets of a group. Return False if the claim was lost."""
        ...

    def expire(self, group_ids: Sequence[str], retention_ms: int, /) -> list[str]:
        """Delete expired offsets of these groups; return the ids of groups that were deleted with them."""
        ...


class TopicTable(Protocol):
    """The topics in the catalog."""

    def changed_since(self, known: TopicVersion | None, /) -> TopicList | None:
        """Return all topics; None if their version is still `known`."""
        ...


class GroupConfigTable(Protocol):
    """The configurations of groups in the catalog."""

    def list(self) -> dict[str, GroupConfig]:
        """Return the configurations of all groups that have one, by group id."""
        ...
