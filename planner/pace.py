"""Pace of continuous compaction: small amounts of new data wait for more, for a limited time.

Each job has a fixed cost, and small outputs are merged again, so a watcher that took every file at once would
rewrite a trickle several times. Ingestion files therefore wait until there are enough of them, by number or
bytes, or until the oldest of them is old enough. A cleaning job waits in the same way for dirty bytes. This
module only says what a job waits for; `policy` leaves such jobs out of a paced plan.

Readers do not wait: records are readable once they are committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.dirtiness import measure
from planner.plan import Wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.selection import JobDraft
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView

# A plan examines a bounded number of extents. Files with so large a part of them need not wait for more,
# because the plan would not see the others.
_LARGE_PART_OF_PLAN = 4


def ingestion_wait(
    files: Sequence[FileView], size: int, extents: int, now_ms: int, settings: PlannerSettings
) -> Wait | None:
    """Return what these ingestion files wait for, or None if a job should take them now."""
    age_ms = now_ms - min(file.committed_ms for file in files)
    if is_ingestion_due(len(files), size, extents, age_ms, settings):
        return None
    return Wait(
        files=_enough_files(settings) - len(files),
        size_bytes=_enough_bytes(settings) - size,
        seconds=(settings.max_ingestion_age_ms - age_ms) / 1000,
    )


def is_ingestion_due(files: int, size: int, extents: int, age_ms: int, settings: PlannerSettings) -> bool:
    """Return True if so many ingestion files, bytes or extents of this age wait for no more.

    It never becomes False as any of the numbers grows. So totals that are not due contain no job that is.
    """
    return files > 0 and (
        settings.force
        or files >= _enough_files(settings)
        or size >= _enough_bytes(settings)
        or extents >= min(settings.max_job_extents, settings.max_plan_extents // _LARGE_PART_OF_PLAN)
        or age_ms >= settings.max_ingestion_age_ms
    )


def _enough_files(settings: PlannerSettings) -> int:
    return min(settings.min_ingestion_files, settings.max_job_files)


def _enough_bytes(settings: PlannerSettings) -> int:
    return min(settings.min_ingestion_bytes, settings.max_job_input_bytes)


def cleaning_wait(draft: JobDraft, now_ms: int, settings: PlannerSettings) -> Wait | None:
    """Return what a cleaning job waits for, or None if it should run now.

    A job that max.compaction.lag.ms forces, or that an inexact job requires, does not wait.
    """
    if settings.force or draft.exact:
        return None
    found = [measure(view, extents, now_ms) for view, extents in draft.partitions()]
    cleanable_bytes = sum(each.cleanable_bytes for each in found)
    age_ms = now_ms - draft.oldest_ms
    if (
        cleanable_bytes >= settings.min_cleaning_bytes
        or age_ms >= settings.max_cleaning_age_ms
        or any(each.overdue_ms > 0 for each in found)
    ):
        return None
    return Wait(
        files=0,
        size_bytes=settings.min_cleaning_bytes - cleanable_bytes,
        seconds=(settings.max_cleaning_age_ms - age_ms) / 1000,
    )
