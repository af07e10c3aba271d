"""Publication of a finished job: its outputs replace its inputs in one transaction.

Locks are taken in the order of `catalog.commit.attempt`: the job, its topics, their partitions, their
extents, then files.

- A partition whose topic was deleted meanwhile is skipped.
- A partition that the job has deduplicated, and whose topic is no longer compacted, is skipped and keeps its
  input extents. Kafka aborts a cleaning for the same reason.
- A process that freezes while it holds these locks would hold up commits. So the result is computed with a
  statement now and then (`Transaction.keep_alive`), and all that writes is sent at the end: a longer silence
  ends the transaction.
- The control batches of the range and the aborted transactions whose records are gone are removed with the
  inputs (`docs/explanation/transactions.md`).
- An input extent may be missing only if it lies below the log start offset, because then retention has
  removed it. Otherwise the publication is rejected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from catalog.config.values import TopicConfig
from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import JobInputsChangedError
from catalog.grouping import by_file
from catalog.jobs.validation import inputs_by_partition, outputs_by_partition
from catalog.lifecycle.garbage import FileRemoval
from catalog.model import EPOCHS_IN_BATCHES, Exactness, FileKind, PartitionId
from catalog.rows import format_params

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from catalog.database.pool import Transaction
    from catalog.model import Extent, JobPartition, JobResult, JobSpec, OutputExtent, OutputFile

_SQL = load_queries("publish")
_COMMIT = load_queries("commit")


@dataclass(slots=True)
class _Partition:
    """Locked partition, and the changes that the publication makes to its totals."""

    plan: JobPartition
    log_start_offset: int
    first_dirty_offset: int
    max_timestamp_so_far: int
    exactness: Exactness
    has_transactions: bool
    new_first_dirty_offset: int
    removed: list[Extent] = field(default_factory=list)
    live_bytes: int = 0
    dirty_bytes: int = 0
    ingestion_extents: int = 0
    compacted_extents: int = 0

    def remove(self, extents: list[Extent]) -> None:
        """Count removed extents, in offset order."""
        self.removed = extents
        for extent in extents:
            self.live_bytes -= extent.length
            self.dirty_bytes -= extent.length if extent.last_offset >= self.first_dirty_offset else 0
            if extent.file_kind is FileKind.INGESTION:
                self.ingestion_extents -= 1
            else:
                self.compacted_extents -= 1

    def add(self, extent: OutputExtent, now_ms: int) -> tuple[int, int]:
        """Count a new extent; return its `max_timestamp_so_far` and the commit time of its oldest data.

        That is `now_ms` if retention has removed the data, and only control batches are left.
        """
        self.live_bytes += extent.length
        self.dirty_bytes += extent.length if extent.last_offset >= self.new_first_dirty_offset else 0
        self.compacted_extents += 1
        self.max_timestamp_so_far = max(self.max_timestamp_so_far, extent.max_timestamp)
        first = bisect_left(self.removed, extent.base_offset, key=attrgetter("last_offset"))
        end = bisect_right(self.removed, extent.last_offset, lo=first, key=attrgetter("base_offset"))
        committed = [row.committed_ms for row in self.removed[first:end]]
        if not committed and self.has_transactions:
            committed.append(now_ms)
        return self.max_timestamp_so_far, min(committed)


class _NewExtent(NamedTuple):
    """Row of `insert_outputs`."""

    topic_id: UUID
    file_id: UUID
    extent: OutputExtent
    max_timestamp_so_far: int
    committed_ms: int


def _is_cleaning(plan: JobPartition) -> bool:
    """Return True if the job deduplicates the partition from the log start on."""
    return plan.deduplicate and plan.reaches_log_start


def _exactness_after(
    partition: _Partition, outputs: Sequence[OutputExtent], *, is_exact_job: bool, written: int, read: int
) -> Exactness:
    """Return a partition's exactness after a job has cleaned it.

    `read` and `written` are numbers of records. A job with unique keys makes the partition exact if it covers
    the whole clean part; otherwise the exactness stays. An exact job without unique keys that dropped less
    than a tenth of its records shows that further exact jobs are useless, so none is planned again.
    """
    if all(extent.unique_keys for extent in outputs):
        covers_clean_part = partition.plan.upper_offset >= partition.first_dirty_offset
        return Exactness.EXACT if covers_clean_part else partition.exactness
    is_useless = is_exact_job and 10 * (read - written) < read
    return Exactness.DEDUP_IMPOSSIBLE if is_useless else Exactness.DEDUP_INCOMPLETE


class JobPublication:
    """Publication of a job's result; may run in several transactions until one of them is committed."""

    def __init__(self, spec: JobSpec, result: JobResult) -> None:
        self._spec = spec
        self._result = result
        self._inputs = inputs_by_partition(spec)
        self._outputs = outputs_by_partition(result)
        self._files = {extent: file.file_id for file in result.files for extent in file.extents}
        self._partitions: dict[PartitionId, _Partition] = {}

    def run(self, transaction: Transaction, now_ms: int) -> list[FileRemoval]:
        """Publish the result, or raise JobInputsChangedError; return the removed extents by file.

        The job's row is locked already. The caller subtracts the removed extents from the files' counts after
        it has locked all extents that it changes, because files are locked last.
        """
        self._transaction = transaction
        self._now_ms = now_ms
        self._partitions = {}
        self._lock_partitions()
        self._remove_inputs()
        self._remove_transactions()
        new_extents = self._add_outputs()
        self._update_exactness()
        self._insert_files(new_extents)
        self._update_partitions()
        if new_extents:
            self._transaction.send(_SQL["insert_outputs"], _output_params(new_extents))
        removed = by_file(extent for partition in self._partitions.values() for extent in partition.removed)
        return [
            FileRemoval(file_id, len(extents), len(extents), sum(extent.length for extent in extents))
            for file_id, extents in sorted(removed.items())
        ]

    def _lock_partitions(self) -> None:
        plans = self._publishable()
        locked = self._transaction.rows(
            _SQL["lock_partitions"],
            {
                "topic_ids": arrays.uuids(key.topic_id for key in plans),
                "partitions": arrays.integers([key.partition for key in plans]),
                "base_offsets": arrays.bigints([plan.base_offset for plan in plans.values()]),
            },
        )
        for row in locked:
            key = PartitionId(row.topic_id, row.partition)
            plan = plans[key]
            if plan.reaches_log_start and plan.base_offset > row.log_start_offset:
                # A tombstone was dropped above older records. It takes a failover that lost a log start.
                raise JobInputsChangedError(
                    f"job {self._spec.job_id}: topic {plan.topic_name}, partition {key.partition} has "
                    f"records from offset {row.log_start_offset} on, and the job expected none before "
                    f"{plan.base_offset}",
                    remedy="fail the job; the planner will plan the remaining extents again",
                )
            clean_to = row.first_dirty_offset
            if _is_cleaning(plan):
                clean_to = max(clean_to, plan.upper_offset)
            self._partitions[key] = _Partition(
                plan=plan,
                log_start_offset=row.log_start_offset,
                first_dirty_offset=row.first_dirty_offset,
                max_timestamp_so_far=row.max_timestamp_so_far,
                exactness=Exactness(row.exactness),
                has_transactions=row.has_transactions,
                new_first_dirty_offset=clean_to,
            )

    def _publishable(self) -> dict[PartitionId, JobPartition]:
        """Return the partitions whose topics exist and still allow what the job did."""
        topic_ids = sorted({plan.topic_id for plan in self._spec.partitions})
        rows = self._transaction.rows(_SQL["share_topics"], {"topic_ids": arrays.uuids(topic_ids)})
        compacts = {row.topic_id: TopicConfig.from_stored(row.config).compacts for row in rows}
        return {
            PartitionId(plan.topic_id, plan.partition): plan
            for plan in self._spec.partitions
            if plan.topic_id in compacts and (compacts[plan.topic_id] or not plan.deduplicate)
        }

    def _remove_inputs(self) -> None:
        """Remove the job's extents from the locked partitions; those below the log start may be gone already.

        Partitions whose topic was deleted, or is no longer compacted, keep theirs.
        """
        omitted = [key for key in self._inputs if key not in self._partitions]
        params = {
            "job_id": self._spec.job_id,
            "topic_ids": arrays.uuids(key.topic_id for key in omitted),
            "partitions": arrays.integers([key.partition for key in omitted]),
        }
        rows = self._transaction.rows(_SQL["remove_inputs"], params)
        found = {PartitionId(row.topic_id, row.partition): set(row.base_offsets) for row in rows}
        self._check_inputs(found)
        for key, partition in self._partitions.items():
            removed = found.get(key, set())
            partition.remove([extent for extent in self._inputs[key] if extent.base_offset in removed])

    def _check_inputs(self, found: Mapping[PartitionId, set[int]]) -> None:
        """Raise JobInputsChangedError unless exactly the planned extents were removed.

        Those below the log start offset may be missing. Others would be lost, because no output has their
        records.
        """
        for key in self._partitions.keys() | found.keys():
            self._transaction.keep_alive()
            planned = {extent.base_offset for extent in self._inputs.get(key, ())}
            removed = found.get(key, set())
            if removed == planned:
                continue
            log_start_offset = self._partitions[key].log_start_offset if planned else 0
            expired = {
                extent.base_offset
                for extent in self._inputs.get(key, ())
                if extent.last_offset < log_start_offset
            }
            if changed := (planned ^ removed) - (expired - removed):
                offset = min(changed)
                fault = "is no longer the job's" if offset in planned else "was not planned"
                raise JobInputsChangedError(
                    f"job {self._spec.job_id}: the extent of topic {self._topic_name(key)}, partition "
                    f"{key.partition} at offset {offset} {fault}",
                    remedy="fail the job; the planner will plan the remaining extents again",
                )

    def _topic_name(self, key: PartitionId) -> str:
        partition = self._partitions.get(key)
        return str(key.topic_id) if partition is None else partition.plan.topic_name

    def _remove_transactions(self) -> None:
        """Remove the control batches of the job's ranges, and aborted transactions without records.

        The outputs have no record of an aborted transaction. A reader needs a control batch only to know
        where an aborted transaction ends, so no control batch is needed once its transaction has no record.
        """
        changed = [key for key, partition in self._partitions.items() if partition.has_transactions]
        if not changed:
            return
        plans = [self._partitions[key].plan for key in changed]
        params = {
            "topic_ids": arrays.uuids(key.topic_id for key in changed),
            "partitions": arrays.integers([key.partition for key in changed]),
            "base_offsets": arrays.bigints([plan.base_offset for plan in plans]),
            "upper_offsets": arrays.bigints([plan.upper_offset for plan in plans]),
            "now_ms": self._now_ms,
        }
        self._transaction.send(_SQL["remove_controls"], params)
        for row in self._transaction.rows(_SQL["shrink_aborted"], params):
            raise JobInputsChangedError(
                f"job {self._spec.job_id}: it removes the control batch at offset {row.last_offset} of topic "
                f"{row.topic_id}, partition {row.partition}, but records of its transaction are left",
                remedy="fail the job; the planner will plan the extents again",
            )

    def _add_outputs(self) -> list[_NewExtent]:
        """Count the output extents, and return those to insert."""
        new_extents: list[_NewExtent] = []
        for key, extents in self._outputs.items():
            partition = self._partitions.get(key)
            if partition is None:
                continue
            for extent in extents:
                self._transaction.keep_alive()
                if extent.last_offset < partition.log_start_offset:
                    continue
                so_far, committed_ms = partition.add(extent, self._now_ms)
                file_id = self._files[extent]
                new_extents.append(_NewExtent(key.topic_id, file_id, extent, so_far, committed_ms))
        return new_extents

    def _update_exactness(self) -> None:
        for key, partition in self._partitions.items():
            self._transaction.keep_alive()
            if _is_cleaning(partition.plan):
                written = self._outputs.get(key, [])
                partition.exactness = _exactness_after(
                    partition,
                    written,
                    is_exact_job=self._spec.exact,
                    written=sum(each.record_count for each in written),
                    read=sum(each.record_count for each in self._inputs[key]),
                )

    def _insert_files(self, new_extents: Sequence[_NewExtent]) -> None:
        lengths: dict[UUID, list[int]] = {file.file_id: [] for file in self._result.files}
        for each in new_extents:
            lengths[each.file_id].append(each.extent.length)
        for file in self._result.files:
            self._insert_file(file, lengths[file.file_id])

    def _insert_file(self, file: OutputFile, lengths: list[int]) -> None:
        """Insert an output file; `lengths` are those of its live extents."""
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
                "initial_bytes": sum(extent.length for extent in file.extents),
                "live_bytes": sum(lengths),
                **format_params(file.format),
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


def _output_params(rows: Sequence[_NewExtent]) -> dict[str, object]:
    extents = [row.extent for row in rows]
    return {
        "topic_ids": arrays.uuids(row.topic_id for row in rows),
        "file_ids": arrays.uuids(row.file_id for row in rows),
        "partitions": arrays.integers([each.partition for each in extents]),
        "base_offsets": arrays.bigints([each.base_offset for each in extents]),
        "last_offsets": arrays.bigints([each.last_offset for each in extents]),
        "record_counts": arrays.bigints([each.record_count for each in extents]),
        "min_timestamps": arrays.bigints([each.min_timestamp for each in extents]),
        "max_timestamps": arrays.bigints([each.max_timestamp for each in extents]),
        "max_timestamps_so_far": arrays.bigints([row.max_timestamp_so_far for row in rows]),
        "positions": arrays.bigints([each.position for each in extents]),
        "lengths": arrays.bigints([each.length for each in extents]),
        "index_positions": arrays.bigints([each.index_position for each in extents]),
        "index_lengths": arrays.bigints([each.index_length for each in extents]),
        "leader_epochs": arrays.integers([EPOCHS_IN_BATCHES] * len(rows)),
        "unique_keys": arrays.bigints([int(each.unique_keys) for each in extents]),
        "committed": arrays.bigints([row.committed_ms for row in rows]),
    }
