"""Where logs begin: moves the log start forward and removes what lies below it, never the other way round.

Kafka's rules (`UnifiedLog.deleteOldSegments`), with extents for segments. Whole extents go, the oldest first,
as long as each one lies below the log start, or can go without leaving fewer than `retention.bytes`, or has
no record younger than `retention.ms`. By time and size only where `cleanup.policy` has `delete`. Nothing past
the high watermark goes. An extent without a timestamp counts from when its oldest data was committed, as
a segment does from when its file was last written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.config.topic_config import TopicConfig
from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import TopicNotFoundError
from catalog.lifecycle.garbage import REMOVED_AT_ONCE, drop_from_files
from catalog.model import FileKind, PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("retention")
_BEFORE_ALL: Final = PartitionId(UUID(int=0), -1)
_FOR_EVER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How much of a partition is kept; negative: without limit."""

    retention_ms: int = _FOR_EVER
    retention_bytes: int = _FOR_EVER

    @classmethod
    def by(cls, config: TopicConfig) -> Keep:
        """What a topic's settings say."""
        if not config.deletes:
            return cls()
        return cls(retention_ms=config.retention_ms, retention_bytes=config.retention_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePage:
    """Of a page of partitions those that have something to lose; `last` is where the page ends."""

    partitions: tuple[PartitionId, ...]
    last: PartitionId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What a transaction removed; `unfinished` are the partitions that may have more of it."""

    extents: int
    size: int
    unfinished: tuple[PartitionId, ...]


class Retention:
    """The beginning of each log; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def advance_log_start(self, topic_id: UUID, partition: int, offset: int) -> int:
        """Let the log begin at `offset`, at most at its high watermark; returns where it begins now.

        It never goes back. TopicNotFoundError when there is no such partition.
        """
        key = PartitionId(topic_id, partition)
        starts = self.advance_log_starts({key: offset})
        if key not in starts:
            raise TopicNotFoundError(f"there is no partition {partition} of topic {topic_id}")
        return starts[key]

    def advance_log_starts(self, offsets: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """The same of several partitions, all or none; those that do not exist are left out."""
        params = {
            "topic_ids": arrays.uuids(key.topic_id for key in offsets),
            "partitions": arrays.integers([key.partition for key in offsets]),
            "offsets": arrays.bigints(list(offsets.values())),
        }

        def work(transaction: Transaction) -> list[Row]:
            return transaction.rows(_SQL["advance_log_starts"], params)

        rows = self._database.transact("retention.advance_log_starts", work)
        return {PartitionId(row[0], row[1]): row[2] for row in rows}

    def due(
        self, rules: Mapping[UUID, Keep], *, after: PartitionId | None = None, limit: int = 10_000
    ) -> DuePage:
        """Which of the next `limit` partitions in section order have an expired extent at their beginning.

        By the catalog's time. Topics without a rule lose only what lies below their log starts.
        """
        start = after or _BEFORE_ALL
        params = {
            "topic_ids": arrays.uuids(rules),
            "retention_ms": arrays.bigints([rule.retention_ms for rule in rules.values()]),
            "retention_bytes": arrays.bigints([rule.retention_bytes for rule in rules.values()]),
            "after_topic": start.topic_id,
            "after_partition": start.partition,
            "limit": limit,
            "now_ms": self._database.injected_now_ms,
        }
        rows = self._database.read("retention.due", _SQL["due_partitions"], params)
        return DuePage(
            partitions=tuple(PartitionId(row[0], row[1]) for row in rows if row[2]),
            last=PartitionId(rows[-1][0], rows[-1][1]) if rows else None,
        )

    def expire(self, partitions: Sequence[PartitionId], *, limit: int = REMOVED_AT_ONCE) -> Expired:
        """Remove at most about `limit` extents that have expired, and move the logs' starts behind them.

        One transaction, in which the topics' settings stand still: what somebody has just decided to keep
        stays. Partitions that do not exist any more are passed over.
        """
        each = max(1, limit // max(1, len(partitions)))

        def work(transaction: Transaction) -> Expired:
            topic_ids = {partition.topic_id for partition in partitions}
            shared = transaction.rows(_SQL["share_topics"], {"topic_ids": arrays.uuids(topic_ids)})
            rules = {row[0]: Keep.by(TopicConfig.stored(row[1])) for row in shared}
            wanted = {key: rules[key.topic_id] for key in partitions if key.topic_id in rules}
            return _remove(transaction, wanted, each)

        return self._database.transact("retention.expire", work)

    def remove_expired(self, topic_id: UUID, partition: int, *, limit: int = REMOVED_AT_ONCE) -> int:
        """Remove at most `limit` extents that lie wholly below the log start; returns how many went."""
        wanted = {PartitionId(topic_id, partition): Keep()}

        def work(transaction: Transaction) -> int:
            return _remove(transaction, wanted, limit).extents

        return self._database.transact("retention.remove_expired", work)


def _remove(transaction: Transaction, wanted: Mapping[PartitionId, Keep], each: int) -> Expired:
    params = {
        "topic_ids": arrays.uuids(key.topic_id for key in wanted),
        "partitions": arrays.integers([key.partition for key in wanted]),
        "retention_ms": arrays.bigints([rule.retention_ms for rule in wanted.values()]),
        "retention_bytes": arrays.bigints([rule.retention_bytes for rule in wanted.values()]),
        "limit": each,
    }
    locked = {
        PartitionId(row[0], row[1]): row[2] for row in transaction.rows(_SQL["lock_partitions"], params)
    }
    now_ms = transaction.now_ms()
    removed = transaction.rows(_SQL["remove_expired"], {**params, "now_ms": now_ms})
    by_partition: dict[PartitionId, list[Row]] = {}
    for row in removed:
        by_partition.setdefault(PartitionId(row[0], row[1]), []).append(row)
    if removed:
        transaction.send(_SQL["move_log_starts"], _moves(by_partition, locked))
        drop_from_files(transaction, _by_file(removed), now_ms)
    return Expired(
        extents=len(removed),
        size=sum(row[3] for row in removed),
        unfinished=tuple(key for key, rows in by_partition.items() if len(rows) >= each),
    )


def _moves(
    by_partition: Mapping[PartitionId, Sequence[Row]], first_dirty: Mapping[PartitionId, int]
) -> dict[str, object]:
    rows = by_partition.items()
    kinds = [Counter(row[6] for row in removed) for _, removed in rows]
    return {
        "topic_ids": arrays.uuids(key.topic_id for key, _ in rows),
        "partitions": arrays.integers([key.partition for key, _ in rows]),
        "log_start_offsets": arrays.bigints([max(row[2] for row in removed) + 1 for _, removed in rows]),
        "live_bytes": arrays.bigints([sum(row[3] for row in removed) for _, removed in rows]),
        "dirty_bytes": arrays.bigints(
            [sum(row[3] for row in removed if row[2] >= first_dirty[key]) for key, removed in rows]
        ),
        "ingestion_extents": arrays.bigints([each[FileKind.INGESTION] for each in kinds]),
        "compacted_extents": arrays.bigints([each[FileKind.COMPACTED] for each in kinds]),
    }


def _by_file(removed: Sequence[Row]) -> list[Row]:
    extents: Counter[UUID] = Counter(row[4] for row in removed)
    claimed: Counter[UUID] = Counter(row[4] for row in removed if row[5])
    size: Counter[UUID] = Counter()
    for row in removed:
        size[row[4]] += row[3]
    return [(file_id, extents[file_id], claimed[file_id], size[file_id]) for file_id in sorted(extents)]
