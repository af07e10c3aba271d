"""Claims of jobs on their inputs.

A job that has all live extents of a file claims the file, and single extents of other files. A claimed file
names its job in one row, and its extents do not. A claimed extent names its job, and its file counts it.
Extents are locked before files, in the order of their keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import ExtentsUnavailableError
from catalog.lifecycle.garbage import lock_files, subtract_from_files
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Transaction
    from catalog.lifecycle.garbage import FileRemoval
    from catalog.model import Extent, JobInput, JobSpec

_SQL = load_queries("claims")


def claim_inputs(transaction: Transaction, spec: JobSpec) -> None:
    """Claim the inputs of a new job.

    Extents of a topic that was deleted after the plan may be among those of a claimed file. The publication
    leaves them out. ExtentsUnavailableError: an extent is no longer live, another job has claimed it, or
    transactions have changed.
    """
    files = sorted(spec.inputs, key=lambda file: file.file_id)
    whole = [file for file in files if file.is_whole]
    others = [file for file in files if not file.is_whole]
    extents = [extent for file in spec.inputs if not file.is_whole for extent in file.extents]
    if extents:
        _lock_extents(transaction, spec, extents)
    lock_files(transaction, (file.file_id for file in files))
    if whole:
        _claim_files(transaction, spec, whole)
    if extents:
        _claim_extents(transaction, spec, others, extents)
    job_files = {"job_id": spec.job_id, "file_ids": arrays.uuids(file.file_id for file in files)}
    transaction.send(_SQL["insert_job_files"], job_files)
    _check_transactions(transaction, spec)


def _lock_extents(transaction: Transaction, spec: JobSpec, extents: Sequence[Extent]) -> None:
    """Lock extents, or raise ExtentsUnavailableError if one is not live or is claimed."""
    params = {
        "topic_ids": arrays.uuids(extent.topic_id for extent in extents),
        "partitions": arrays.integers([extent.partition for extent in extents]),
        "base_offsets": arrays.bigints([extent.base_offset for extent in extents]),
        "last_offsets": arrays.bigints([extent.last_offset for extent in extents]),
        "file_ids": arrays.uuids(extent.file_id for extent in extents),
    }
    # The extents are distinct, because `check_spec` has found no overlap.
    locked = transaction.rows(_SQL["lock_inputs"], params)
    if len(locked) != len(extents):
        available = {(row.topic_id, row.partition, row.base_offset) for row in locked}
        missing = next(
            extent
            for extent in extents
            if (extent.topic_id, extent.partition, extent.base_offset) not in available
        )
        raise ExtentsUnavailableError(
            f"job {spec.job_id}: the extent of topic {missing.topic_id}, partition {missing.partition} at "
            f"offset {missing.base_offset} was removed, or another job has claimed it",
            remedy="plan again",
        )


def _claim_files(transaction: Transaction, spec: JobSpec, files: Sequence[JobInput]) -> None:
    """Claim locked files with all their live extents, or raise ExtentsUnavailableError if one has changed."""
    claimed = transaction.rows(_SQL["claim_files"], {"job_id": spec.job_id, **_counts_by_file(files)})
    _check_claimed(spec, files, claimed)


def _claim_extents(
    transaction: Transaction, spec: JobSpec, files: Sequence[JobInput], extents: Sequence[Extent]
) -> None:
    """Claim locked extents of locked files, or raise ExtentsUnavailableError if a job claims such a file."""
    params = {
        "job_id": spec.job_id,
        "topic_ids": arrays.uuids(extent.topic_id for extent in extents),
        "partitions": arrays.integers([extent.partition for extent in extents]),
        "base_offsets": arrays.bigints([extent.base_offset for extent in extents]),
    }
    _check_claimed(spec, files, transaction.rows(_SQL["add_claims"], _counts_by_file(files)))
    transaction.send(_SQL["claim_inputs"], params)


def _counts_by_file(files: Sequence[JobInput]) -> dict[str, object]:
    return {
        "file_ids": arrays.uuids(file.file_id for file in files),
        "claims": arrays.bigints([len(file.extents) for file in files]),
    }


def _check_claimed(spec: JobSpec, files: Sequence[JobInput], claimed: Sequence[Row]) -> None:
    """Raise ExtentsUnavailableError if a file is not among the claimed ones."""
    if len(claimed) == len(files):
        return
    found = {row.file_id for row in claimed}
    missing = next(file for file in files if file.file_id not in found)
    raise ExtentsUnavailableError(
        f"job {spec.job_id}: an extent of file {missing.object_name} was removed, or another job has claimed "
        "one",
        remedy="plan again",
    )


def _check_transactions(transaction: Transaction, spec: JobSpec) -> None:
    """Raise ExtentsUnavailableError unless the job may drop and keep what it would.

    It keeps to the last stable offset, knows all aborted transactions of its range, and removes no control
    batch whose transaction has records before the range. Its extents are claimed, so this stays true.
    """
    ranges = {PartitionId(each.topic_id, each.partition): each for each in spec.partitions}
    params = {
        "topic_ids": arrays.uuids(key.topic_id for key in ranges),
        "partitions": arrays.integers([key.partition for key in ranges]),
        "base_offsets": arrays.bigints([each.base_offset for each in ranges.values()]),
        "upper_offsets": arrays.bigints([each.upper_offset for each in ranges.values()]),
    }
    for row in transaction.rows(_SQL["aborted_in_inputs"], params):
        planned = ranges[PartitionId(row.topic_id, row.partition)]
        known = {(each.producer_id, each.last_offset) for each in planned.aborted}
        unknown = set(zip(row.producer_ids, row.last_offsets, strict=True)) - known
        if row.splits or unknown or planned.upper_offset > row.last_stable_offset:
            raise ExtentsUnavailableError(
                f"job {spec.job_id}: the transactions of topic {planned.topic_name}, partition "
                f"{planned.partition} have changed since the job was planned",
                remedy="plan again",
            )


def release_inputs(
    transaction: Transaction, job_id: UUID, removed: Sequence[FileRemoval] = (), now_ms: int = 0
) -> None:
    """Release the extents and files that a job still claims, and subtract `removed` ones from the files."""
    released = transaction.rows(_SQL["release_extents"], {"job_id": job_id})
    whole = [row.file_id for row in transaction.rows(_SQL["claimed_files"], {"job_id": job_id})]
    changed = {row.file_id for row in released} | {each.file_id for each in removed} | set(whole)
    lock_files(transaction, sorted(changed))
    subtract_from_files(transaction, removed, now_ms)
    if whole:
        transaction.send(_SQL["release_files"], {"file_ids": arrays.uuids(whole)})
    params = {
        "file_ids": arrays.uuids(row.file_id for row in released),
        "claims": arrays.bigints([-row.extents for row in released]),
    }
    transaction.send(_SQL["add_claims"], params)
    transaction.send(_SQL["delete_job_files"], {"job_id": job_id})
