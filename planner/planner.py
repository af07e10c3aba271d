"""Plan compaction jobs, freeze them and submit them to the catalog."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.model import JobSpec
from core.errors import StaleStateError
from planner.policy import make_plan
from planner.snapshot_loader import load_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from planner.plan import Plan, PlannedJob
    from planner.settings import PlannerSettings

REPLANS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Accepted jobs, the number lost to another planner, and the number that wait for the budget."""

    jobs: tuple[JobSpec, ...]
    lost: int
    deferred: int = 0


def plan(catalog: Catalog, clock: Clock, settings: PlannerSettings, *, explain: str | None = None) -> Plan:
    """Return what a planner would do now; change nothing.

    `Plan.decisions` covers the partitions that were examined: those with free extents in ingestion files, and
    dirty compacted ones. With `explain` it also covers every partition of that topic. Raise NotFoundError if
    there is no such topic.
    """
    with _gc_paused():
        return make_plan(load_snapshot(catalog, clock.now_ms(), settings, explain=explain), settings)


def submit(catalog: Catalog, clock: Clock, ids: Ids, settings: PlannerSettings, planned: Plan) -> Submission:
    """Freeze and submit the plan's jobs one by one; count those lost to another planner."""
    jobs: list[JobSpec] = []
    lost = 0
    for job in planned.jobs:
        spec = freeze(job, clock, ids, settings)
        try:
            catalog.jobs.submit(spec, moved_bytes=job.score.moved_bytes, nanodollars=job.score.nanodollars)
        except StaleStateError:
            lost += 1
        else:
            jobs.append(spec)
    return Submission(jobs=tuple(jobs), lost=lost, deferred=planned.deferred)


def plan_and_submit(catalog: Catalog, clock: Clock, ids: Ids, settings: PlannerSettings) -> Submission:
    """Plan and submit; plan again, a few times, while another planner claims extents first."""
    jobs: list[JobSpec] = []
    lost = deferred = 0
    for _ in range(1 + REPLANS):
        submission = submit(catalog, clock, ids, settings, plan(catalog, clock, settings))
        jobs += submission.jobs
        lost += submission.lost
        deferred = submission.deferred
        if not submission.lost:
            break
    return Submission(jobs=tuple(jobs), lost=lost, deferred=deferred)


def freeze(job: PlannedJob, clock: Clock, ids: Ids, settings: PlannerSettings) -> JobSpec:
    """Fix everything that the job's outcome depends on."""
    now_ms = clock.now_ms()
    return JobSpec(
        job_id=ids.new_uuid(),
        created_ms=now_ms,
        now_ms=now_ms,
        hash_seed=ids.random_bytes(16),
        table_bytes=settings.table_bytes,
        reason=job.reason,
        inputs=job.inputs,
        partitions=job.partitions,
        output_bytes=job.output_bytes,
        merge_batches=settings.merge_batches,
        exact=job.exact,
    )


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pause the cycle collector while a snapshot grows; scanning it took half of the time.

    A snapshot is bounded, has no cycles, and is freed by reference counts.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
