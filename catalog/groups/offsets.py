"""Where the consumers of each group are: committed offsets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from catalog.database import arrays
from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.model import PartitionId

_SQL = load_queries("offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The offset that a group reads next in one partition; `leader_epoch` is -1 where it is not known."""

    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CommitOutcome(Enum):
    """What became of a commit of offsets."""

    COMMITTED = auto()
    CLAIM_LOST = auto()
    STALE_GENERATION = auto()


class OffsetCommit(NamedTuple):
    """What became of a commit, and which of its topics there were none of any more when it came."""

    outcome: CommitOutcome
    gone: frozenset[UUID] = frozenset()


class Offsets:
    """The committed offsets of a catalog; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def commit(
        self,
        group_id: str,
        claim_id: UUID,
        generation: int | None,
        offsets: Sequence[CommittedOffset],
        *,
        keep_ms: int | None = None,
    ) -> OffsetCommit:
        """Note where a group is, under a claim and a generation that were not superseded, or nothing at all.

        Of several offsets of one partition the last counts. Topics that were deleted are `gone`.
        With `keep_ms` the offsets expire that many milliseconds from now, otherwise by the general rule; now
        is by the catalog's clock.
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
            "keep_ms": keep_ms,
        }

        def work(transaction: Transaction) -> OffsetCommit:
            rows = transaction.rows(_SQL["lock_group_to_commit"], params)
            if not rows:
                return OffsetCommit(CommitOutcome.CLAIM_LOST)
            if generation is not None and rows[0][0] > generation:
                return OffsetCommit(CommitOutcome.STALE_GENERATION)
            if last:
                transaction.send(_SQL["commit_offsets"], params)
            return OffsetCommit(CommitOutcome.COMMITTED, frozenset(rows[0][1]))

        return self._database.transact("offsets.commit", work)

    def fetch(self, wanted: Sequence[tuple[str, PartitionId]]) -> list[tuple[str, CommittedOffset]]:
        """Where these groups are, each in this partition; what none was committed for is left out."""
        params = {"group_ids": [group_id for group_id, _ in wanted], **_of(each for _, each in wanted)}
        rows = self._database.read("offsets.fetch", _SQL["fetch_offsets"], params)
        return [(row[5], _offset_of(row)) for row in rows]

    def fetch_all(self, group_ids: Sequence[str]) -> dict[str, list[tuple[str, CommittedOffset]]]:
        """Where each group is, everywhere, with the topics' names; by name and partition."""
        found: dict[str, list[tuple[str, CommittedOffset]]] = {group_id: [] for group_id in group_ids}
        params = {"group_ids": list(found)}
        for row in self._database.read("offsets.fetch_all", _SQL["fetch_all_offsets"], params):
            found[row[5]].append((row[6], _offset_of(row)))
        return found

    def delete(self, group_id: str, claim_id: UUID, partitions: Sequence[PartitionId]) -> bool:
        """Forget where a group is in these partitions; False when another coordinator has claimed it."""
        params = {**_of(partitions), "group_id": group_id, "claim_id": claim_id}

        def work(transaction: Transaction) -> bool:
            if not transaction.rows(_SQL["lock_claimed_group"], params):
                return False
            transaction.send(_SQL["delete_offsets"], params)
            return True

        return self._database.transact("offsets.delete", work)

    def expire(self, group_ids: Sequence[str], retention_ms: int) -> list[str]:
        """Forget what has expired of these groups; returns those that are gone altogether.

        Groups that somebody writes to are not forgotten, and wait for nobody: their time comes again.
        """

        def work(transaction: Transaction) -> list[Row]:
            now_ms = transaction.now_ms()
            params = {"group_ids": list(group_ids), "now_ms": now_ms, "before_ms": now_ms - retention_ms}
            transaction.send(_SQL["expire_offsets"], params)
            # Whoever commits holds its group until that is done: what each has is seen under its lock only.
            unused = [row[0] for row in transaction.rows(_SQL["lock_unused_groups"], params)]
            return transaction.rows(_SQL["forget_groups"], {**params, "group_ids": unused}) if unused else []

        return [row[0] for row in self._database.transact("offsets.expire", work)]


def _of(partitions: Iterable[PartitionId]) -> dict[str, object]:
    topic_ids, indexes = [], []
    for each in partitions:
        topic_ids.append(each.topic_id)
        indexes.append(each.partition)
    return {"topic_ids": arrays.uuids(topic_ids), "partitions": arrays.integers(indexes)}


def _offset_of(row: Row) -> CommittedOffset:
    return CommittedOffset(
        topic_id=row[0],
        partition=row[1],
        offset=row[2],
        leader_epoch=row[3],
        metadata=bytes(row[4]).decode(),
    )
