"""What topics got lately, told by their live extents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.pool import Database

_SQL = load_queries("history")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHistory:
    """What one topic got since some time; its first record since then is of `first_ms`.

    `records` counts offsets, so also those of records that are gone. Bytes and counts below are of the live
    extents that reach into that time: `unique_records` lie in extents that no key is in twice, and
    `ingestion_extents` with `ingestion_records` were not compacted yet.
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


class History:
    """The recent past of a catalog; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def since(self, since_ms: int) -> list[TopicHistory]:
        """The topics that have records with a timestamp of at least `since_ms`."""
        rows = self._database.read("history.since", _SQL["recent_history"], {"since_ms": since_ms})
        return [
            TopicHistory(
                topic_id=row[0],
                partitions=row[1],
                records=row[2],
                first_ms=row[3],
                live_bytes=row[4],
                live_records=row[5],
                unique_records=row[6],
                ingestion_extents=row[7],
                ingestion_records=row[8],
            )
            for row in rows
        ]
