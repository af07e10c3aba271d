"""Look-up of a partition's extents by offset and by timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import PartitionId
from catalog.rows import extent_from_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.database.pool import Database
    from catalog.model import Extent

_SQL = load_queries("extents")
_TIMESTAMP_PAGE: Final = 1000


class ExtentRequest(NamedTuple):
    """A request for the extents of a partition from `offset` on.

    It takes at most `max_bytes` of those that all partitions share. At least `ahead_bytes` of extents are
    returned, if there are as many, even if no shared bytes are left: they are looked up for later.
    """

    partition: PartitionId
    offset: int
    max_bytes: int
    ahead_bytes: int = 0


class Extents:
    """Live extents of partitions; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def from_offset(
        self, topic_id: UUID, partition: int, offset: int, *, max_extents: int = 100, max_bytes: int = 2**30
    ) -> list[Extent]:
        """Return the extent that covers `offset` and the extents after it, in offset order.

        The result has at most `max_extents` extents and `max_bytes` of data, except that the first extent
        may exceed `max_bytes`. It is empty at the log's end, and if the partition does not exist. The cost
        is proportional to the result.
        """
        wanted = ExtentRequest(PartitionId(topic_id, partition), offset, max_bytes)
        (found,) = self.from_offsets([wanted], max_bytes=max_bytes, max_extents=max_extents)
        return found

    def from_offsets(
        self,
        wanted: Sequence[ExtentRequest],
        *,
        max_bytes: int,
        max_extents: int,
        max_extents_of_one: int | None = None,
    ) -> list[list[Extent]]:
        """Return the extents of several partitions, with one statement.

        Earlier partitions have priority. The look-up ends after the partition that uses up the last of
        `max_bytes`, and at `max_extents`; partitions after it have no extents in the result. A partition has
        at most `max_extents_of_one` extents. The cost is proportional to the result and to the number of
        partitions before the end.
        """
        most = max_extents if max_extents_of_one is None else max_extents_of_one
        params = {
            "topic_ids": arrays.uuids(each.partition.topic_id for each in wanted),
            "partitions": arrays.integers([each.partition.partition for each in wanted]),
            "offsets": arrays.bigints([each.offset for each in wanted]),
            "max_bytes_of": arrays.bigints([each.max_bytes for each in wanted]),
            "ahead_bytes_of": arrays.bigints([each.ahead_bytes for each in wanted]),
            "max_bytes": max_bytes,
            "max_extents": max_extents,
            "max_extents_of_one": most,
        }
        found: list[list[Extent]] = [[] for _ in wanted]
        for row in self._database.read("extents.from_offset", _SQL["extents_from_offsets"], params):
            found[row.number - 1].append(extent_from_row(row))
        return found

    def first_at_or_after_timestamp(self, topic_id: UUID, partition: int, timestamp: int) -> Extent | None:
        """Return the first extent in offset order with a record at or after `timestamp`; None without one.

        A binary search finds the first extent that may hold such a record. Compaction may have removed the
        record since; then the following extents are searched, one page at a time.
        """
        params: dict[str, object] = {
            "topic_id": topic_id,
            "partition": partition,
            "timestamp": timestamp,
            "page": _TIMESTAMP_PAGE,
        }
        bounds = self._database.read("extents.bisect_timestamp", _SQL["bisect_timestamp"], params)
        offset: int | None = min(bounds[0].low, bounds[0].high) if bounds else None
        while offset is not None:
            params["offset"] = offset
            (page,) = self._database.read("extents.page_of_timestamp", _SQL["page_of_timestamp"], params)
            if page.base_offset is not None:
                extents = self.from_offset(topic_id, partition, page.base_offset, max_extents=1)
                return extents[0] if extents else None
            offset = page.next_offset
        return None

    def latest_timestamp(self, topic_id: UUID, partition: int, *, from_offset: int | None = None) -> int:
        """Return the largest timestamp of a partition; -1 if it has none.

        With `from_offset`, only records in live extents that begin there or later count, and the query reads
        all of these extents. Without it, the query reads one row, but compaction or retention may have
        removed the record.
        """
        params = {"topic_id": topic_id, "partition": partition, "offset": from_offset}
        query = _SQL["latest_timestamp"] if from_offset is None else _SQL["latest_live_timestamp"]
        rows = self._database.read("extents.latest_timestamp", query, params)
        return int(rows[0].max_timestamp) if rows else -1
