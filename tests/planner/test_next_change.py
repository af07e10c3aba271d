"""A plan without jobs stays empty until the time that it names, as long as only the clock changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.next_change import next_change_ms
from planner.policy import make_plan
from planner.settings import PlannerSettings
from tests.planner.model_log import NOW_MS, Chunk, ModelLog, topic_rules
from tests.planner.strategies import SETTINGS, logs

if TYPE_CHECKING:
    from planner.snapshot import TopicRules

PACED = PlannerSettings(paced=True, max_ingestion_age_ms=60_000)


@given(logs(), SETTINGS, st.one_of(st.integers(0, 10_000), st.integers(0, 10**9)))
def test_nothing_is_planned_before_the_next_change(
    log: ModelLog, settings: PlannerSettings, wait_ms: int
) -> None:
    snapshot = log.snapshot(settings)
    plan = make_plan(snapshot, settings)
    assume(not plan.jobs)
    changes_ms = plan.next_change_ms
    later_ms = snapshot.now_ms + wait_ms
    if changes_ms is not None:
        assert changes_ms > snapshot.now_ms
        later_ms = min(later_ms, changes_ms - 1)
    assert make_plan(replace(snapshot, now_ms=later_ms), settings).jobs == ()


@given(logs(), SETTINGS)
def test_what_a_plan_waits_for_leads_to_a_job_in_the_end(log: ModelLog, settings: PlannerSettings) -> None:
    """If a plan of the far future has a job, then so has the plan of one of the named times."""
    snapshot = log.snapshot(settings)
    if not make_plan(replace(snapshot, now_ms=snapshot.now_ms + 10**12), settings).jobs:
        return
    plan = make_plan(snapshot, settings)
    while not plan.jobs:
        assert plan.next_change_ms is not None
        snapshot = replace(snapshot, now_ms=plan.next_change_ms)
        plan = make_plan(snapshot, settings)


@pytest.mark.parametrize(
    ("rules", "changes_ms"),
    [
        (topic_rules(0, cleanup_policy="delete"), 40_000),
        (topic_rules(0, max_compaction_lag_ms=50_000), 25_001),
        (topic_rules(0, min_compaction_lag_ms=21_000), 1_000),
    ],
)
def test_the_next_change_is_the_first_of_all_times(rules: TopicRules, changes_ms: int) -> None:
    """The youngest record counts for min.compaction.lag.ms, the oldest one for max.compaction.lag.ms."""
    log = ModelLog(rules=[rules])
    (key,) = log.extents
    log.append({key: Chunk(records=2, length=10, age_ms=20_000, span_ms=5_000)}, age_ms=20_000)
    plan = make_plan(log.snapshot(PACED), PACED)
    assert plan.jobs == ()
    assert plan.next_change_ms == NOW_MS + changes_ms


def test_an_empty_log_never_changes_by_itself() -> None:
    log = ModelLog(rules=[topic_rules(0)])
    plan = make_plan(log.snapshot(PACED), PACED)
    assert plan.next_change_ms is None
    assert plan.is_complete


@pytest.mark.parametrize(
    ("policy", "now_ms", "changes_ms"),
    [("compact", 0, 1), ("compact", 1, 21_000), ("compact", 21_000, None), ("delete", 0, None)],
)
def test_small_files_may_merge_once_their_records_leave_the_shortest_lag(
    policy: str, now_ms: int, changes_ms: int | None
) -> None:
    """Their partitions need not be among those of the snapshot.

    A negative max.compaction.lag.ms passes after a millisecond. What changes now is no later change.
    """
    log = ModelLog(rules=[topic_rules(0, cleanup_policy=policy)])
    (key,) = log.extents
    eager = PlannerSettings(max_job_files=1)
    for _ in range(2):
        log.append({key: Chunk(records=2, length=10)})
    for job in make_plan(log.snapshot(eager), eager).jobs:
        log.apply(job)
    log.rules = [replace(each, min_compaction_lag_ms=21_000, max_compaction_lag_ms=-1) for each in log.rules]
    snapshot = log.snapshot(PACED)
    assert snapshot.mergeable
    alone = replace(snapshot, partitions=(), fragmented=(), now_ms=NOW_MS + now_ms)
    expected = None if changes_ms is None else NOW_MS + changes_ms
    assert next_change_ms(alone, ()) == expected
