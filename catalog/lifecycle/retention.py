"""Retention: removes the oldest extents of partitions and advances their log start offsets.

The log start offset moves in the transaction that removes extents, or before it, never after it.

The rules are Kafka's (`UnifiedLog.deleteOldSegments`), with extents in place of segments. Whole extents are
removed, oldest first, as long as one of these conditions holds for each:

- it lies below the log start offset;
- at least `retention.bytes` remain without it, and `cleanup.policy` has `delete`;
- all its records are older than `retention.ms`, and `cleanup.policy` has `delete`.

Nothing at or after the last stable offset is removed. The age of an extent without timestamps counts from the
commit of its oldest data, as that of a segment counts from the last modification of its file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.config.values import TopicConfig
from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.grouping import by_file, by_partition
from catalog.lifecycle.garbage import MAX_REMOVED, FileRemoval, subtract_from_files
from catalog.model import FileKind, PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("retention")
_BEFORE_ALL: Final = PartitionId(UUID(int=0), -1)
_UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """Limits of age and size of a partition; negative is unlimited."""

    retention_ms: int = _UNLIMITED
    retention_bytes: int = _UNLIMITED

    @classmethod
    def of(cls, config: TopicConfig) -> RetentionRule:
        """Return the rule of a topic's configuration."""
        if not config.deletes:
            return cls()
        return cls(retention_ms=config.retention_ms, retention_bytes=config.retention_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePage:
    """Partitions with expired extents out of a page of partitions; `last` is the page's last partition."""

    partitions: tuple[PartitionId, ...]
    last: PartitionId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Extents and bytes that a transaction removed; `unfinished` partitions may have more to remove."""

    extents: int
    size: int
    unfinished: tuple[PartitionId, ...]


class Retention:
    """Retention of partitions; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def advance_log_starts(self, offsets: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """Advance log start offsets in one transaction; return the new ones.

        Each advances at most to the high watermark, and none moves back. Unknown partitions are left out.
        """
        params = {
            "topic_ids": arrays.uuids(key.topic_id for key in offsets),
            "partitions": arrays.integers([key.partition for key in offsets]),
            "offsets": arrays.bigints(list(offsets.values())),
        }

        def work(transaction: Transaction) -> list[Row]:
            return transaction.rows(_SQL["advance_log_starts"], params)

        rows = self._database.transact("retention.advance_log_starts", work)
        return {PartitionId(row.topic_id, row.partition): row.log_start_offset for row in rows}

    def due(
        self, rules: Mapping[UUID, RetentionRule], *, after: PartitionId | None = None, limit: int = 10_000
    ) -> DuePage:
        """Return those of the next `limit` partitions, in section order, whose oldest extent has expired.

        Ages are measured by the catalog's clock. A topic without a rule loses only extents below its log
        start offsets.
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
            partitions=tuple(PartitionId(row.topic_id, row.partition) for row in rows if row.expired),
            last=PartitionId(rows[-1].topic_id, rows[-1].partition) if rows else None,
        )

    def expire(self, partitions: Sequence[PartitionId], *, limit: int = MAX_REMOVED) -> Expired:
        """Remove about `limit` expired extents at most, and advance the log start offsets.

        The transaction locks the topics' settings, so a concurrent change of retention applies either before
        or after it. Unknown partitions are skipped.
        """
        limit_each = max(1, limit // max(1, len(partitions)))

        def work(transaction: Transaction) -> Expired:
            topic_ids = {partition.topic_id for partition in partitions}
            topics = transaction.rows(_SQL["share_topics"], {"topic_ids": arrays.uuids(topic_ids)})
            rules = {row.topic_id: RetentionRule.of(TopicConfig.from_stored(row.config)) for row in topics}
            known = {key: rules[key.topic_id] for key in partitions if key.topic_id in rules}
            return _remove(transaction, known, limit_each)

        return self._database.transact("retention.expire", work)

    def remove_expired(self, topic_id: UUID, partition: int, *, limit: int = MAX_REMOVED) -> int:
        """Remove up to `limit` extents below the log start offset; return the number of removed extents."""
        rules = {PartitionId(topic_id, partition): RetentionRule()}

        def work(transaction: Transaction) -> int:
            return _remove(transaction, rules, limit).extents

        return self._database.transact("retention.remove_expired", work)


def _remove(transaction: Transaction, rules: Mapping[PartitionId, RetentionRule], limit_each: int) -> Expired:
    params = {
        "topic_ids": arrays.uuids(key.topic_id for key in rules),
        "partitions": arrays.integers([key.partition for key in rules]),
        "retention_ms": arrays.bigints([rule.retention_ms for rule in rules.values()]),
        "retention_bytes": arrays.bigints([rule.retention_bytes for rule in rules.values()]),
        "limit": limit_each,
    }
    first_dirty_offsets = {
        PartitionId(row.topic_id, row.partition): row.first_dirty_offset
        for row in transaction.rows(_SQL["lock_partitions"], params)
    }
    now_ms = transaction.now_ms()
    removed = transaction.rows(_SQL["remove_expired"], {**params, "now_ms": now_ms})
    removed_of = by_partition(removed)
    if removed:
        partition_params = _partition_params(removed_of, first_dirty_offsets)
        transaction.send(_SQL["advance_partitions"], partition_params)
        if any(row.kind == FileKind.CONTROL for row in removed):
            transaction.send(_SQL["remove_aborted"], partition_params)
        subtract_from_files(transaction, _removals_by_file(removed), now_ms)
    return Expired(
        extents=len(removed),
        size=sum(row.length for row in removed),
        unfinished=tuple(key for key, rows in removed_of.items() if len(rows) >= limit_each),
    )


def _partition_params(
    removed: Mapping[PartitionId, Sequence[Row]], first_dirty_offsets: Mapping[PartitionId, int]
) -> dict[str, object]:
    """Return the parameters of `advance_partitions` for removed extents."""
    items = removed.items()
    kinds = [Counter(row.kind for row in rows) for _, rows in items]
    return {
        "topic_ids": arrays.uuids(key.topic_id for key, _ in items),
        "partitions": arrays.integers([key.partition for key, _ in items]),
        "log_start_offsets": arrays.bigints([max(row.last_offset for row in rows) + 1 for _, rows in items]),
        "live_bytes": arrays.bigints([sum(row.length for row in rows) for _, rows in items]),
        "dirty_bytes": arrays.bigints(
            [
                sum(row.length for row in rows if row.last_offset >= first_dirty_offsets[key])
                for key, rows in items
            ]
        ),
        "ingestion_extents": arrays.bigints([each[FileKind.INGESTION] for each in kinds]),
        "compacted_extents": arrays.bigints([each[FileKind.COMPACTED] for each in kinds]),
    }


def _removals_by_file(removed: Sequence[Row]) -> list[FileRemoval]:
    return [
        FileRemoval(file_id, len(rows), sum(row.claimed for row in rows), sum(row.length for row in rows))
        for file_id, rows in sorted(by_file(removed).items())
    ]
