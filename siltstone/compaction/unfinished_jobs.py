"""Jobs that wait in the queue or run: they can be the reason why there is nothing to plan."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from catalog.model import JobState
from core.quantities import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import Job
    from siltstone.context import AppContext

_OPEN = (JobState.SUBMITTED, JobState.RUNNING)
MAX_UNFINISHED_JOBS = 1000


def unfinished_jobs(context: AppContext) -> list[Job]:
    """Return the newest jobs that wait or run, at most `MAX_UNFINISHED_JOBS`."""
    return context.catalog.jobs.list(_OPEN, limit=MAX_UNFINISHED_JOBS)


def job_fields(jobs: Sequence[Job], now_ms: int) -> list[dict[str, Any]]:
    """Return the jobs for `--json`."""
    return [
        {
            "job_id": str(job.spec.job_id),
            "state": job.state.value,
            "application_id": job.application_id,
            "silent_ms": _silent_ms(job, now_ms),
            "waits_ms": max(0, job.not_before_ms - now_ms),
            "failure": job.failure,
        }
        for job in jobs
    ]


def describe_jobs(jobs: Sequence[Job], now_ms: int, takeover_ms: int) -> list[str]:
    """Return a sentence about the queue, one about jobs that wait, and one about each run with jobs.

    A run without a heartbeat for `takeover_ms` loses its jobs.
    """
    submitted = [job for job in jobs if job.state is JobState.SUBMITTED]
    backing_off = [job for job in submitted if job.not_before_ms > now_ms]
    waiting = len(submitted) - len(backing_off)
    sentences = []
    if waiting:
        sentences.append(
            f"{count(waiting, 'job')} {_be(waiting)} in the queue; siltstone compact runs the queue."
        )
    if backing_off:
        first = min(backing_off, key=lambda job: job.not_before_ms)
        sentences.append(
            f"{count(len(backing_off), 'job')} {_be(len(backing_off))} in the queue after a fault; the first"
            f" can run again in {(first.not_before_ms - now_ms + 999) // 1000} s. Its fault: {first.failure}"
        )
    running = Counter(job.application_id for job in jobs if job.state is JobState.RUNNING)
    for application_id, number in running.items():
        silent = min(_silent_ms(job, now_ms) or 0 for job in jobs if job.application_id == application_id)
        sentences.append(
            f"{count(number, 'job')} {_be(number)} claimed by a run whose last heartbeat was "
            f"{silent // 1000} s ago; siltstone compact takes over after "
            f"{takeover_ms // 1000} s without a heartbeat."
        )
    return sentences


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _silent_ms(job: Job, now_ms: int) -> int | None:
    return None if job.heartbeat_ms is None else max(0, now_ms - job.heartbeat_ms)
