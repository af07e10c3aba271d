"""Recent growth of topics, derived from their live extents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.pool import Database

_SQL = load_queries("topic_history")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGrowth:
    """Growth of one topic since a given time.

    `records` counts offsets that were committed since that time, including those of removed records;
    `first_ms` is the time of the first commit. The timestamps of records do not matter. The other counts are
    totals of the live extents with commits since that time: `unique_records` are in extents with unique keys,
    `ingestion_extents` and `ingestion_records` are not compacted yet.
    """

    topic_id: UUID
    partitions: int
    records: float
    first_ms: int
    live_bytes: int
    live_records: int
    unique_records: int
    ingestion_extents: int
    ingestion_records: int


class TopicHistory:
    """Recent history of topics; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def since(self, since_ms: int) -> list[TopicGrowth]:
        """Return the growth of each topic that has records from commits since `since_ms` (catalog time)."""
        rows = self._database.read("topic_history.since", _SQL["topic_growth"], {"since_ms": since_ms})
        return [TopicGrowth(**row._asdict()) for row in rows]
