"""Topics and partitions of lost files that the catalog lacks: their creation was lost, too, or an undeletion.

A lost commit to a deleted topic comes later in the history than an undeletion, which was lost, unless the
topic was deleted in a later epoch than that of the commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from catalog.database import arrays
from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.sql_files import Query
    from catalog.model import PartitionId

_SQL = load_queries("missing_topics")


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingTopic:
    """Topic of lost files that has no row, or fewer than the `partition_count` partitions that they need.

    `name` is None if it has no row. `is_deleted`: it is deleted, and its undeletion may be lost.
    """

    topic_id: UUID
    name: str | None
    partition_count: int
    is_deleted: bool = False

    @property
    def command(self) -> str:
        """The command by which an operator creates or undeletes it."""
        if self.is_deleted:
            return f"siltstone topics undelete {self.name} --id {self.topic_id}"
        if self.name is None:
            return f"siltstone topics create NAME --partitions {self.partition_count} --id {self.topic_id}"
        return f"siltstone topics add-partitions {self.name} --partitions {self.partition_count}"

    @override
    def __str__(self) -> str:
        if self.is_deleted:
            return f"topic {self.name!r} is deleted, and its undeletion may be lost"
        if self.name is None:
            return f"the catalog does not know topic {self.topic_id}"
        return f"topic {self.name!r} has fewer than {self.partition_count} partitions"


def find_missing_topics(
    read: Callable[[Query, Mapping[str, object]], Sequence[Row]],
    partitions: Iterable[PartitionId],
    *,
    committed_epoch: int | None,
    are_absent: bool = False,
) -> list[MissingTopic]:
    """Return the topics that are needed for these partitions, by id; `read` runs a query.

    `committed_epoch` is the epoch of the lost commit with these partitions, None if it is not known.

    `are_absent` says that an earlier statement found none of the partitions. So a topic that has them now was
    created meanwhile, and is returned, too.
    """
    needed: dict[UUID, int] = {}
    for each in partitions:
        needed[each.topic_id] = max(needed.get(each.topic_id, 0), each.partition + 1)
    if not needed:
        return []
    params = {
        "topic_ids": arrays.uuids(needed),
        "partition_counts": arrays.integers(list(needed.values())),
        "committed_epoch": committed_epoch,
        "all_living": are_absent,
    }
    return [MissingTopic(**row._asdict()) for row in read(_SQL["missing_topics"], params)]
