"""Properties of every plan of every log."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given

from catalog.model import Exactness, FileKind, PartitionId
from planner.dirtiness import first_dirty_offset, measure, stable_extents, takeable_extents
from planner.plan import JobKind, Verdict
from planner.policy import make_plan
from planner.settings import MIB
from tests.planner.strategies import SETTINGS, logs

if TYPE_CHECKING:
    from catalog.model import Extent
    from planner.plan import PlannedJob
    from planner.settings import PlannerSettings
    from tests.planner.model_log import ModelLog


def extents_of(job: PlannedJob) -> dict[PartitionId, list[Extent]]:
    found: dict[PartitionId, list[Extent]] = {}
    for each in job.inputs:
        for extent in each.extents:
            assert extent.file_id == each.file_id
            found.setdefault(PartitionId(extent.topic_id, extent.partition), []).append(extent)
    return {key: sorted(extents, key=lambda extent: extent.base_offset) for key, extents in found.items()}


@given(logs(), SETTINGS)
def test_an_extent_is_in_at_most_one_job_and_in_none_if_claimed(
    log: ModelLog, settings: PlannerSettings
) -> None:
    plan = make_plan(log.snapshot(settings), settings)
    taken = [
        (key, extent.base_offset)
        for job in plan.jobs
        for key, extents in extents_of(job).items()
        for extent in extents
    ]
    assert len(taken) == len(set(taken))
    assert not set(taken) & log.claimed


@given(logs(), SETTINGS)
def test_a_job_takes_one_range_of_offsets_of_each_partition(log: ModelLog, settings: PlannerSettings) -> None:
    for job in make_plan(log.snapshot(settings), settings).jobs:
        by_partition = extents_of(job)
        assert list(by_partition) != []
        assert sorted(by_partition) == [PartitionId(each.topic_id, each.partition) for each in job.partitions]
        for part in job.partitions:
            key = PartitionId(part.topic_id, part.partition)
            extents = by_partition[key]
            assert (extents[0].base_offset, extents[-1].last_offset + 1) == (
                part.base_offset,
                part.upper_offset,
            )
            assert all(right.base_offset == left.last_offset + 1 for left, right in pairwise(extents))
            assert part.reaches_log_start == (part.base_offset <= log.view(key).state.log_start_offset)
            old = {extent.base_offset for extent in takeable_extents(log.view(key), log.now_ms)}
            all_old = all(extent.base_offset in old for extent in extents)
            merging = job.kind in {JobKind.MERGING, JobKind.CLUSTERING}
            assert part.deduplicate == (log.view(key).rules.compacted and all_old and not merging)


@given(logs(), SETTINGS)
def test_jobs_keep_the_bounds_unless_one_file_or_partition_exceeds_them(
    log: ModelLog, settings: PlannerSettings
) -> None:
    for job in make_plan(log.snapshot(settings), settings).jobs:
        by_partition = extents_of(job)
        names = {each.file_id for each in job.inputs}
        needed = any({extent.file_id for extent in each} == names for each in by_partition.values())
        readable = (
            job.input_bytes <= settings.max_job_input_bytes and len(job.inputs) <= settings.max_job_files
        )
        assert readable or needed or len(job.inputs) == 1
        one_file = len(job.inputs) == 1 and job.kind in {JobKind.INGESTION, JobKind.MERGING}
        few = sum(map(len, by_partition.values())) <= settings.max_job_extents
        assert few or one_file or len(by_partition) == 1


@given(logs(), SETTINGS)
def test_unstable_extents_are_not_taken_and_young_ones_not_deduplicated(
    log: ModelLog, settings: PlannerSettings
) -> None:
    for job in make_plan(log.snapshot(settings), settings).jobs:
        deduplicated = {
            PartitionId(each.topic_id, each.partition) for each in job.partitions if each.deduplicate
        }
        for key, extents in extents_of(job).items():
            view = log.view(key)
            lag = view.rules.min_compaction_lag_ms if view.rules.compacted else 0
            for extent in extents:
                assert extent.last_offset < view.state.last_stable_offset
                dirty = extent.last_offset >= first_dirty_offset(view)
                young = lag and dirty and extent.max_timestamp > log.now_ms - lag
                assert not (young and key in deduplicated)


@given(logs(), SETTINGS)
def test_cleaning_jobs_take_only_partitions_that_are_due(log: ModelLog, settings: PlannerSettings) -> None:
    for job in make_plan(log.snapshot(settings), settings).jobs:
        if job.kind is not JobKind.CLEANING:
            continue
        for key, extents in extents_of(job).items():
            assert {extent.file_kind for extent in extents} == {FileKind.COMPACTED}
            measured = measure(log.view(key), extents, log.now_ms, force=settings.force)
            assert measured.cleanable_bytes > 0
            rules = log.view(key).rules
            assert (
                measured.ratio > rules.min_cleanable_dirty_ratio
                or measured.overdue_ms > 0
                or settings.force
                or log.exactness.get(key) is Exactness.DEDUP_INCOMPLETE
            )


@given(logs(), SETTINGS)
def test_a_score_counts_what_a_job_reads_and_writes(log: ModelLog, settings: PlannerSettings) -> None:
    """Deduplication reads twice. An output has two objects, and an upload has parts of 8 MiB."""
    for job in make_plan(log.snapshot(settings), settings).jobs:
        by_partition = extents_of(job)
        passes = 1 + any(each.deduplicate for each in job.partitions)
        puts = 2 * (1 + job.taken_bytes // job.output_bytes) + math.ceil(job.taken_bytes / (8 * MIB))
        score = job.score
        assert score.rewritten_bytes == job.taken_bytes
        assert score.moved_bytes == passes * job.input_bytes + job.taken_bytes
        assert score.nanodollars == 400 * passes * len(job.inputs) + 5_000 * puts
        assert score.reads_saved == sum(map(len, by_partition.values())) - len(by_partition)
        assert score.waited_ms == max(0, log.now_ms - waiting_since_ms(job, log))
        cleaned = {
            PartitionId(each.topic_id, each.partition)
            for each in job.partitions
            if each.deduplicate and each.reaches_log_start
        }
        assert job.exact == any(log.view(key).exactness is not Exactness.EXACT for key in cleaned)
        names = {each.file_id for each in job.inputs}
        reclaimed = sum(
            each.dead_bytes
            for each in log.mergeable(None)
            if job.kind is JobKind.MERGING and each.file.file_id in names
        )
        for key in cleaned:
            measured = measure(log.view(key), by_partition[key], log.now_ms)
            total = measured.clean_bytes + measured.cleanable_bytes
            reclaimed += min(measured.cleanable_bytes, total // 2)
        assert score.reclaimed_bytes == reclaimed
        late = [
            measure(log.view(key), takeable_extents(log.view(key), log.now_ms), log.now_ms) for key in cleaned
        ]
        assert score.overdue == any(each.overdue_ms > 0 for each in late)


def waiting_since_ms(job: PlannedJob, log: ModelLog) -> int:
    """Return the time since which the oldest dirty data of a job, or the last of its files, has waited."""
    if job.kind not in {JobKind.INGESTION, JobKind.CLEANING}:
        return max(log.files[each.file_id].committed_ms for each in job.inputs)
    return min(
        extent.committed_ms
        for key, extents in extents_of(job).items()
        for extent in extents
        if not log.view(key).rules.compacted or extent.last_offset >= first_dirty_offset(log.view(key))
    )


@given(logs(), SETTINGS)
def test_plans_are_deterministic_and_decide_on_every_partition(
    log: ModelLog, settings: PlannerSettings
) -> None:
    plan = make_plan(log.snapshot(settings), settings)
    assert make_plan(log.snapshot(settings), settings) == plan
    assert {PartitionId(each.topic_id, each.partition) for each in plan.decisions} == set(log.extents)
    for decision in plan.decisions:
        assert decision.reason
        in_job = decision.verdict in {Verdict.CLEAN, Verdict.DEDUPLICATE, Verdict.SPLIT, Verdict.MERGE}
        assert (decision.job is not None) == in_job


@given(logs(), SETTINGS)
def test_alternating_planning_and_compaction_comes_to_an_end(
    log: ModelLog, settings: PlannerSettings
) -> None:
    """Afterwards, all takeable extents are in compacted files, and no partition is due."""
    log.claimed.clear()  # all open jobs have ended
    settings = replace(settings, paced=False)
    bound = 2 + 4 * sum(len(extents) for extents in log.extents.values())
    for _ in range(bound):
        plan = make_plan(log.snapshot(settings), settings)
        if not plan.jobs:
            break
        for job in plan.jobs:
            log.apply(job)
    assert make_plan(log.snapshot(settings), settings).jobs == ()
    for key in log.extents:
        view = log.view(key)
        takeable = takeable_extents(view, log.now_ms)
        assert all(extent.file_kind is FileKind.COMPACTED for extent in stable_extents(view))
        assert not measure(view, takeable, log.now_ms, force=settings.force).due


@given(logs(), SETTINGS)
def test_jobs_of_one_plan_may_finish_in_any_order(log: ModelLog, settings: PlannerSettings) -> None:
    """Jobs do not depend on each other: the log is contiguous in any order."""
    for job in reversed(make_plan(log.snapshot(settings), settings).jobs):
        log.apply(job)
    for extents in log.extents.values():
        assert all(right.base_offset == left.last_offset + 1 for left, right in pairwise(extents))
