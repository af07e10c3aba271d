"""Moves the log start forward, and then removes what lies below it; never the other way round."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from catalog.errors import TopicNotFoundError
from catalog.garbage import REMOVED_AT_ONCE, drop_from_files
from catalog.model import FileKind
from catalog.sql_files import load_queries

if TYPE_CHECKING:
    from uuid import UUID

    from bedrock.clock import Clock
    from catalog.database import Database, Row, Transaction

_SQL = load_queries("retention")


class Retention:
    """The beginning of each log; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def advance_log_start(self, topic_id: UUID, partition: int, offset: int) -> int:
        """Let the log begin at `offset`, at most at its high watermark; returns where it begins now.

        It never goes back. TopicNotFoundError when there is no such partition.
        """
        params = {"topic_id": topic_id, "partition": partition, "offset": offset}

        def work(transaction: Transaction) -> list[Row]:
            return transaction.rows(_SQL["advance_log_start"], params)

        rows = self._database.transact("retention.advance_log_start", work)
        if not rows:
            raise TopicNotFoundError(f"there is no partition {partition} of topic {topic_id}")
        return int(rows[0][0])

    def remove_expired(self, topic_id: UUID, partition: int, *, limit: int = REMOVED_AT_ONCE) -> int:
        """Remove at most `limit` extents that lie wholly below the log start; returns how many went."""
        params: dict[str, object] = {"topic_id": topic_id, "partition": partition, "limit": limit}
        now_ms = self._clock.now_ms()

        def work(transaction: Transaction) -> int:
            found = transaction.rows(_SQL["lock_partition"], params)
            if not found:
                return 0
            log_start, first_dirty = found[0]
            removed = transaction.rows(_SQL["remove_expired"], {**params, "log_start_offset": log_start})
            if removed:
                _subtract(transaction, params, removed, first_dirty)
                drop_from_files(transaction, _by_file(removed), now_ms)
            return len(removed)

        return self._database.transact("retention.remove_expired", work)


def _subtract(
    transaction: Transaction, params: dict[str, object], removed: list[Row], first_dirty: int
) -> None:
    kinds = Counter(row[4] for row in removed)
    transaction.send(
        _SQL["subtract_from_partition"],
        {
            **params,
            "live_bytes": sum(row[3] for row in removed),
            "dirty_bytes": sum(row[3] for row in removed if row[2] >= first_dirty),
            "ingestion_extents": kinds[FileKind.INGESTION],
            "compacted_extents": kinds[FileKind.COMPACTED],
        },
    )


def _by_file(removed: list[Row]) -> list[Row]:
    extents: Counter[UUID] = Counter(row[0] for row in removed)
    claimed: Counter[UUID] = Counter(row[0] for row in removed if row[1])
    return [(file_id, extents[file_id], claimed[file_id]) for file_id in sorted(extents)]
