"""Committed offsets of consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from catalog.database import arrays
from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.model import PartitionId

_SQL = load_queries("offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """Offset of the next record that a group reads in one partition; `leader_epoch` is -1 if unknown.

    It is unstable while an ongoing transaction may change it. Then `offset` is -1 if there is none yet.
    """

    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    is_unstable: bool = False


class GroupOffset(NamedTuple):
    """A committed offset and the high watermark of its partition, None if the catalog does not know it."""

    group_id: str
    topic_name: str
    partition: int
    committed_offset: int
    high_watermark: int | None


class OffsetCursor(NamedTuple):
    """Key of the last committed offset that was read."""

    group_id: str = ""
    topic_id: UUID = UUID(int=0)
    partition: int = -1


class CommitOutcome(Enum):
    """Outcome of an offset commit."""

    COMMITTED = auto()
    CLAIM_LOST = auto()
    STALE_GENERATION = auto()


class OffsetCommit(NamedTuple):
    """Outcome of an offset commit, and the topics in it that had been deleted."""

    outcome: CommitOutcome
    deleted_topic_ids: frozenset[UUID] = frozenset()


class GroupOffsets:
    """Committed offsets of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def commit(
        self,
        group_id: str,
        claim_id: UUID,
        generation: int | None,
        offsets: Sequence[CommittedOffset],
        *,
        retention_ms: int | None = None,
    ) -> OffsetCommit:
        """Commit offsets of a group, if its claim and its generation are still current.

        If a partition occurs several times, its last offset counts. The result names deleted topics. With
        `retention_ms`, the offsets expire that many milliseconds from now by the catalog's clock. Otherwise
        the general retention applies.
        """
        last = {(each.topic_id, each.partition): each for each in offsets}
        params = {
            "group_id": group_id,
            "claim_id": claim_id,
            "topic_ids": arrays.uuids(topic_id for topic_id, _ in last),
            "partitions": arrays.integers([partition for _, partition in last]),
            "offsets": arrays.bigints([each.offset for each in last.values()]),
            "leader_epochs": arrays.integers([each.leader_epoch for each in last.values()]),
            "metadata": [each.metadata.encode() for each in last.values()],
            "now_ms": self._database.injected_now_ms,
            "retention_ms": retention_ms,
        }

        def work(transaction: Transaction) -> OffsetCommit:
            rows = transaction.rows(_SQL["lock_group_to_commit"], params)
            if not rows:
                return OffsetCommit(CommitOutcome.CLAIM_LOST)
            (group,) = rows
            if generation is not None and group.generation > generation:
                return OffsetCommit(CommitOutcome.STALE_GENERATION)
            if last:
                transaction.send(_SQL["commit_offsets"], params)
            return OffsetCommit(CommitOutcome.COMMITTED, frozenset(group.deleted_topic_ids))

        return self._database.transact("group_offsets.commit", work)

    def fetch(self, wanted: Sequence[tuple[str, PartitionId]]) -> list[tuple[str, CommittedOffset]]:
        """Return the offsets of these groups and partitions; those without an offset are left out."""
        params = {
            "group_ids": [group_id for group_id, _ in wanted],
            **_partition_params(each for _, each in wanted),
        }
        rows = self._database.read("group_offsets.fetch", _SQL["fetch_offsets"], params)
        return [(row.group_id, _offset_from_row(row)) for row in rows]

    def fetch_all(self, group_ids: Sequence[str]) -> dict[str, list[tuple[str, CommittedOffset]]]:
        """Return all offsets of each group with the topics' names, by topic name and partition."""
        offsets: dict[str, list[tuple[str, CommittedOffset]]] = {group_id: [] for group_id in group_ids}
        params = {"group_ids": list(offsets)}
        for row in self._database.read("group_offsets.fetch_all", _SQL["fetch_all_offsets"], params):
            offsets[row.group_id].append((row.topic_name, _offset_from_row(row)))
        return offsets

    def page(self, after: OffsetCursor, limit: int) -> tuple[list[GroupOffset], OffsetCursor | None]:
        """Return the next committed offsets of all groups, by key, and where the page after them begins.

        Offsets of deleted topics are left out. The cursor is None after the last page.
        """
        rows = self._database.read(
            "group_offsets.page", _SQL["lag_page"], {**after._asdict(), "limit": limit}
        )
        found = [
            GroupOffset(row.group_id, row.topic_name, row.partition, row.committed_offset, row.high_watermark)
            for row in rows
            if row.topic_name is not None
        ]
        if len(rows) < limit:
            return found, None
        return found, OffsetCursor(rows[-1].group_id, rows[-1].topic_id, rows[-1].partition)

    def delete(self, group_id: str, claim_id: UUID, partitions: Sequence[PartitionId]) -> bool:
        """Delete a group's offsets of these partitions; return False if the claim was lost.

        Ongoing transactions no longer commit the offsets that they have stored for these partitions.
        """
        params = {**_partition_params(partitions), "group_id": group_id, "claim_id": claim_id}

        def work(transaction: Transaction) -> bool:
            if not transaction.rows(_SQL["lock_claimed_group"], params):
                return False
            transaction.send(_SQL["delete_offsets"], params)
            return True

        return self._database.transact("group_offsets.delete", work)

    def expire(self, group_ids: Sequence[str], retention_ms: int) -> list[str]:
        """Delete expired offsets of these groups, and groups that are then empty; return these.

        A group whose row is locked by another transaction is skipped; a later call expires it.
        """

        def work(transaction: Transaction) -> list[Row]:
            now_ms = transaction.now_ms()
            params = {"group_ids": list(group_ids), "now_ms": now_ms, "before_ms": now_ms - retention_ms}
            transaction.send(_SQL["expire_offsets"], params)
            # A commit locks its group until it ends, so a group is checked for offsets only under its lock.
            unused = [row.group_id for row in transaction.rows(_SQL["lock_unused_groups"], params)]
            if not unused:
                return []
            return transaction.rows(_SQL["delete_empty_groups"], {**params, "group_ids": unused})

        return [row.group_id for row in self._database.transact("group_offsets.expire", work)]


def _partition_params(partitions: Iterable[PartitionId]) -> dict[str, object]:
    topic_ids, numbers = [], []
    for each in partitions:
        topic_ids.append(each.topic_id)
        numbers.append(each.partition)
    return {"topic_ids": arrays.uuids(topic_ids), "partitions": arrays.integers(numbers)}


def _offset_from_row(row: Row) -> CommittedOffset:
    return CommittedOffset(
        topic_id=row.topic_id,
        partition=row.partition,
        offset=row.committed_offset,
        leader_epoch=row.leader_epoch,
        metadata=bytes(row.metadata).decode(),
        is_unstable=row.is_unstable,
    )
