from __future__ import annotations

from unittest.mock import Mock

import pytest

from catalog.model import Job, JobState
from siltstone.compaction.unfinished_jobs import describe_jobs


def _job(application_id: str | None, heartbeat_ms: int | None) -> Job:
    state = JobState.SUBMITTED if application_id is None else JobState.RUNNING
    return Job(
        spec=Mock(),
        state=state,
        attempt_id=None,
        application_id=application_id,
        heartbeat_ms=heartbeat_ms,
        attempts=1,
        failure=None,
        counts={},
    )


@pytest.mark.parametrize(
    ("jobs", "sentences"),
    [
        ([], []),
        ([_job(None, None)], ["1 job is in the queue, for siltstone compact to run."]),
        (
            [_job("a", 5_000), _job("b", 9_000), _job("b", 8_000)],
            [
                (
                    "1 job is held by a run last heard of 5 s ago; it is taken over by siltstone "
                    "compact after 60 s of silence."
                ),
                (
                    "2 jobs are held by a run last heard of 1 s ago; they are taken over by siltstone "
                    "compact after 60 s of silence."
                ),
            ],
        ),
    ],
)
def test_jobs_that_are_not_over_are_described_by_who_has_them(jobs: list[Job], sentences: list[str]) -> None:
    assert describe_jobs(jobs, 10_000) == sentences
