"""Retention of partitions that are cleaned repeatedly, with catalog, planner and compaction engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import PartitionId
from core.clock import DAY_MS
from maintenance.retention import expire
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from spark_jobs.task.compaction_task import run_compaction

if TYPE_CHECKING:
    from tests.planner.system import System

DAYS = 12


def test_records_of_a_partition_that_is_cleaned_daily_expire(system: System) -> None:
    """No record outlives `retention.ms` by more than a quarter, and one job per day is enough."""
    topic = system.topic(
        "t", cleanup_policy="compact,delete", retention_ms=str(4 * DAY_MS), min_cleanable_dirty_ratio="0"
    )
    key = PartitionId(topic.topic_id, 0)
    oldest = []
    for day in range(DAYS):
        system.produce({key: [(b"day-%d" % day, b"x"), (b"again", b"y")]})
        assert _compact(system) == 1
        assert _compact(system) == 0
        expire(system.catalog)
        records = system.read_log(key)
        oldest.append(system.clock.now_ms() - records[0].timestamp)
        assert [record.key for record in records].count(b"again") == 1
        system.clock.advance(DAY_MS / 1000)
    assert max(oldest) == oldest[-1] == 4 * DAY_MS


def _compact(system: System) -> int:
    plan_and_submit(system.catalog, system.clock, system.ids, PlannerSettings())
    jobs = system.catalog.jobs.claim("a test", 10)
    for job in jobs:
        assert job.attempt_id is not None
        result = run_compaction(
            job.spec, system.store, attempt_id=job.attempt_id, clock=system.clock, ids=system.ids
        )
        system.catalog.jobs.complete(result)
    return len(jobs)
