"""Queries of the planner: sizes of partitions, files to compact, and extents, in bounded pages.

Each query reads its own snapshot. A change between two queries is detected when a job is submitted:
`Jobs.submit` rejects extents that have changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.grouping import by_file
from catalog.model import AbortedTransaction, Exactness, FileKind, JobInput, PartitionId
from catalog.rows import extent_from_row, state_from_row

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database
    from catalog.jobs.quarantine import QuarantineCandidate
    from catalog.model import Extent, PartitionState

_SQL = load_queries("planning")
_MAX_OFFSET: Final = 2**63 - 1
_BEFORE_ALL: Final = PartitionId(UUID(int=0), -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSize:
    """Bounds of a partition and totals of its live extents.

    Extents that end at or after `state.first_dirty_offset` are dirty. `dirty_since_ms` is the commit time of
    the first of them, None if there are none. A section's bytes count once per extent. `exactness` describes
    the clean part.
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
        """Return the partition's id."""
        return PartitionId(self.state.topic_id, self.state.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyRule:
    """Rule that selects a topic's partitions: dirty ratio above `above_ratio`, or any, if `limited`.

    `limited` means that the topic limits how long records stay dirty.
    """

    above_ratio: float
    limited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """Object with live extents."""

    file_id: UUID
    object_name: str
    size: int
    kind: FileKind
    committed_ms: int
    live_extents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFile:
    """Compacted file without claimed extents, with its live extents in file order.

    `live_bytes` is the total of these extents, `dead_bytes` that of the extents that were removed.
    """

    file: LiveFile
    live_bytes: int
    dead_bytes: int
    extents: tuple[Extent, ...]


class MergePage(NamedTuple):
    """Compacted files to merge; `is_complete` if no bound left any out."""

    files: list[MergeFile]
    is_complete: bool


class AbortedPage(NamedTuple):
    """Aborted transactions of a partition; those that begin before `known_until` are all there.

    `records_from` has, by their last offset, the first offset that may have a record of them. Transactions
    without records are left out there: a job has dropped them, or retention has removed them.
    """

    transactions: tuple[AbortedTransaction, ...]
    records_from: dict[int, int]
    known_until: int


class IngestionPage(NamedTuple):
    """Ingestion files in commit order; `end` is the cursor behind the last one, None without any."""

    files: list[JobInput]
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Backlog of compaction.

    `ingestion_files` have `ingestion_extents` that no job has claimed; `oldest_ms` is the commit time of the
    oldest of them, None without any. `quarantined_files` are the `quarantine_candidate_files` that no job may
    take.
    """

    ingestion_files: int
    ingestion_bytes: int
    ingestion_extents: int
    oldest_ms: int | None
    quarantine_candidate_files: int
    quarantined_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTotal:
    """Number and total size of some files."""

    count: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of the whole catalog."""

    partitions: int
    live_bytes: int
    dirty_bytes: int
    ingestion_extents: int
    compacted_extents: int
    live_ingestion_files: FileTotal
    live_compacted_files: FileTotal
    dead_files: FileTotal


class Planning:
    """Queries of the planner; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ingestion_files(self, limit: int, *, max_extents: int = 2**62, after: int = 0) -> IngestionPage:
        """Return the oldest `limit` ingestion files, in commit order, that have unclaimed extents.

        Each file comes with these extents, in file order; it is whole if these are all its live ones. The
        total of extents is at most `max_extents`, except that the first file may exceed it. `after` is the
        `end` of the page before. A file that is committed late may lie before it; a walk from 0 finds it.
        """
        params = {"limit": limit, "max_extents": max_extents, "after": after}
        rows = self._database.read("planning.ingestion_files", _SQL["files_to_compact"], params)
        files = self._with_unclaimed_extents(
            {row.file_id: (row.object_name, row.size, row.live_extents) for row in rows}
        )
        return IngestionPage(files, rows[-1].sequence if rows else None)

    def inputs_of_candidates(self, candidates: Collection[QuarantineCandidate]) -> list[JobInput]:
        """Return quarantine candidates with their unclaimed extents, in commit order."""
        return self._with_unclaimed_extents(
            {each.file_id: (each.object_name, each.size, None) for each in candidates}
        )

    def extents_of_files(self, file_ids: Collection[UUID]) -> list[Extent]:
        """Return all live extents of some files, by file and position, with the jobs that claim them."""
        params = {"file_ids": arrays.uuids(file_ids)}
        rows = self._database.read("planning.extents_of_files", _SQL["extents_of_files"], params)
        return [extent_from_row(row) for row in rows]

    def _with_unclaimed_extents(self, files: Mapping[UUID, tuple[str, int, int | None]]) -> list[JobInput]:
        """Return files with their unclaimed extents, given name, size and the number of live extents.

        The number was read before, and no extent is added to a file. So a file with as many unclaimed extents
        is whole.
        """
        if not files:
            return []
        params = {"file_ids": arrays.uuids(files)}
        rows = self._database.read("planning.unclaimed_extents", _SQL["unclaimed_extents_of_files"], params)
        inputs = []
        for file_id, extents in by_file(map(extent_from_row, rows)).items():
            object_name, size, live_extents = files[file_id]
            inputs.append(
                JobInput(
                    file_id=file_id,
                    object_name=object_name,
                    size=size,
                    extents=tuple(extents),
                    is_whole=len(extents) == live_extents,
                )
            )
        return inputs

    def partition_sizes(
        self,
        topic_ids: Collection[UUID] | None = None,
        *,
        after: PartitionId | None = None,
        limit: int = 100_000,
    ) -> list[PartitionSize]:
        """Return up to `limit` partitions of some or all topics, in section order, starting after `after`."""
        start = after or _BEFORE_ALL
        params = {
            "topic_ids": None if topic_ids is None else arrays.uuids(topic_ids),
            "after_topic": start.topic_id,
            "after_partition": start.partition,
            "limit": limit,
        }
        rows = self._database.read("planning.partition_sizes", _SQL["partition_sizes"], params)
        return [_size_from_row(row) for row in rows]

    def sizes_of(self, partitions: Collection[PartitionId]) -> list[PartitionSize]:
        """Return the given partitions in section order; unknown ones are left out."""
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in partitions),
            "partitions": arrays.integers([partition.partition for partition in partitions]),
        }
        return [
            _size_from_row(row) for row in self._database.read("planning.sizes_of", _SQL["sizes_of"], params)
        ]

    def dirty_partitions(
        self, rules: Mapping[UUID, DirtyRule], limit: int, *, include_incomplete: bool = True
    ) -> list[PartitionSize]:
        """Return up to `limit` partitions that may need cleaning, in round-robin order of their topics.

        With `include_incomplete`, partitions whose deduplication is incomplete are included.
        """
        params = {
            "topic_ids": arrays.uuids(rules),
            "ratios": [rule.above_ratio for rule in rules.values()],
            "limited": [rule.limited for rule in rules.values()],
            "include_incomplete": include_incomplete,
            "limit": limit,
        }
        rows = self._database.read("planning.dirty_partitions", _SQL["dirty_partitions"], params)
        return [_size_from_row(row) for row in rows]

    def fragmented_partitions(
        self, *, section_bytes: int, resting_extents: int, start: float, limit: int
    ) -> list[PartitionSize]:
        """Return up to `limit` partitions with too many extents in compacted files.

        A partition may have `resting_extents`, and one more for each `section_bytes` of data. If there are
        more such partitions than `limit`, the result is a contiguous range of them that begins at the
        fraction `start` and wraps around.
        """
        params = {
            "section_bytes": section_bytes,
            "resting_extents": resting_extents,
            "start": start,
            "limit": limit,
        }
        rows = self._database.read("planning.fragmented", _SQL["fragmented_partitions"], params)
        return [_size_from_row(row) for row in rows]

    def newest_compacted_extents(self, partitions: Collection[PartitionId], limit_each: int) -> list[Extent]:
        """Return the newest extents of each partition in compacted files, in section order.

        Each comes with the job that claims it.
        """
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in partitions),
            "partitions": arrays.integers([partition.partition for partition in partitions]),
            "limit": limit_each,
        }
        rows = self._database.read("planning.newest_extents", _SQL["newest_compacted_extents"], params)
        return [extent_from_row(row) for row in rows]

    def files_of(self, file_ids: Collection[UUID]) -> list[LiveFile]:
        """Return those of the given files that are live, in commit order."""
        params = {"file_ids": arrays.uuids(file_ids)}
        rows = self._database.read("planning.files_of", _SQL["files_of"], params)
        return [_live_file_from_row(row) for row in rows]

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
    ) -> MergePage:
        """Return compacted files to merge: small ones, smallest first, and those with the most dead bytes.

        A small file has less than `below_bytes` of live data and at most `extents_each` extents. The other
        files have at least `dead_bytes`, and the share `dead_share`, of dead data. If there are more small
        files than `limit`, the result starts at `from_bytes` of live data.

        Only files without claimed extents are returned: at most `limit`, with at most `max_extents` extents
        in total. One file with more extents than that is added, because it would never be returned otherwise.
        """
        params = {
            "from_bytes": from_bytes,
            "extents_each": extents_each,
            "below_bytes": below_bytes,
            "dead_bytes": dead_bytes,
            "dead_share": dead_share,
            "limit": limit,
        }
        found = self._database.read("planning.files_to_merge", _SQL["files_to_merge"], params)
        rows = _fitting(found, max_extents)
        by_file: dict[UUID, list[Extent]] = {row.file_id: [] for row in rows}
        for extent in self.extents_of_files(list(by_file)) if by_file else ():
            by_file[extent.file_id].append(extent)
        files = [
            MergeFile(
                file=_live_file_from_row(row),
                live_bytes=row.live_bytes,
                dead_bytes=row.dead_bytes,
                extents=extents,
            )
            for row in rows
            # Skip a file whose extents changed between the two queries.
            if len(extents := tuple(by_file[row.file_id])) == row.live_extents
            and not any(extent.claimed_by for extent in extents)
        ]
        return MergePage(files, is_complete=len(found) < limit and len(rows) == len(found))

    def extents_of(self, partition: PartitionId, from_offset: int, limit: int) -> list[Extent]:
        """Return the extent that covers `from_offset` and those after it, with the jobs that claim them."""
        return self.extents_of_each([(partition, from_offset)], limit)

    def extents_of_each(
        self, starts: Sequence[tuple[PartitionId, int]], limit_each: int, *, with_controls: bool = True
    ) -> list[Extent]:
        """Return the extents of many partitions as `extents_of` does, up to `limit_each` of each."""
        params = {
            "with_controls": with_controls,
            "topic_ids": arrays.uuids(partition.topic_id for partition, _ in starts),
            "partitions": arrays.integers([partition.partition for partition, _ in starts]),
            "offsets": arrays.bigints([offset for _, offset in starts]),
            "limit": limit_each,
        }
        return [
            extent_from_row(row)
            for row in self._database.read("planning.extents_of", _SQL["extents_of"], params)
        ]

    def controls_after(self, extents: Sequence[Extent], limit_each: int) -> list[int]:
        """Return the number of control batches directly after each extent, up to `limit_each`.

        It is 0 if the partition does not exist any more.
        """
        params = {
            "topic_ids": arrays.uuids(extent.topic_id for extent in extents),
            "partitions": arrays.integers([extent.partition for extent in extents]),
            "last_offsets": arrays.bigints([extent.last_offset for extent in extents]),
            "limit": limit_each,
        }
        counts = [0] * len(extents)
        for row in self._database.read("planning.controls_after", _SQL["control_batches_after"], params):
            counts[row.number - 1] = row.end_offset - extents[row.number - 1].last_offset - 1
        return counts

    def aborted_transactions(
        self, ranges: Mapping[PartitionId, tuple[int, int]], *, limit_each: int
    ) -> dict[PartitionId, AbortedPage]:
        """Return the aborted transactions that overlap [base, end) of each partition, by first offset.

        Look up the last stable offset before: only below the lower one of both ends are all of them known.
        """
        params = {
            "topic_ids": arrays.uuids(key.topic_id for key in ranges),
            "partitions": arrays.integers([key.partition for key in ranges]),
            "base_offsets": arrays.bigints([base for base, _ in ranges.values()]),
            "end_offsets": arrays.bigints([end for _, end in ranges.values()]),
            "limit": limit_each,
        }
        found: dict[PartitionId, list[Row]] = {key: [] for key in ranges}
        for row in self._database.read("planning.aborted", _SQL["aborted_with_records"], params):
            found[PartitionId(row.topic_id, row.partition)].append(row)
        return {
            key: AbortedPage(
                tuple(AbortedTransaction(row.producer_id, row.first_offset, row.last_offset) for row in rows),
                {
                    row.last_offset: max(row.first_offset, row.extent_offset)
                    for row in rows
                    if row.extent_offset is not None
                },
                _MAX_OFFSET if len(rows) < limit_each else rows[-1].first_offset,
            )
            for key, rows in found.items()
        }

    def backlog(self) -> Backlog:
        """Return the backlog of compaction; the cost is proportional to its number of files."""
        (row,) = self._database.read("planning.backlog", _SQL["backlog"])
        return Backlog(**row._asdict())

    def totals(self) -> Totals:
        """Return the totals of the whole catalog; reads every row of partitions and of files."""
        (totals,) = self._database.read("planning.total_partitions", _SQL["total_partitions"])
        rows = self._database.read("planning.total_files", _SQL["total_files"])
        files = {(row.kind, row.is_live): FileTotal(count=row.files, size=row.size) for row in rows}
        dead = [total for (_, is_live), total in files.items() if not is_live]
        return Totals(
            **totals._asdict(),
            live_ingestion_files=files.get((FileKind.INGESTION, True), FileTotal()),
            live_compacted_files=files.get((FileKind.COMPACTED, True), FileTotal()),
            dead_files=FileTotal(
                count=sum(total.count for total in dead), size=sum(total.size for total in dead)
            ),
        )


def _fitting(rows: Sequence[Row], max_extents: int) -> list[Row]:
    """Return rows of `files_to_merge` whose extents fit into `max_extents`, and one oversized file."""
    fitting: list[Row] = []
    remaining, has_oversized = max_extents, False
    for row in rows:
        if row.live_extents <= remaining:
            remaining -= row.live_extents
            fitting.append(row)
        elif row.live_extents > max_extents and not has_oversized:
            has_oversized = True
            fitting.append(row)
    return fitting


def _live_file_from_row(row: Row) -> LiveFile:
    return LiveFile(
        file_id=row.file_id,
        object_name=row.object_name,
        size=row.size,
        kind=FileKind(row.kind),
        committed_ms=row.committed_ms,
        live_extents=row.live_extents,
    )


def _size_from_row(row: Row) -> PartitionSize:
    return PartitionSize(
        state=state_from_row(row),
        live_bytes=row.live_bytes,
        dirty_bytes=row.dirty_bytes,
        dirty_since_ms=row.dirty_since_ms,
        ingestion_extents=row.ingestion_extents,
        compacted_extents=row.compacted_extents,
        exactness=Exactness(row.exactness),
    )
