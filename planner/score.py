"""Expected gain and cost of jobs: the score that orders them, and the two measures of the budget.

The weights express prices of storage and requests in one unit, bytes stored for a month;
`docs/explanation/planner.md` derives them. Requests are the ones that a task sends by design: one GET per
input file and pass, and one upload per output file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from planner.dirtiness import measure, takeable_extents
from planner.plan import JobKind, JobScore
from planner.selection import reaches_log_start
from planner.settings import MIB
from planner.snapshot import Spent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.jobs.repository import RecentWork
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings

_PART_BYTES: Final = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrices:
    """Nanodollars per request; the defaults are list prices of S3 Standard (us-east-1, 2025)."""

    get: int = 400
    put: int = 5_000


def score_of(draft: JobDraft, prices: RequestPrices, now_ms: int) -> JobScore:
    """Return the score of a job; the number of superseded keys is an estimate.

    For a partition that is cleaned, the estimate is that as many bytes are dropped as are dirty, but at most
    half: each record supersedes one, as in a topic whose set of keys hardly changes.
    """
    reclaimed = draft.dead_bytes
    taken = extents_in = 0
    read_twice = overdue = False
    for view, extents in draft.partitions():
        taken += sum(extent.length for extent in extents)
        extents_in += len(extents)
        if not draft.deduplicates(view, extents):
            continue
        read_twice = True
        if reaches_log_start(view, extents):
            dirtiness = measure(view, extents, now_ms)
            reclaimed += min(
                dirtiness.cleanable_bytes, (dirtiness.clean_bytes + dirtiness.cleanable_bytes) // 2
            )
            overdue = overdue or measure(view, takeable_extents(view, now_ms), now_ms).overdue_ms > 0
    passes = 2 if read_twice else 1
    outputs = 1 + taken // draft.output_bytes
    parts = -(-taken // _PART_BYTES)
    return JobScore(
        reclaimed_bytes=reclaimed,
        reads_saved=extents_in - len(draft.partitions()),
        rewritten_bytes=taken,
        moved_bytes=passes * draft.file_bytes + taken,
        nanodollars=prices.get * passes * draft.file_count + prices.put * (2 * outputs + parts),
        overdue=overdue or draft.kind is JobKind.FAULT_BISECTION,
        waited_ms=max(0, now_ms - draft.oldest_ms),
    )


def spent_on(work: RecentWork, prices: RequestPrices) -> Spent:
    """Return what the budget of the last hour is charged with."""
    puts = 2 * work.output_files + -(-work.bytes_out // _PART_BYTES)
    return Spent(
        moved_bytes=work.expected_bytes + work.bytes_in + work.bytes_out,
        nanodollars=work.expected_nanodollars + prices.get * work.get_requests + prices.put * puts,
    )


def affordable(jobs: Sequence[JobScore], spent: Spent, settings: PlannerSettings) -> int:
    """Return how many of the first jobs the hourly budget allows.

    A job that exceeds the whole budget is allowed if nothing was spent in the last hour, so that work
    continues slowly. A budget of 0 sets no limit.
    """
    bytes_limit = settings.budget_bytes_per_hour or None
    dollars_limit = int(settings.budget_dollars_per_hour * 1e9) or None
    moved, cost = spent.moved_bytes, spent.nanodollars
    for number, job in enumerate(jobs):
        fits = (bytes_limit is None or moved + job.moved_bytes <= bytes_limit) and (
            dollars_limit is None or cost + job.nanodollars <= dollars_limit
        )
        if not fits and (moved or cost):
            return number
        moved, cost = moved + job.moved_bytes, cost + job.nanodollars
    return len(jobs)
