"""Which files of failed jobs are retried together, compared with a plain model of the rules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.jobs.quarantine import QuarantineCandidate
from planner.dirtiness import contiguous_run
from planner.jobs.fault_bisection import can_be_retried, draft_fault_bisection_jobs
from planner.plan import JobKind
from planner.settings import PlannerSettings
from tests.planner.model_log import NOW_MS, Chunk, ModelLog, topic_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import Extent, PartitionId
    from planner.snapshot import FileView

    Taken = dict[PartitionId, tuple[Extent, ...]]


def candidate(
    file: FileView, *, job: int, max_files: int, not_before_ms: int = 0, quarantined_ms: int | None = None
) -> QuarantineCandidate:
    return QuarantineCandidate(
        file_id=file.file_id,
        object_name=file.object_name,
        kind=file.kind,
        size=file.size,
        committed_ms=file.committed_ms,
        max_files=max_files,
        failures=1,
        job_id=UUID(int=job),
        reason="a test",
        failed_ms=0,
        not_before_ms=not_before_ms,
        quarantined_ms=quarantined_ms,
    )


def _is_allowed(
    group: Sequence[FileView], candidates: dict[UUID, QuarantineCandidate], max_bytes: int
) -> bool:
    found = [candidates[each.file_id] for each in group]
    return (
        len({each.job_id for each in found}) == 1
        and all(len(group) <= each.max_files for each in found)
        and sum(each.size for each in group) <= max_bytes
    )


def _free_extents(log: ModelLog) -> dict[tuple[PartitionId, Extent], UUID]:
    """Return the file of each stable extent that no open job has."""
    return {
        (key, extent): extent.file_id
        for key in sorted(log.extents)
        for extent in log.extents[key]
        if extent.last_offset < log.view(key).state.last_stable_offset
        and (key, extent.base_offset) not in log.claimed
    }


def _retried(
    log: ModelLog, candidates: dict[UUID, QuarantineCandidate], known: Sequence[FileView]
) -> list[FileView]:
    """Return the files to retry, by failed job and in commit order."""
    present = set(_free_extents(log).values())
    return [
        each
        for job in sorted({each.job_id for each in candidates.values()})
        for each in known
        if each.file_id in candidates
        and candidates[each.file_id].job_id == job
        and can_be_retried(candidates[each.file_id], NOW_MS)
        and each.file_id in present
    ]


def model(
    log: ModelLog, candidates: dict[UUID, QuarantineCandidate], files: list[FileView], max_bytes: int
) -> list[Taken]:
    """Return the extents that each job takes of these files."""
    groups: list[Taken] = []
    while files:
        count = 1
        while count < len(files) and _is_allowed(files[: count + 1], candidates, max_bytes):
            count += 1
        names = [each.file_id for each in files[:count]]
        taken: dict[PartitionId, list[Extent]] = {}
        for (key, extent), file_id in _free_extents(log).items():
            if file_id in names:
                taken.setdefault(key, []).append(extent)
        groups.append({key: contiguous_run(found) for key, found in taken.items()})
        files = files[count:]
    return groups


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 2), st.integers(1, 3), min_size=1),
            st.sampled_from([None, *[(job, most) for job in (1, 2) for most in (1, 2, 4)]]),
            st.sampled_from([*[(0, None)] * 6, (NOW_MS, None), (NOW_MS + 1, None), (0, NOW_MS)]),
            st.sampled_from([True, True, True, True, False]),
        ),
        max_size=10,
    ),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=2),
    st.integers(0, 2),
    st.integers(0, 4),
)
def test_candidates_are_retried_in_groups_that_their_failures_allow(
    files: list[tuple[dict[int, int], tuple[int, int] | None, tuple[int, int | None], bool]],
    claimed: set[tuple[int, int]],
    unstable: int,
    fitting: int,
) -> None:
    """A group has files of one failed job, in commit order, as many as all of them and the bound allow.

    The bound is that of the first `fitting` files, or none. Quarantined files, those that must wait, and
    files that the plan does not know are in none.
    """
    log = ModelLog(rules=[topic_rules(0)], partition_count=3)
    keys = sorted(log.extents)
    candidates, known = {}, []
    for chunks, failed, (not_before_ms, quarantined_ms), is_known in files:
        file = log.append({keys[each]: Chunk(records=count, length=5) for each, count in chunks.items()})
        if is_known:
            known.append(file)
        if failed is not None:
            job, most = failed
            candidates[file.file_id] = candidate(
                file,
                job=job,
                max_files=most,
                not_before_ms=not_before_ms,
                quarantined_ms=quarantined_ms,
            )
    log.claimed = {(keys[number], offset) for number, offset in claimed}
    log.unstable[keys[0]] = unstable
    snapshot = replace(
        log.snapshot(),
        files={each.file_id: each for each in known},
        quarantine_candidates=candidates,
    )
    retried = _retried(log, candidates, known)
    max_bytes = sum(each.size for each in retried[:fitting]) or 1 << 30
    settings = PlannerSettings(max_job_input_bytes=max_bytes)
    drafts = draft_fault_bisection_jobs(snapshot, settings)
    assert all(draft.kind is JobKind.FAULT_BISECTION for draft in drafts)
    found = [{view.partition_id: extents for view, extents in draft.partitions()} for draft in drafts]
    assert found == model(log, candidates, retried, max_bytes)


@pytest.mark.parametrize(("spare", "groups"), [(0, [2, 1]), (-1, [1, 1, 1])])
def test_the_files_of_a_group_may_fill_a_job_and_not_more(spare: int, groups: list[int]) -> None:
    """Two of the three files, which have equal sizes, reach the bound exactly."""
    log = ModelLog(rules=[topic_rules(0)])
    (key,) = log.extents
    files = [log.append({key: Chunk(records=1, length=5)}) for _ in range(3)]
    candidates = {each.file_id: candidate(each, job=1, max_files=4) for each in files}
    settings = PlannerSettings(max_job_input_bytes=2 * files[0].size + spare)
    drafts = draft_fault_bisection_jobs(replace(log.snapshot(), quarantine_candidates=candidates), settings)
    assert [draft.file_count for draft in drafts] == groups
