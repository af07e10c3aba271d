"""What a planner looks at: sizes of partitions, files to compact, extents; always a bounded page of it.

Each query is a snapshot of its own. What has changed between two of them is found out when a job is
submitted: that refuses extents which are not as they were seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.database import arrays
from catalog.database.rows import extent_of, state_of
from catalog.database.sql_files import load_queries
from catalog.model import Exactness, FileKind, JobInput, PartitionId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database
    from catalog.jobs.quarantine import Suspect
    from catalog.model import Extent, PartitionState

_SQL = load_queries("planning")
_BEFORE_ALL: Final = PartitionId(UUID(int=0), -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSize:
    """A partition's bounds and what its live extents add up to.

    Dirty is what ends at or after `state.first_dirty_offset`; `dirty_since_ms` is when the first of it was
    committed, None when nothing is dirty. Sums count a section's bytes once per extent. `exactness` is
    that of what is not dirty.
    """

    state: PartitionState
    live_bytes: int
    dirty_bytes: int
    dirty_since_ms: int | None
    ingestion_extents: int
    compacted_extents: int
    exactness: Exactness = Exactness.EXACT

    @property
    def partition_id(self) -> PartitionId:
        """Which partition this is."""
        return PartitionId(self.state.topic_id, self.state.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyRule:
    """Which partitions of a topic are worth a look: those above a ratio of dirty bytes; if `limited`, all."""

    above_ratio: float
    limited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """An object that has live extents."""

    file_id: UUID
    object_name: str
    size: int
    kind: FileKind
    committed_ms: int
    live_extents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFile:
    """A compacted file that no job has any part of, with its live extents in file order.

    `live_bytes` is what they add up to; `dead_bytes` what those did that it has no more.
    """

    file: LiveFile
    live_bytes: int
    dead_bytes: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What compaction has before it.

    Ingestion files of which no job has all, and when the first of them was committed, None without any; files
    that were in a failed job, and those of them that no job may take any more.
    """

    ingestion_files: int
    ingestion_bytes: int
    oldest_ms: int | None
    suspected_files: int
    quarantined_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTotal:
    """How many files of one sort there are, and their bytes."""

    count: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the whole catalog holds."""

    partitions: int
    live_bytes: int
    dirty_bytes: int
    ingestion_extents: int
    compacted_extents: int
    live_ingestion_files: FileTotal
    live_compacted_files: FileTotal
    dead_files: FileTotal


class Planning:
    """The planner's view of a catalog; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ingestion_files(self, limit: int, *, max_extents: int = 2**62) -> list[JobInput]:
        """The oldest `limit` ingestion files, in commit order, that have extents which no job has claimed.

        Each comes with those extents, in file order; not more than `max_extents` unless the first has more.
        """
        params = {"limit": limit, "max_extents": max_extents}
        rows = self._database.read("planning.ingestion_files", _SQL["files_to_compact"], params)
        return self._with_free_extents({row[0]: (row[1], row[2]) for row in rows})

    def inputs_of(self, suspects: Collection[Suspect]) -> list[JobInput]:
        """Suspected files with the extents of theirs that no job has claimed, in commit order."""
        return self._with_free_extents({each.file_id: (each.object_name, each.size) for each in suspects})

    def extents_of_files(self, file_ids: Collection[UUID]) -> list[Extent]:
        """All live extents of some files, by file and place in the file, with the jobs that claim them."""
        params = {"file_ids": arrays.uuids(file_ids)}
        rows = self._database.read("planning.extents_of_files", _SQL["extents_of_files"], params)
        return [extent_of(row) for row in rows]

    def _with_free_extents(self, files: Mapping[UUID, tuple[str, int]]) -> list[JobInput]:
        if not files:
            return []
        params = {"file_ids": arrays.uuids(files)}
        extents = [
            extent_of(row)
            for row in self._database.read("planning.free_extents", _SQL["free_extents_of_files"], params)
        ]
        return [
            JobInput(
                file_id=file_id,
                object_name=files[file_id][0],
                size=files[file_id][1],
                extents=tuple(group),
            )
            for file_id, group in groupby(extents, key=lambda extent: extent.file_id)
        ]

    def partition_sizes(
        self,
        topic_ids: Collection[UUID] | None = None,
        *,
        after: PartitionId | None = None,
        limit: int = 100_000,
    ) -> list[PartitionSize]:
        """Partitions in section order, of some topics or of all: at most `limit`, beginning after `after`."""
        start = after or _BEFORE_ALL
        params = {
            "topic_ids": None if topic_ids is None else arrays.uuids(topic_ids),
            "after_topic": start.topic_id,
            "after_partition": start.partition,
            "limit": limit,
        }
        rows = self._database.read("planning.partition_sizes", _SQL["partition_sizes"], params)
        return [_size_of(row) for row in rows]

    def sizes_of(self, partitions: Collection[PartitionId]) -> list[PartitionSize]:
        """The given partitions in section order; those that do not exist are left out."""
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in partitions),
            "partitions": arrays.integers([partition.partition for partition in partitions]),
        }
        return [_size_of(row) for row in self._database.read("planning.sizes_of", _SQL["sizes_of"], params)]

    def dirty_partitions(
        self, rules: Mapping[UUID, DirtyRule], limit: int, *, owed: bool = True
    ) -> list[PartitionSize]:
        """At most `limit` partitions of these topics that may be due for cleaning; topics take turns.

        With `owed`, those to which an exact job is owed are among them.
        """
        params = {
            "topic_ids": arrays.uuids(rules),
            "ratios": [rule.above_ratio for rule in rules.values()],
            "limited": [rule.limited for rule in rules.values()],
            "owed": owed,
            "limit": limit,
        }
        rows = self._database.read("planning.dirty_partitions", _SQL["dirty_partitions"], params)
        return [_size_of(row) for row in rows]

    def fragmented_partitions(
        self, *, section_bytes: int, resting_extents: int, start: float, limit: int
    ) -> list[PartitionSize]:
        """At most `limit` partitions with more extents in compacted files than they may rest with.

        That is `resting_extents`, and one for each `section_bytes` of data. Where there are more of them than
        may be answered, those in a row that begins where the part `start` of them lies, round the end.
        """
        params = {
            "section_bytes": section_bytes,
            "resting_extents": resting_extents,
            "start": start,
            "limit": limit,
        }
        rows = self._database.read("planning.fragmented", _SQL["fragmented_partitions"], params)
        return [_size_of(row) for row in rows]

    def newest_compacted_extents(self, partitions: Collection[PartitionId], limit_each: int) -> list[Extent]:
        """The newest extents of each partition in compacted files, in section order, with who claims them."""
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in partitions),
            "partitions": arrays.integers([partition.partition for partition in partitions]),
            "limit": limit_each,
        }
        rows = self._database.read("planning.newest_extents", _SQL["newest_compacted_extents"], params)
        return [extent_of(row) for row in rows]

    def files_of(self, file_ids: Collection[UUID]) -> list[LiveFile]:
        """Those of the given files that are live, in commit order."""
        params = {"file_ids": arrays.uuids(file_ids)}
        rows = self._database.read("planning.files_of", _SQL["files_of"], params)
        return [_live_file_of(row) for row in rows]

    def files_to_merge(
        self,
        *,
        below_bytes: int,
        dead_bytes: int,
        dead_share: float,
        limit: int,
        max_extents: int,
        extents_each: int = 2**62,
        from_bytes: int = 0,
    ) -> list[MergeFile]:
        """Compacted files that are small, or so much of which is dead; the smallest and the most dead first.

        Where there are more than may be answered, small ones begin at `from_bytes` of live data; such as have
        more than `extents_each` extents are left out.
        Only such of which no job has any part, at most `limit`, and only so many that they have not more than
        `max_extents` together; beside them one that has more by itself, for it would never be seen.
        """
        params = {
            "from_bytes": from_bytes,
            "extents_each": extents_each,
            "below_bytes": below_bytes,
            "dead_bytes": dead_bytes,
            "dead_share": dead_share,
            "limit": limit,
        }
        rows = self._database.read("planning.files_to_merge", _SQL["files_to_merge"], params)
        few = _fitting(rows, max_extents)
        found: dict[UUID, list[Extent]] = {row[0]: [] for row in few}
        for extent in self.extents_of_files(list(found)) if found else ():
            found[extent.file_id].append(extent)
        return [
            MergeFile(file=_live_file_of(row), live_bytes=row[6], dead_bytes=row[7], extents=extents)
            for row in few
            if len(extents := tuple(found[row[0]])) == row[5]  # all of them, as it was counted
            and not any(extent.claimed_by for extent in extents)
        ]

    def extents_of(self, partition: PartitionId, from_offset: int, limit: int) -> list[Extent]:
        """The extent that covers `from_offset` and those after it, with the jobs that claim them."""
        return self.extents_of_each([(partition, from_offset)], limit)

    def extents_of_each(self, starts: Sequence[tuple[PartitionId, int]], limit_each: int) -> list[Extent]:
        """As `extents_of` for many partitions at once, in section order, at most `limit_each` of each."""
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition, _ in starts),
            "partitions": arrays.integers([partition.partition for partition, _ in starts]),
            "offsets": arrays.bigints([offset for _, offset in starts]),
            "limit": limit_each,
        }
        return [
            extent_of(row) for row in self._database.read("planning.extents_of", _SQL["extents_of"], params)
        ]

    def backlog(self) -> Backlog:
        """What compaction has before it; costs as much as there is, by an index."""
        (row,) = self._database.read("planning.backlog", _SQL["backlog"])
        return Backlog(
            ingestion_files=row[0],
            ingestion_bytes=row[1],
            oldest_ms=row[2],
            suspected_files=row[3],
            quarantined_files=row[4],
        )

    def totals(self) -> Totals:
        """What the whole catalog holds; reads every row of partitions and of files."""
        (sums,) = self._database.read("planning.total_partitions", _SQL["total_partitions"])
        rows = self._database.read("planning.total_files", _SQL["total_files"])
        files = {(row[0], row[1]): FileTotal(count=row[2], size=row[3]) for row in rows}
        dead = [total for (_, live), total in files.items() if not live]
        return Totals(
            partitions=sums[0],
            live_bytes=sums[1],
            dirty_bytes=sums[2],
            ingestion_extents=sums[3],
            compacted_extents=sums[4],
            live_ingestion_files=files.get((FileKind.INGESTION, True), FileTotal()),
            live_compacted_files=files.get((FileKind.COMPACTED, True), FileTotal()),
            dead_files=FileTotal(
                count=sum(total.count for total in dead), size=sum(total.size for total in dead)
            ),
        )


def _fitting(rows: Sequence[Row], max_extents: int) -> list[Row]:
    """The rows of `files_to_merge` that find room, each where those before it leave it some."""
    few: list[Row] = []
    room, has_large = max_extents, False
    for row in rows:
        extents = row[5]
        if extents <= room:
            room -= extents
            few.append(row)
        elif extents > max_extents and not has_large:
            has_large = True
            few.append(row)
    return few


def _live_file_of(row: Row) -> LiveFile:
    return LiveFile(
        file_id=row[0],
        object_name=row[1],
        size=row[2],
        kind=FileKind(row[3]),
        committed_ms=row[4],
        live_extents=row[5],
    )


def _size_of(row: Row) -> PartitionSize:
    return PartitionSize(
        state=state_of(row),
        live_bytes=row[8],
        dirty_bytes=row[9],
        dirty_since_ms=row[10],
        ingestion_extents=row[11],
        compacted_extents=row[12],
        exactness=Exactness(row[13]),
    )
