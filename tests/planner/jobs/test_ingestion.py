"""What ingestion jobs take, compared with a plain model of the rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catalog.grouping import by_file
from catalog.model import FileKind, PartitionId
from planner.dirtiness import contiguous_run, measure, stable_extents, takeable_extents
from planner.jobs.ingestion import draft_ingestion_jobs
from planner.policy import make_plan
from planner.selection import GET_IN_READING, JOB_IN_READING
from planner.settings import MIB, PlannerSettings
from tests.planner.model_log import Chunk, ModelLog, topic_rules
from tests.planner.strategies import SETTINGS, logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from catalog.model import Extent
    from planner.snapshot import PartitionView

    Taken = Mapping[PartitionId, tuple[Extent, ...]]


def _hull(extents: Sequence[Extent]) -> int:
    bounds = [
        edge for each in extents if each.length for edge in (each.position, each.position + each.length)
    ]
    return max(bounds, default=0) - min(bounds, default=0)


def _is_within_bounds(files: Sequence[Sequence[Extent]], settings: PlannerSettings) -> bool:
    return (
        len(files) <= settings.max_job_files
        and sum(map(_hull, files)) <= settings.max_job_input_bytes
        and sum(map(len, files)) <= settings.max_job_extents
    )


def _files(log: ModelLog) -> list[list[Extent]]:
    """Return the extents that a job may take, by ingestion file."""
    found: dict[UUID, list[Extent]] = {file_id: [] for file_id in log.files}
    for key in sorted(log.extents):
        for extent in stable_extents(log.view(key)):
            if extent.file_kind is FileKind.INGESTION and extent.claimed_by is None:
                found[extent.file_id].append(extent)
    return [extents for extents in found.values() if extents]


def _groups(files: list[list[Extent]], settings: PlannerSettings) -> list[Taken]:
    """Return the extents of ingestion files that each job takes."""
    groups: list[Taken] = []
    while files:
        count = 1
        while count < len(files) and _is_within_bounds(files[: count + 1], settings):
            count += 1
        taken: dict[PartitionId, list[Extent]] = {}
        for extent in (each for extents in files[:count] for each in extents):
            taken.setdefault(PartitionId(extent.topic_id, extent.partition), []).append(extent)
        groups.append({key: contiguous_run(extents) for key, extents in taken.items()})
        files = files[count:]
    return groups


def _is_cleaned_at_once(view: PartitionView, run: Sequence[Extent], *, now_ms: int, force: bool) -> bool:
    """Return True if the partition is due, and all that may be cleaned is in the job or compacted."""
    whole = takeable_extents(view, now_ms)
    if not measure(view, whole, now_ms, force=force).due or contiguous_run(whole) != whole:
        return False
    others = [each for each in whole if each not in run]
    return (
        whole[0].base_offset <= view.state.log_start_offset
        and set(run) <= set(whole)
        and all(each.file_kind is FileKind.COMPACTED and each.claimed_by is None for each in others)
    )


def _hulls(extents: Iterable[Extent]) -> dict[UUID, int]:
    return {file_id: _hull(found) for file_id, found in by_file(extents).items()}


def _with_older(group: Taken, log: ModelLog, settings: PlannerSettings) -> Taken:
    """Let older extents join the partitions that are due, as far as the job has room for them."""
    taken = dict(group)
    for key in sorted(group):
        view = log.view(key)
        if not _is_cleaned_at_once(view, group[key], now_ms=log.now_ms, force=settings.force):
            continue
        whole = takeable_extents(view, log.now_ms)
        older = [each for each in whole if each not in group[key]]
        joined = {**taken, key: whole}
        before, alone = _hulls(chain(*taken.values())), _hulls(older)
        after = _hulls(chain(*joined.values()))
        readable = (
            sum(after.values()) <= settings.max_job_input_bytes and len(after) <= settings.max_job_files
        )
        few = sum(map(len, joined.values())) <= settings.max_job_extents
        between = sum(after.values()) - sum(before.values()) - sum(alone.values())
        saved = 2 * len(before.keys() & alone.keys()) * GET_IN_READING + JOB_IN_READING
        if older and (readable or after == before) and few and 2 * between <= saved:
            taken = joined
    return taken


@given(
    logs(),
    SETTINGS,
    st.sampled_from(["settings", "bytes", "extents", "nothing"]),
    st.integers(1, 4),
    st.sets(st.integers(0, 5), max_size=2),
)
def test_jobs_take_files_in_commit_order_and_older_extents_of_partitions_that_are_due(
    log: ModelLog, settings: PlannerSettings, bound: str, fitting: int, cut_off: set[int]
) -> None:
    """A job is as large as the bounds allow. One that waits leaves older extents to other jobs.

    The first `fitting` files reach the bound on bytes or extents exactly. The snapshot lacks the first extent
    of the partitions that are `cut_off`.
    """
    for number, key in enumerate(log.extents):
        if number in cut_off:
            log.extents[key] = log.extents[key][1:]
    files = _files(log)
    first = files[:fitting]
    if bound != "settings":
        settings = replace(settings, max_job_input_bytes=1 << 30, max_job_files=400, max_job_extents=1_000)
    if bound == "bytes":
        settings = replace(settings, max_job_input_bytes=max(1, sum(map(_hull, first))))
    elif bound == "extents":
        settings = replace(settings, max_job_extents=max(1, sum(map(len, first))))
    drafts = draft_ingestion_jobs(log.snapshot(settings), settings)
    groups = _groups(files, settings)
    assert len(drafts) == len(groups)
    for draft, group in zip(drafts, groups, strict=True):
        assert draft is drafts[-1] or draft.wait is None
        waits = settings.paced and draft.wait is not None
        expected = group if waits else _with_older(group, log, settings)
        assert {view.partition_id: extents for view, extents in draft.partitions()} == expected


@pytest.mark.parametrize(("between", "bases"), [(33 * MIB, [0, 0]), (33 * MIB + 1, [0, 1])])
def test_older_extents_that_are_far_from_the_others_do_not_join(between: int, bases: list[int]) -> None:
    """A stream would read the bytes between them. Up to 33 MiB in a file cost less than a separate job."""
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=0.0)], partition_count=3, kept_percent=100)
    first, middle, last = sorted(log.extents)
    log.append({key: Chunk(records=1, length=between if key == middle else 10) for key in log.extents})
    for job in make_plan(log.snapshot(), PlannerSettings()).jobs:
        log.apply(job)
    log.append({key: Chunk(records=1, length=10) for key in (first, last)})
    (draft,) = draft_ingestion_jobs(log.snapshot(), PlannerSettings())
    assert [extents[0].base_offset for _, extents in draft.partitions()] == bases


@pytest.mark.parametrize(("is_claimed", "base"), [(False, 0), (True, 1)])
def test_older_extents_in_an_open_job_do_not_join(base: int, *, is_claimed: bool) -> None:
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=0.0)])
    (key,) = log.extents
    log.append({key: Chunk(records=1, length=10)})
    for job in make_plan(log.snapshot(), PlannerSettings()).jobs:
        log.apply(job)
    log.append({key: Chunk(records=1, length=10)})
    log.claimed = {(key, 0)} if is_claimed else set()
    (draft,) = draft_ingestion_jobs(log.snapshot(), PlannerSettings())
    assert [extents[0].base_offset for _, extents in draft.partitions()] == [base]


def test_extents_of_an_earlier_job_do_not_join() -> None:
    """The second job would have room for the older extents of the first partition."""
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=0.0)], partition_count=2)
    first, second = sorted(log.extents)
    log.append({first: Chunk(records=1, length=10)})
    for job in make_plan(log.snapshot(), PlannerSettings()).jobs:
        log.apply(job)
    log.append({first: Chunk(records=1, length=10), second: Chunk(records=1, length=90)})
    log.append({first: Chunk(records=1, length=10)})
    settings = PlannerSettings(max_job_input_bytes=100)
    drafts = draft_ingestion_jobs(log.snapshot(), settings)
    found = [[extents[0].base_offset for _, extents in draft.partitions()] for draft in drafts]
    assert found == [[1, 0], [2]]


@given(
    st.lists(st.dictionaries(st.integers(0, 2), st.integers(0, 3), min_size=1), max_size=12),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 6),
)
@example([{0: 3}, {0: 2}, {0: 2}, {0: 2}], 4, 4, 6)
@example([{0: 1}] * 5, 9, 4, 2)
@example([{0: 1}] * 5, 9, 2, 6)
def test_each_job_counts_its_files_bytes_and_extents_from_zero(
    files: list[dict[int, int]], max_bytes: int, max_files: int, max_extents: int
) -> None:
    """The bounds are small, so that several jobs follow each other, and each can be one byte too large."""
    log = ModelLog(rules=[topic_rules(0, cleanup_policy="delete")], partition_count=3)
    keys = sorted(log.extents)
    for sections in files:
        log.append({keys[each]: Chunk(records=1, length=length) for each, length in sections.items()})
    settings = PlannerSettings(
        max_job_input_bytes=max_bytes, max_job_files=max_files, max_job_extents=max_extents
    )
    drafts = draft_ingestion_jobs(log.snapshot(), settings)
    found = [{view.partition_id: extents for view, extents in draft.partitions()} for draft in drafts]
    assert found == _groups(_files(log), settings)
    if drafts and (wait := drafts[-1].wait) is not None:
        missing = max_files - drafts[-1].file_count, max_bytes - drafts[-1].file_bytes
        assert (wait.files, wait.size_bytes) == missing
