from __future__ import annotations

from unittest.mock import Mock

import pytest

from catalog.model import Job, JobState
from siltstone.compaction.unfinished_jobs import describe_jobs


def _job(application_id: str | None, heartbeat_ms: int | None, not_before_ms: int = 0) -> Job:
    state = JobState.SUBMITTED if application_id is None else JobState.RUNNING
    return Job(
        spec=Mock(),
        state=state,
        attempt_id=None,
        application_id=application_id,
        heartbeat_ms=heartbeat_ms,
        attempts=1,
        failure="the disk is full" if not_before_ms else None,
        counts={},
        not_before_ms=not_before_ms,
    )


@pytest.mark.parametrize(
    ("jobs", "sentences"),
    [
        ([], []),
        ([_job(None, None)], ["1 job is in the queue; siltstone compact runs the queue."]),
        (
            [_job(None, None, 70_000), _job(None, None, 12_500)],
            [
                (
                    "2 jobs are in the queue after a fault; the first can run again in 3 s. "
                    "Its fault: the disk is full"
                ),
            ],
        ),
        (
            [_job("a", 5_000), _job("b", 9_000), _job("b", 8_000)],
            [
                (
                    "1 job is claimed by a run whose last heartbeat was 5 s ago; siltstone compact takes "
                    "over after 90 s without a heartbeat."
                ),
                (
                    "2 jobs are claimed by a run whose last heartbeat was 1 s ago; siltstone compact takes "
                    "over after 90 s without a heartbeat."
                ),
            ],
        ),
    ],
)
def test_unfinished_jobs_are_described_by_state_and_run(jobs: list[Job], sentences: list[str]) -> None:
    assert describe_jobs(jobs, 10_000, 90_000) == sentences
