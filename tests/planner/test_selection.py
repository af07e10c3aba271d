"""What one job takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import AbortedTransaction, PartitionId
from planner.plan import JobKind
from planner.score import RequestPrices, score_of
from planner.selection import GET_IN_READING, JOB_IN_READING, JobDraft, group_neighbours
from planner.settings import MIB, PlannerSettings
from tests.planner.model_log import Chunk, ModelLog, topic_rules

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from catalog.model import Extent


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


def test_a_job_saves_no_get_in_files_that_the_extents_do_not_share() -> None:
    between = GET_IN_READING + JOB_IN_READING // 2 + 1
    log = ModelLog(rules=[topic_rules(0)], partition_count=3)
    first, unneeded, last = sorted(log.extents)
    log.append({key: Chunk(records=1, length=between if key == unneeded else 10) for key in log.extents})
    log.append({first: Chunk(records=1, length=10)})
    snapshot = log.snapshot()
    draft = JobDraft(JobKind.INGESTION, snapshot.files, PlannerSettings(), snapshot.now_ms)
    draft.take(log.view(first), log.extents[first])
    assert not draft.is_near(log.extents[last])


LENGTHS = st.sampled_from([0, 10, 100, 300, 40 * MIB])


@given(
    st.lists(st.sampled_from([0, 10, 10, 300, 40 * MIB]), min_size=8, max_size=8),
    st.sets(st.integers(0, 7), min_size=3),
    st.sampled_from([20, 310, 1 << 30, 1 << 30]),
    st.sampled_from([1, 3, 8, 8]),
)
def test_neighbours_share_a_job_with_the_partition_before_them(
    lengths: list[int], wanted: set[int], max_bytes: int, max_extents: int
) -> None:
    """One file has all partitions. Each joins the last job if it fits there and is near."""
    settings = PlannerSettings(max_job_input_bytes=max_bytes, max_job_extents=max_extents)
    log = ModelLog(rules=[topic_rules(0)], partition_count=8)
    keys = sorted(log.extents)
    log.append({keys[number]: Chunk(records=1, length=length) for number, length in enumerate(lengths)})
    chosen = [log.extents[keys[number]][0] for number in sorted(wanted)]
    groups: list[list[Extent]] = []
    for extent in chosen:
        joined = [*groups[-1], extent] if groups else []
        size = sum(hulls(joined).values())
        saved = 2 * GET_IN_READING + JOB_IN_READING
        grows = size > sum(hulls(joined[:-1]).values())
        fits = (size <= max_bytes or not grows) and len(joined) <= max_extents
        near = 2 * (size - sum(hulls(joined[:-1]).values()) - extent.length) <= saved
        if joined and fits and near:
            groups[-1] = joined
        else:
            groups.append([extent])
    views = [(log.view(PartitionId(each.topic_id, each.partition)), (each,)) for each in chosen]
    drafts = group_neighbours(JobKind.CLEANING, log.snapshot(), settings, views)
    assert [[one for _, (one,) in draft.partitions()] for draft in drafts] == groups


def hulls(extents: Iterable[Extent]) -> dict[UUID, int]:
    """Return, by file, the number of bytes from the first extent that has some to the last one."""
    found: dict[UUID, list[tuple[int, int]]] = {}
    for each in extents:
        bounds = [(each.position, each.position + each.length)] if each.length else []
        found.setdefault(each.file_id, []).extend(bounds)
    return {
        name: max(end for _, end in bounds) - min(start for start, _ in bounds) if bounds else 0
        for name, bounds in found.items()
    }


@given(
    st.lists(st.dictionaries(st.integers(0, 4), LENGTHS, min_size=1), min_size=1, max_size=4),
    st.permutations(range(5)),
    st.sampled_from([1, 110, 410, 80 * MIB + 10]),
    st.integers(1, 3),
    st.integers(1, 6),
)
def test_a_draft_counts_what_a_task_reads(
    files: list[dict[int, int]], order: list[int], max_bytes: int, max_files: int, max_extents: int
) -> None:
    """Each file is read from the first needed section to the last; bounds concern the whole job."""
    settings = PlannerSettings(
        max_job_input_bytes=max_bytes, max_job_files=max_files, max_job_extents=max_extents
    )
    log = ModelLog(rules=[topic_rules(0)], partition_count=5)
    keys = sorted(log.extents)
    for lengths in files:
        log.append({keys[number]: Chunk(records=1, length=length) for number, length in lengths.items()})
    draft = JobDraft(JobKind.INGESTION, log.files, settings, log.now_ms)
    taken: list[Extent] = []
    for count, key in enumerate(
        (each for each in map(keys.__getitem__, order) if log.extents[each]), start=1
    ):
        extents, view = log.extents[key], log.view(key)
        before, alone, after = hulls(taken), hulls(extents), hulls(taken + extents)
        readable = before == after or (sum(after.values()) <= max_bytes and len(after) <= max_files)
        assert draft.fits(view, extents) is (
            not taken or (readable and len(taken) + len(extents) <= max_extents)
        )
        between = sum(after.values()) - sum(before.values()) - sum(alone.values())
        saved = 2 * len(before.keys() & alone.keys()) * GET_IN_READING + JOB_IN_READING
        assert draft.is_near(extents) is (2 * between <= saved)
        draft.take(view, extents)
        taken += extents
        assert (draft.file_count, draft.file_bytes) == (len(after), sum(after.values()))
        assert draft.extents_of_each == len(taken) / count


def test_a_partition_that_grows_counts_once() -> None:
    log = ModelLog(rules=[topic_rules(0)])
    (key,) = log.extents
    for _ in range(3):
        log.append({key: Chunk(records=1, length=10)})
    draft = JobDraft(JobKind.INGESTION, log.files, PlannerSettings(max_job_extents=3), log.now_ms)
    draft.take(log.view(key), log.extents[key][1:])
    assert draft.fits(log.view(key), log.extents[key])
    draft.take(log.view(key), log.extents[key])
    assert (draft.extents_of_each, draft.file_count, draft.file_bytes) == (3, 3, 30)


@pytest.mark.parametrize("taken", [1, 2])
@pytest.mark.parametrize("whole_extents", [0, 1, 2])
def test_a_job_claims_a_file_if_it_takes_all_of_its_extents(whole_extents: int, taken: int) -> None:
    """No number of extents is all of them if the snapshot may lack some."""
    log = ModelLog(rules=[topic_rules(0)], partition_count=2)
    file = log.append({key: Chunk(records=1, length=10) for key in log.extents})
    files = {file.file_id: replace(file, whole_extents=whole_extents)}
    draft = JobDraft(JobKind.INGESTION, files, PlannerSettings(), log.now_ms)
    for key in sorted(log.extents)[:taken]:
        draft.take(log.view(key), log.extents[key])
    (found,) = draft.finish("a test", score_of(draft, RequestPrices(), log.now_ms)).inputs
    assert found.is_whole is (taken == whole_extents)


def test_a_job_gets_the_aborted_transactions_and_control_batches_of_its_offsets() -> None:
    """Offsets 10 to 29 are in the job, and two control batches, at 20 and 21, follow the first extent."""
    log = ModelLog(rules=[topic_rules(0)])
    (key,) = log.extents
    for _ in range(3):
        log.append({key: Chunk(records=10, length=10)})
    first, second = log.extents[key][1:]
    extents = [first._replace(controls_after=2), second._replace(base_offset=22, last_offset=31)]
    bounds = [(0, 9), (0, 10), (5, 15), (31, 40), (32, 40)]
    aborted = tuple(AbortedTransaction(number, *each) for number, each in enumerate(bounds))
    draft = JobDraft(JobKind.INGESTION, log.files, PlannerSettings(), log.now_ms)
    draft.take(replace(log.view(key), aborted=aborted), extents)
    (part,) = draft.finish("a test", score_of(draft, RequestPrices(), log.now_ms)).partitions
    assert (part.base_offset, part.upper_offset, part.controls) == (10, 32, ((20, 21),))
    assert [each.producer_id for each in part.aborted] == [1, 2, 3]
