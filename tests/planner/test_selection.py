"""What one job takes."""

from __future__ import annotations

import pytest

from planner.plan import JobKind
from planner.selection import GET_IN_READING, JOB_IN_READING, JobDraft
from planner.settings import PlannerSettings
from tests.planner.model_log import Chunk, ModelLog, topic_rules


@pytest.mark.parametrize(("more", "is_near"), [(0, True), (1, False)])
def test_a_job_reads_bytes_that_it_does_not_need_if_that_costs_less_than_another_job(
    more: int, *, is_near: bool
) -> None:
    """Both streams read them; joining saves a job, and each stream a GET."""
    between = GET_IN_READING + JOB_IN_READING // 2 + more
    log = ModelLog(rules=[topic_rules(0)], partition_count=3)
    first, unneeded, last = sorted(log.extents)
    log.append({key: Chunk(records=1, length=between if key == unneeded else 10) for key in log.extents})
    snapshot = log.snapshot()
    draft = JobDraft(JobKind.INGESTION, snapshot.files, PlannerSettings(), snapshot.now_ms)
    draft.take(log.view(first), log.extents[first])
    assert draft.is_near(log.extents[last]) is is_near
