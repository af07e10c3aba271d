"""One look of a planner: apply retention, plan, and submit; and looks that watchers share.

All watchers share the outcome of the last look (`catalog.jobs.looks`). A watcher looks again when the time
that this look named has come, the catalog has changed, or ingestion files wait. Together, watchers look as
often as one would, and a look at an idle catalog of any size is a few statements. The outcome of a
look that could not examine everything, because of the bounds of a plan, is valid for a minute, that of any
other look for `max_look_age_ms`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from core.errors import SiltstoneError
from maintenance.retention import RetentionReport, expire
from planner.pace import is_ingestion_due
from planner.planner import LookCursor, Submission, plan_and_submit
from planner.snapshot_loader import MINUTE_MS

if TYPE_CHECKING:
    import threading

    from planner.settings import PlannerSettings
    from siltstone.context import AppContext

_AT_ONCE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookOutcome:
    """What retention removed and what the planner then submitted; both are empty if no look was due.

    `is_elsewhere` is True if another watcher looks now.
    """

    submission: Submission = field(default_factory=lambda: Submission(jobs=(), lost=0))
    expired: RetentionReport = field(default_factory=RetentionReport)
    is_elsewhere: bool = False


def look(
    context: AppContext,
    planner: PlannerSettings,
    slots: int,
    cursor: LookCursor | None = None,
    stopped: threading.Event | None = None,
) -> LookOutcome:
    """Apply retention, so that no job rewrites for it, and then plan as `plan_and_submit` does."""
    expired = expire(context.catalog)
    submission = plan_and_submit(
        context.catalog, context.clock, context.ids, planner, slots=slots, cursor=cursor, stopped=stopped
    )
    return LookOutcome(submission=submission, expired=expired)


def shared_look(
    context: AppContext,
    planner: PlannerSettings,
    slots: int,
    cursor: LookCursor | None = None,
    stopped: threading.Event | None = None,
) -> LookOutcome:
    """Look if it is due and no other watcher does, and leave the outcome to the others."""
    looks = context.catalog.looks
    settings = settings_key(planner)
    last = looks.last(settings)
    if not last.is_running and not last.is_due and not _has_ingestion(context, planner, last.now_ms):
        return LookOutcome()
    look_id = None if last.is_running else looks.begin(settings, last)
    if look_id is None:
        return LookOutcome(is_elsewhere=True)
    try:
        outcome = look(context, planner, slots, cursor, stopped)
    except BaseException:
        with contextlib.suppress(SiltstoneError):
            looks.finish(look_id, _AT_ONCE)
        raise
    looks.finish(look_id, _next_ms(outcome.submission, last.now_ms, planner))
    return outcome


def settings_key(planner: PlannerSettings) -> str:
    """Return what identifies settings in the catalog's record of the last look."""
    return sha256(repr(planner).encode()).hexdigest()


def _has_ingestion(context: AppContext, planner: PlannerSettings, now_ms: int) -> bool:
    """Return True if there may be a job for ingestion files."""
    backlog = context.catalog.planning.backlog()
    age_ms = 0 if backlog.oldest_ms is None else now_ms - backlog.oldest_ms
    return is_ingestion_due(
        backlog.ingestion_files, backlog.ingestion_bytes, backlog.ingestion_extents, age_ms, planner
    )


def _next_ms(submission: Submission, looked_ms: int, planner: PlannerSettings) -> int:
    """Return when another look is due if nothing changes."""
    if submission.jobs or submission.lost or submission.deferred:
        return _AT_ONCE
    age_ms = planner.max_look_age_ms
    latest = looked_ms + (age_ms if submission.is_complete else min(age_ms, MINUTE_MS))
    return latest if submission.next_change_ms is None else min(latest, submission.next_change_ms)
