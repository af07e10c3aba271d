"""Plan compaction jobs, freeze them and submit them to the catalog."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from catalog.model import JobSpec
from core.cycle_collector import collector_paused
from core.errors import StaleStateError
from planner.policy import make_plan
from planner.snapshot_loader import load_snapshot

if TYPE_CHECKING:
    import threading

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from planner.plan import Plan, PlannedJob
    from planner.settings import PlannerSettings

REPLANS: Final = 3
MAX_PLANS: Final = 32
"""Plans of one look. Each takes up to a second, and other watchers wait for a look for a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Accepted jobs, the number lost to another planner, and the number that wait for the budget.

    If there are none of all three, another look finds nothing before `next_change_ms` unless the catalog
    changes (None: at no time), provided that `is_complete`.
    """

    jobs: tuple[JobSpec, ...]
    lost: int
    deferred: int = 0
    next_change_ms: int | None = None
    is_complete: bool = True

    def joined(self, later: Submission) -> Submission:
        """Return both as one; the budget is that of the later one."""
        times = [each.next_change_ms for each in (self, later) if each.next_change_ms is not None]
        return Submission(
            jobs=self.jobs + later.jobs,
            lost=self.lost + later.lost,
            deferred=later.deferred,
            next_change_ms=min(times, default=None),
            is_complete=self.is_complete and later.is_complete,
        )


@collector_paused()
def plan(
    catalog: Catalog,
    clock: Clock,
    settings: PlannerSettings,
    *,
    explain: str | None = None,
    after: int | None = None,
) -> Plan:
    """Return what a planner would do now; change nothing.

    `Plan.decisions` covers the partitions that were examined: those with free extents in ingestion files, and
    dirty compacted ones. With `explain` it also covers every partition of that topic. Raise NotFoundError if
    there is no such topic. `after` is as in `load_snapshot`.
    """
    snapshot = load_snapshot(catalog, clock.now_ms(), settings, explain=explain, after=after)
    return make_plan(snapshot, settings)


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
    return Submission(
        jobs=tuple(jobs),
        lost=lost,
        deferred=planned.deferred,
        next_change_ms=None if jobs else planned.next_change_ms,
        is_complete=planned.is_complete,
    )


@dataclass(slots=True)
class LookCursor:
    """Sequence of the last ingestion file of a look that ended early; the next look continues behind it."""

    after: int | None = None


def plan_and_submit(
    catalog: Catalog,
    clock: Clock,
    ids: Ids,
    settings: PlannerSettings,
    *,
    slots: int = 1,
    cursor: LookCursor | None = None,
    stopped: threading.Event | None = None,
) -> Submission:
    """Plan and submit until `slots` jobs can be claimed, at most `max_look_jobs` of them.

    The first plan considers everything. If its jobs do not fill the slots, further plans consider the
    ingestion files that follow, until there are no more of them or the budget is used up. The next call
    considers the remaining files again, from the oldest on.

    A call makes at most `MAX_PLANS` plans, and ends if `stopped` is set. After its first plan, the next call
    with the same cursor then continues where this one ended, so files that no job can take hide no others.
    """
    slots = min(slots, settings.max_look_jobs)
    cursor = cursor or LookCursor()
    done = Submission(jobs=(), lost=0)
    after: int | None = None
    for _ in range(MAX_PLANS):
        step, after = _submit_step(catalog, clock, ids, settings, after)
        done = done.joined(step)
        if after is None:
            cursor.after = None
            return done
        if done.deferred or len(done.jobs) >= slots or catalog.jobs.claimable() >= slots:
            return done
        after = max(after, cursor.after or after)
        if stopped is not None and stopped.is_set():
            break
    cursor.after = after
    return replace(done, is_complete=False)


def _submit_step(
    catalog: Catalog, clock: Clock, ids: Ids, settings: PlannerSettings, after: int | None
) -> tuple[Submission, int | None]:
    """Plan and submit once; plan again, a few times, while another planner claims extents first.

    Also return the cursor behind the ingestion files that were considered. It is None if there were none, or
    if another planner was always first.
    """
    done = Submission(jobs=(), lost=0)
    for _ in range(1 + REPLANS):
        planned = plan(catalog, clock, settings, after=after)
        submission = submit(catalog, clock, ids, settings, planned)
        done = done.joined(submission)
        if not submission.lost:
            return done, planned.ingestion_end
    return done, None


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
