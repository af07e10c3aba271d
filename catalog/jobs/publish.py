"""The swap: a finished job's outputs take the place of its inputs, in one transaction.

Locks are taken in the order of `catalog.commit.log`: the job, its topics, their partitions, their extents,
then files. A partition whose topic was deleted meanwhile is left out. So is one that the job has
deduplicated and whose topic is not compacted any more: it keeps its extents as they are (Kafka aborts a
cleaning for the same reason). An input that is gone is missed only if it lies below the log start: then
retention has taken it; otherwise the swap is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from catalog.config.topic_config import TopicConfig
from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import JobInputsChangedError
from catalog.jobs.checks import inputs_by_partition, outputs_by_partition
from catalog.model import Exactness, FileKind, PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Transaction
    from catalog.model import JobPartition, JobResult, JobSpec, OutputExtent, OutputFile

_SQL = load_queries("publish")
_COMMIT = load_queries("commit")


@dataclass(slots=True)
class _Partition:
    """A partition that exists, as locked, and what the swap does to it."""

    plan: JobPartition
    log_start_offset: int
    first_dirty_offset: int
    leader_epoch: int
    max_timestamp_so_far: int
    exactness: Exactness
    new_first_dirty_offset: int
    removed: list[Row] = field(default_factory=list)
    live_bytes: int = 0
    dirty_bytes: int = 0
    ingestion_extents: int = 0
    compacted_extents: int = 0

    def take_out(self, row: Row) -> None:
        """Count an extent that goes: a row of `remove_inputs`."""
        self.removed.append(row)
        last_offset, length, kind = row[3], row[4], row[7]
        self.live_bytes -= length
        self.dirty_bytes -= length if last_offset >= self.first_dirty_offset else 0
        self.ingestion_extents -= kind == FileKind.INGESTION
        self.compacted_extents -= kind == FileKind.COMPACTED

    def put_in(self, extent: OutputExtent) -> tuple[int, int]:
        """Count an extent that comes; gives its bound of timestamps, and since when its data is there."""
        self.live_bytes += extent.length
        self.dirty_bytes += extent.length if extent.last_offset >= self.new_first_dirty_offset else 0
        self.compacted_extents += 1
        self.max_timestamp_so_far = max(self.max_timestamp_so_far, extent.max_timestamp)
        overlapping = (
            row[5] for row in self.removed if row[2] <= extent.last_offset and row[3] >= extent.base_offset
        )
        return self.max_timestamp_so_far, min(overlapping)


def _cleans(plan: JobPartition) -> bool:
    """Whether a job deduplicates a partition together with all that is older."""
    return plan.deduplicate and plan.reaches_log_start


def _exactness_after(
    partition: _Partition, written: Sequence[OutputExtent], *, to_be_exact: bool, kept: int, taken: int
) -> Exactness:
    """How exact a partition is after a job has cleaned it.

    A job that came out exact over a part of what others had left inexact leaves the rest of it. One that was
    to be exact, is not, and dropped less than a tenth of `taken` records has done about all that such jobs
    can: it is not planned again and again.
    """
    if all(extent.unique_keys for extent in written):
        whole = partition.plan.upper_offset >= partition.first_dirty_offset
        return Exactness.EXACT if whole else partition.exactness
    return (
        Exactness.DEDUP_IMPOSSIBLE
        if to_be_exact and 10 * (taken - kept) < taken
        else Exactness.DEDUP_INCOMPLETE
    )


class Swap:
    """One try at a swap, inside its transaction; the job's row is locked already."""

    def __init__(self, transaction: Transaction, spec: JobSpec, result: JobResult, now_ms: int) -> None:
        self._transaction = transaction
        self._spec = spec
        self._result = result
        self._now_ms = now_ms
        self._partitions: dict[PartitionId, _Partition] = {}

    def run(self) -> list[tuple[UUID, int, int, int]]:
        """Swap, or raise JobInputsChangedError; the removed extents by file, as `drop_from_files` takes them.

        The caller drops them, once it has locked all the extents that it wants: files come last.
        """
        removed = self._lock_and_remove()
        for row in removed:
            self._partitions[PartitionId(row[0], row[1])].take_out(row)
        self._check_missing()
        outputs = self._take_in_outputs()
        self._judge_exactness()
        self._update_partitions()
        if outputs:
            self._transaction.send(_SQL["insert_outputs"], _output_params(outputs))
        counts: dict[UUID, int] = {}
        sizes: dict[UUID, int] = {}
        for row in removed:
            counts[row[6]] = counts.get(row[6], 0) + 1
            sizes[row[6]] = sizes.get(row[6], 0) + row[4]
        return [(file_id, counts[file_id], counts[file_id], sizes[file_id]) for file_id in sorted(counts)]

    def _lock_and_remove(self) -> list[Row]:
        plans = self._still_wanted()
        locked = self._transaction.rows(
            _SQL["lock_partitions"],
            {
                "topic_ids": arrays.uuids(key.topic_id for key in plans),
                "partitions": arrays.integers([key.partition for key in plans]),
                "base_offsets": arrays.bigints([plan.base_offset for plan in plans.values()]),
            },
        )
        for topic_id, number, log_start, first_dirty, leader_epoch, exactness, so_far in locked:
            plan = plans[PartitionId(topic_id, number)]
            clean_to = max(first_dirty, plan.upper_offset) if _cleans(plan) else first_dirty
            self._partitions[PartitionId(topic_id, number)] = _Partition(
                plan=plan,
                log_start_offset=log_start,
                first_dirty_offset=first_dirty,
                leader_epoch=leader_epoch,
                max_timestamp_so_far=so_far,
                exactness=Exactness(exactness),
                new_first_dirty_offset=clean_to,
            )
        return self._transaction.rows(
            _SQL["remove_inputs"],
            {
                "job_id": self._spec.job_id,
                "topic_ids": arrays.uuids(key.topic_id for key in self._partitions),
                "partitions": arrays.integers([key.partition for key in self._partitions]),
            },
        )

    def _still_wanted(self) -> dict[PartitionId, JobPartition]:
        """The job's partitions whose topics are there, and may still be treated as they were."""
        topic_ids = sorted({plan.topic_id for plan in self._spec.partitions})
        rows = self._transaction.rows(_SQL["share_topics"], {"topic_ids": arrays.uuids(topic_ids)})
        compacted = {topic_id: TopicConfig.stored(config).compacts for topic_id, config in rows}
        return {
            PartitionId(plan.topic_id, plan.partition): plan
            for plan in self._spec.partitions
            if plan.topic_id in compacted and (compacted[plan.topic_id] or not plan.deduplicate)
        }

    def _check_missing(self) -> None:
        for key, extents in inputs_by_partition(self._spec).items():
            partition = self._partitions.get(key)
            if partition is None:
                continue  # its topic was deleted, or is not compacted any more
            there = {row[2] for row in partition.removed}
            for extent in extents:
                if extent.base_offset not in there and extent.last_offset >= partition.log_start_offset:
                    raise JobInputsChangedError(
                        f"job {self._spec.job_id}: the extent of topic {partition.plan.topic_name}, "
                        f"partition {key.partition} at offset {extent.base_offset} is no longer the job's",
                        remedy="fail the job; what is left will be planned anew",
                    )

    def _take_in_outputs(self) -> list[tuple[UUID, UUID, tuple[int, ...]]]:
        """Adds the output files and counts their extents, which are returned as rows to insert."""
        rows: list[tuple[UUID, UUID, tuple[int, ...]]] = []
        files = {extent: file for file in self._result.files for extent in file.extents}
        kept: dict[UUID, list[int]] = {file.file_id: [] for file in self._result.files}
        for key, extents in outputs_by_partition(self._result).items():
            partition = self._partitions.get(key)
            for extent in extents:
                if partition is None or extent.last_offset < partition.log_start_offset:
                    continue
                so_far, committed_ms = partition.put_in(extent)
                file_id = files[extent].file_id
                kept[file_id].append(extent.length)
                numbers = _numbers(extent, so_far, partition.leader_epoch, committed_ms)
                rows.append((key.topic_id, file_id, numbers))
        for file in self._result.files:
            self._insert_file(file, kept[file.file_id])
        return rows

    def _judge_exactness(self) -> None:
        """Whether keys may be there twice in what the job has deduplicated from the log start on."""
        inputs, outputs = inputs_by_partition(self._spec), outputs_by_partition(self._result)
        for key, partition in self._partitions.items():
            if _cleans(partition.plan):
                written = outputs.get(key, [])
                partition.exactness = _exactness_after(
                    partition,
                    written,
                    to_be_exact=self._spec.exact,
                    kept=sum(each.record_count for each in written),
                    taken=sum(each.record_count for each in inputs[key]),
                )

    def _insert_file(self, file: OutputFile, lengths: list[int]) -> None:
        self._transaction.send(
            _COMMIT["insert_file"],
            {
                "file_id": file.file_id,
                "object_name": file.object_name,
                "kind": FileKind.COMPACTED.value,
                "size": file.size,
                "directory_length": file.directory_length,
                "owner_id": self._spec.job_id,
                "now_ms": self._now_ms,
                "extents": len(lengths),
                "born_bytes": sum(extent.length for extent in file.extents),
                "live_bytes": sum(lengths),
            },
        )

    def _update_partitions(self) -> None:
        changed = list(self._partitions.items())
        if not changed:
            return
        self._transaction.send(
            _SQL["add_to_partitions"],
            {
                "topic_ids": arrays.uuids(key.topic_id for key, _ in changed),
                "partitions": arrays.integers([key.partition for key, _ in changed]),
                "first_dirty_offsets": arrays.bigints([each.new_first_dirty_offset for _, each in changed]),
                "live_bytes": arrays.bigints([each.live_bytes for _, each in changed]),
                "dirty_bytes": arrays.bigints([each.dirty_bytes for _, each in changed]),
                "ingestion_extents": arrays.bigints([each.ingestion_extents for _, each in changed]),
                "compacted_extents": arrays.bigints([each.compacted_extents for _, each in changed]),
                "exactness": [each.exactness.value for _, each in changed],
            },
        )


_NUMBERS = (
    "partitions",
    "base_offsets",
    "last_offsets",
    "record_counts",
    "min_timestamps",
    "max_timestamps",
    "max_timestamps_so_far",
    "positions",
    "lengths",
    "index_positions",
    "index_lengths",
    "leader_epochs",
    "unique_keys",
    "committed",
)


def _numbers(extent: OutputExtent, so_far: int, leader_epoch: int, committed_ms: int) -> tuple[int, ...]:
    return (
        extent.partition,
        extent.base_offset,
        extent.last_offset,
        extent.record_count,
        extent.min_timestamp,
        extent.max_timestamp,
        so_far,
        extent.position,
        extent.length,
        extent.index_position,
        extent.index_length,
        leader_epoch,
        int(extent.unique_keys),
        committed_ms,
    )


def _output_params(rows: list[tuple[UUID, UUID, tuple[int, ...]]]) -> dict[str, object]:
    columns = zip(*(numbers for _, _, numbers in rows), strict=True)
    return {
        "topic_ids": arrays.uuids(topic_id for topic_id, _, _ in rows),
        "file_ids": arrays.uuids(file_id for _, file_id, _ in rows),
        **{
            name: arrays.integers(column)
            if name in {"partitions", "leader_epochs"}
            else arrays.bigints(column)
            for name, column in zip(_NUMBERS, columns, strict=True)
        },
    }
