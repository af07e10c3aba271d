"""Plans from a real catalog, and their submission."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.model import FileKind, JobState, PartitionId
from core.errors import NotFoundError
from planner import planner as planner_module
from planner.plan import JobKind, Verdict
from planner.planner import REPLANS, LookCursor, plan, plan_and_submit, submit
from planner.settings import PlannerSettings

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import Topic
    from planner.planner import Submission
    from tests.planner.system import System

pytestmark = pytest.mark.integration

DEFAULTS = PlannerSettings()


def submitted(system: System, settings: PlannerSettings = DEFAULTS) -> Submission:
    return plan_and_submit(system.catalog, system.clock, system.ids, settings)


def mixed_topics(system: System) -> tuple[Topic, Topic]:
    keyed = system.topic("keyed", 2, cleanup_policy="compact")
    plain = system.topic("plain", 1)
    for number in range(3):
        system.produce(
            {
                PartitionId(keyed.topic_id, 0): [(b"a", b"%d" % number), (b"b", b"%d" % number)],
                PartitionId(keyed.topic_id, 1): [(b"c", b"%d" % number)],
                PartitionId(plain.topic_id, 0): [(b"x", b"%d" % number)] * 2,
            }
        )
    return keyed, plain


def test_an_empty_catalog_needs_no_jobs(system: System) -> None:
    assert plan(system.catalog, system.clock, DEFAULTS).jobs == ()
    assert submitted(system).jobs == ()


def test_planning_changes_nothing_until_the_plan_is_submitted(system: System) -> None:
    mixed_topics(system)
    first = plan(system.catalog, system.clock, DEFAULTS)
    assert plan(system.catalog, system.clock, DEFAULTS) == first
    submission = submit(system.catalog, system.clock, system.ids, DEFAULTS, first)
    assert (len(submission.jobs), submission.lost) == (1, 0)
    assert plan(system.catalog, system.clock, DEFAULTS).jobs == ()


def test_a_job_freezes_everything_that_its_outcome_depends_on(system: System) -> None:
    mixed_topics(system)
    (spec,) = submitted(system, PlannerSettings(table_bytes=12_000, merge_batches=False)).jobs
    assert (spec.now_ms, spec.created_ms) == (system.clock.now_ms(), system.clock.now_ms())
    assert (len(spec.hash_seed), spec.table_bytes, spec.merge_batches) == (16, 12_000, False)
    assert system.catalog.jobs.get(spec.job_id).spec == spec
    assert [part.topic_name for part in spec.partitions] == ["keyed", "keyed", "plain"]
    limits = [system.catalog.topics.get(part.topic_name).config.max_message_bytes for part in spec.partitions]
    assert [part.max_message_bytes for part in spec.partitions] == limits
    for part in spec.partitions:
        config = system.catalog.topics.get(part.topic_name).config
        assert part.expires_after_ms == (config.retention_ms if config.deletes else None)


def test_compaction_by_hand_takes_everything_once(system: System) -> None:
    keyed, plain = mixed_topics(system)
    assert len(submitted(system).jobs) == 1
    assert system.run_jobs() == 1
    one = system.read_log(PartitionId(keyed.topic_id, 0))
    assert [(record.offset, record.key, record.value) for record in one] == [(4, b"a", b"2"), (5, b"b", b"2")]
    assert len(system.read_log(PartitionId(plain.topic_id, 0))) == 6
    files = system.catalog.garbage.known_files("")
    assert sum(file.kind is FileKind.COMPACTED for file in files) == 2
    assert submitted(system).jobs == ()


def test_new_records_of_a_clean_partition_are_cleaned_from_its_log_start(system: System) -> None:
    keyed, _ = mixed_topics(system)
    submitted(system)
    system.run_jobs()
    key = PartitionId(keyed.topic_id, 0)
    system.produce({key: [(b"a", b"news")] * 20})
    (spec,) = submitted(system).jobs
    (part,) = spec.partitions
    assert (part.base_offset, part.upper_offset, part.reaches_log_start) == (0, 26, True)
    system.run_jobs()
    assert [(record.offset, record.key) for record in system.read_log(key)] == [(5, b"b"), (25, b"a")]
    (state,) = system.catalog.topics.states([key])
    assert state.first_dirty_offset == 26


def test_a_backlog_larger_than_a_job_takes_several_rounds(system: System) -> None:
    keyed, _ = mixed_topics(system)
    settings = PlannerSettings(max_job_files=2, force=True)
    rounds = []
    while (submission := submitted(system, settings)).jobs:
        rounds.append(len(submission.jobs))
        system.run_jobs()
    assert rounds == [2, 1]  # two ingestion jobs, then one that cleans what they could not
    assert len(system.read_log(PartitionId(keyed.topic_id, 0))) == 2


def test_a_stale_plan_loses_its_job_and_is_made_again(system: System) -> None:
    keyed, _ = mixed_topics(system)
    late = plan(system.catalog, system.clock, DEFAULTS)
    assert len(submitted(system).jobs) == 1
    submission = submit(system.catalog, system.clock, system.ids, DEFAULTS, late)
    assert (submission.jobs, submission.lost) == ((), 1)
    system.produce({PartitionId(keyed.topic_id, 0): [(b"a", b"news")]})
    assert len(submitted(system).jobs) == 1


def test_planning_stops_after_losing_a_number_of_races(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed_topics(system)
    late = plan(system.catalog, system.clock, DEFAULTS)
    submitted(system)
    monkeypatch.setattr("planner.planner.plan", lambda *_, **__: late)
    submission = plan_and_submit(system.catalog, system.clock, system.ids, DEFAULTS)
    assert (submission.jobs, submission.lost) == ((), 1 + REPLANS)


def test_a_file_that_failed_a_job_is_retried_alone(system: System) -> None:
    mixed_topics(system)
    (spec,) = submitted(system).jobs
    (job,) = system.catalog.jobs.claim("a test", 1)
    assert job.attempt_id is not None
    suspect = spec.inputs[0].file_id
    system.catalog.jobs.fail(spec.job_id, job.attempt_id, "for a test", suspects=[suspect])
    retried = [[each.file_id for each in job.inputs] for job in submitted(system).jobs]
    others = [each.file_id for each in spec.inputs if each.file_id != suspect]
    assert sorted(retried, key=len) == [[suspect], others]
    assert system.catalog.jobs.get(spec.job_id).state is JobState.FAILED


NEWER_FORMATS = ("format_version = 2", "required_features = 'encrypted-blocks@0.4'")


def write_by_newer_version(catalog_url: str, newer: str, files: list[UUID]) -> None:
    """Let some files look like those of a newer Siltstone."""
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute(f"UPDATE files SET {newer} WHERE file_id = ANY (%s)".encode(), [files])


@pytest.mark.parametrize("newer", NEWER_FORMATS)
def test_a_failed_file_of_a_newer_version_is_not_retried(
    system: System, catalog_url: str, newer: str
) -> None:
    mixed_topics(system)
    (spec,) = submitted(system).jobs
    (job,) = system.catalog.jobs.claim("a test", 1)
    assert job.attempt_id is not None
    suspect, *others = (each.file_id for each in spec.inputs)
    system.catalog.jobs.fail(spec.job_id, job.attempt_id, "for a test", suspects=[suspect])
    write_by_newer_version(catalog_url, newer, [suspect])
    assert [[each.file_id for each in job.inputs] for job in submitted(system).jobs] == [others]


@pytest.mark.parametrize("newer", NEWER_FORMATS)
@pytest.mark.parametrize("cleanup_policy", ["delete", "compact"])
def test_compacted_files_of_a_newer_version_are_neither_merged_nor_cleaned(
    system: System, catalog_url: str, cleanup_policy: str, newer: str
) -> None:
    topic = system.topic("numbers", cleanup_policy=cleanup_policy)
    for number in range(4):
        system.produce({PartitionId(topic.topic_id, 0): [(b"a", b"%d" % number)]})
    submitted(system, PlannerSettings(max_job_files=1))
    system.run_jobs()
    settings = PlannerSettings(merge_fan_in=2, force=True)
    (job,) = plan(system.catalog, system.clock, settings).jobs
    assert job.kind is (JobKind.CLEANING if cleanup_policy == "compact" else JobKind.MERGING)
    assert {each.is_whole for each in job.inputs} == {job.kind is JobKind.MERGING}
    write_by_newer_version(catalog_url, newer, [each.file_id for each in job.inputs])
    assert plan(system.catalog, system.clock, settings).jobs == ()


def test_a_deleted_topic_is_not_in_the_next_plan(system: System) -> None:
    """Its extents keep the job from claiming the whole file."""
    mixed_topics(system)
    assert all(
        file.is_whole for job in plan(system.catalog, system.clock, DEFAULTS).jobs for file in job.inputs
    )
    system.catalog.topics.delete("keyed")
    (spec,) = submitted(system).jobs
    assert [part.topic_name for part in spec.partitions] == ["plain"]
    assert not any(file.is_whole for file in spec.inputs)


def test_the_explanation_of_a_topic_covers_all_its_partitions(system: System) -> None:
    mixed_topics(system)
    submitted(system)
    system.run_jobs()
    assert plan(system.catalog, system.clock, DEFAULTS).decisions == ()
    explained = plan(system.catalog, system.clock, DEFAULTS, explain="keyed").explain("keyed")
    assert [(each.partition, each.verdict) for each in explained] == [
        (0, Verdict.NOTHING),
        (1, Verdict.NOTHING),
    ]
    assert "clean up to offset 6" in explained[0].reason
    (plain,) = plan(system.catalog, system.clock, DEFAULTS, explain="plain").explain("plain")
    assert "everything is in compacted files" in plain.reason
    with pytest.raises(NotFoundError, match="nonesuch"):
        plan(system.catalog, system.clock, DEFAULTS, explain="nonesuch")


def wide_files(system: System, count: int, partitions: int = 4) -> list[UUID]:
    """Commit files that each have a record of every partition of two topics; return their ids."""
    topics = [system.topic("keyed", partitions // 2, cleanup_policy="compact"), system.topic("plain", 2)]
    keys = [PartitionId(topic.topic_id, number) for topic in topics for number in range(partitions // 2)]
    return [system.produce({key: [(b"k", b"v")] for key in keys}).file_id for _ in range(count)]


def test_one_look_plans_the_files_that_follow_until_all_slots_are_full(system: System) -> None:
    """A plan examines two of the files. Each job takes the next two, and no file is left out."""
    files = wide_files(system, 9)
    few = PlannerSettings(max_plan_extents=16)
    assert [len(job.inputs) for job in submitted(system, few).jobs] == [2]
    system.clock.advance(1)
    jobs = plan_and_submit(system.catalog, system.clock, system.ids, few, slots=3).jobs
    assert [[each.file_id for each in job.inputs] for job in jobs] == [files[2:4], files[4:6]]
    jobs = plan_and_submit(system.catalog, system.clock, system.ids, few, slots=100).jobs
    assert [[each.file_id for each in job.inputs] for job in jobs] == [files[6:8], files[8:]]
    assert plan_and_submit(system.catalog, system.clock, system.ids, few, slots=100).jobs == ()
    while system.run_jobs() + len(submitted(system, few).jobs):
        pass
    topic = system.catalog.topics.get("plain").topic_id
    assert len(system.read_log(PartitionId(topic, 1))) == 9


def test_files_that_no_job_can_take_do_not_stop_a_look(system: System, catalog_url: str) -> None:
    """The oldest files have a format that a newer release wrote, and fill the first plan."""
    files = wide_files(system, 6)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE files SET format_version = 99 WHERE file_id = ANY (%s)", (files[:4],))
    jobs = submitted(system, PlannerSettings(max_plan_extents=16)).jobs
    assert [each.file_id for job in jobs for each in job.inputs] == files[4:]


def test_a_long_look_ends_and_the_next_one_continues(
    system: System, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job can take the oldest files. Behind the last file, a look begins at the oldest again."""
    monkeypatch.setattr(planner_module, "MAX_PLANS", 2)
    files = wide_files(system, 8)
    settings = PlannerSettings(max_plan_extents=16)
    cursor = LookCursor()
    look = partial(
        plan_and_submit, system.catalog, system.clock, system.ids, settings, slots=9, cursor=cursor
    )
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE files SET format_version = 99 WHERE file_id = ANY (%s)", (files[:6],))
    first = look()
    assert (first.jobs, first.is_complete, cursor.after is None) == ((), False, False)
    found = [look() for _ in range(3)]
    assert [each.file_id for done in found for job in done.jobs for each in job.inputs] == files[6:]
    assert cursor.after is None


def test_a_look_ends_when_it_is_stopped(system: System, catalog_url: str) -> None:
    files = wide_files(system, 8)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE files SET format_version = 99 WHERE file_id = ANY (%s)", (files[:4],))
    stopped = threading.Event()
    stopped.set()
    settings = PlannerSettings(max_plan_extents=16)
    done = plan_and_submit(
        system.catalog, system.clock, system.ids, settings, slots=9, stopped=stopped, cursor=LookCursor()
    )
    assert (done.jobs, done.is_complete) == ((), False)


def test_a_look_ends_with_the_largest_number_of_jobs(system: System) -> None:
    wide_files(system, 8)
    settings = PlannerSettings(max_plan_extents=16, max_look_jobs=3)
    assert len(plan_and_submit(system.catalog, system.clock, system.ids, settings, slots=100).jobs) == 3


def test_two_planners_fill_the_slots_of_both_with_different_files(system: System) -> None:
    """Each input is in one job; both together plan no more than the slots of the larger one."""
    files = wide_files(system, 12)
    settings = PlannerSettings(max_plan_extents=16)
    with ThreadPoolExecutor(2) as threads:
        looks = [
            threads.submit(plan_and_submit, system.catalog, system.clock, system.ids, settings, slots=100)
            for _ in range(2)
        ]
        jobs = [job for look in looks for job in look.result(timeout=60).jobs]
    taken = [each.file_id for job in jobs for each in job.inputs]
    assert len(taken) == len(set(taken))
    rest = plan_and_submit(system.catalog, system.clock, system.ids, settings, slots=100).jobs
    assert sorted(taken + [each.file_id for job in rest for each in job.inputs]) == sorted(files)


def test_data_beyond_the_bounds_of_a_snapshot_is_planned_later(system: System) -> None:
    mixed_topics(system)
    planned = plan(system.catalog, system.clock, PlannerSettings(max_plan_files=2))
    assert [len(job.inputs) for job in planned.jobs] == [2]
    narrow = PlannerSettings(max_plan_extents=1, force=True)
    kinds = set()
    while (step := plan(system.catalog, system.clock, narrow)).jobs:
        kinds |= {job.kind for job in step.jobs}
        submit(system.catalog, system.clock, system.ids, narrow, step)
        system.run_jobs()
    assert JobKind.INGESTION in kinds
