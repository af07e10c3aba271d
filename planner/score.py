"""What a job is worth and what it costs: the score by which jobs are ordered, and the budget's two measures.

The weights are prices of storage and requests in one unit, bytes kept for a month;
`docs/explanation/planner.md` says how they come about. The requests are those that a task makes by design:
one GET per input file and pass, and one upload per output file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from planner.dirtiness import measure, takeable_extents
from planner.plan import JobKind
from planner.selection import reaches_log_start
from planner.settings import MIB
from planner.snapshot import Spent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.jobs.repository import RecentWork
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings

# A GET a day costs in a month what half a MiB kept for it does: 30 * 400 nanodollars, at 23,000 a MiB.
READ_IN_BYTES: Final = MIB // 2
_PART_BYTES: Final = 8 * MIB
LONG_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrices:
    """Nanodollars a request, by default the list price of S3 Standard (us-east-1, 2025)."""

    get: int = 400
    put: int = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScore:
    """What a job is expected to gain and to cost.

    `reclaimed_bytes` will be garbage and have no copy; `reads_saved` is how many requests fewer somebody
    makes who reads its partitions from end to end; `rewritten_bytes` are copied. `moved_bytes` are read or
    written, by `nanodollars` of requests. `overdue` jobs come first: somebody was promised a time. Then those
    of which a file has waited for a day, the longest first: none waits for ever behind better ones.
    """

    reclaimed_bytes: int
    reads_saved: int
    rewritten_bytes: int
    moved_bytes: int
    nanodollars: int
    overdue: bool
    waited_ms: int = 0

    @property
    def score(self) -> float:
        """Gain for each byte that is rewritten."""
        gain = self.reclaimed_bytes + self.reads_saved * READ_IN_BYTES
        return gain / max(self.rewritten_bytes, 1)

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sorts jobs, the best first."""
        is_old = self.waited_ms >= LONG_MS
        return not self.overdue, not is_old, -self.waited_ms if is_old else -self.score


def score_of(draft: JobDraft, prices: RequestPrices, now_ms: int, *, force: bool = False) -> JobScore:
    """What a job is worth, by what the snapshot tells; how many keys are superseded nobody knows before.

    Of a partition that is cleaned, as many bytes are expected to go as are dirty, but no more than half: each
    record supersedes one, as in a topic whose set of keys stays about the same.
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
            judged = measure(view, extents, now_ms, force=force)
            reclaimed += min(judged.cleanable_bytes, (judged.clean_bytes + judged.cleanable_bytes) // 2)
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
        overdue=overdue or draft.kind is JobKind.BISECTION,
        waited_ms=max(0, now_ms - draft.oldest_ms),
    )


def spent_on(work: RecentWork, prices: RequestPrices) -> Spent:
    """What the budget of the hour is charged with."""
    puts = 2 * work.output_files + -(-work.bytes_out // _PART_BYTES)
    return Spent(
        moved_bytes=work.expected_bytes + work.bytes_in + work.bytes_out,
        nanodollars=work.expected_nanodollars + prices.get * work.get_requests + prices.put * puts,
    )


def affordable(jobs: Sequence[JobScore], spent: Spent, settings: PlannerSettings) -> int:
    """How many of the jobs, the first ones, the budget of the hour allows.

    A job that is larger than the whole budget is allowed when nothing was spent in the hour before: what has
    to be done is done, if slowly. A budget of 0 sets no bound.
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
