"""Random histories of commits, retries, jobs, deletions and garbage, with all invariants after each step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from catalog.errors import ExtentsUnavailableError, JobSupersededError
from catalog.jobs.repository import MAX_DEATHS
from catalog.model import JobState, PartitionId, RunRefusal
from catalog.open import open_catalog
from core.clock import ManualClock
from core.ids import SeededIds
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import Scene, advance_log_start, run_of
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import FileCommit, Job, SectionResult, Topic
    from tests.fixtures.postgres import PostgresForTests

_PARTITIONS = 2


class CatalogMachine(RuleBasedStateMachine):
    """Catalog with up to two topics and a few producers; the model is the acknowledged results."""

    postgres: PostgresForTests

    def __init__(self) -> None:
        super().__init__()
        self.url = self.postgres.create()
        self.clock = ManualClock()
        ids = SeededIds(1, self.clock)
        self.catalog = open_catalog(self.url, self.clock, ids, limits=PATIENT)
        self.scene = Scene.set_up(self.catalog, ids)
        self.checker = InvariantChecker(self.catalog)
        self.topics: list[Topic] = []
        self.deleted: set[UUID] = set()
        self.committed: list[tuple[FileCommit, tuple[SectionResult, ...]]] = []
        self.sequences: dict[tuple[PartitionId, int], int] = {}
        self.sent: list[tuple[PartitionId, int, int, int, int]] = []
        self.jobs: list[Job] = []
        self.number = 0

    @override
    def teardown(self) -> None:
        self.catalog.close()
        self.postgres.drop(self.url)

    @precondition(lambda self: len(self.topics) < 2)
    @rule()
    def create_topic(self) -> None:
        self.number += 1
        self.topics.append(self.scene.topic(f"topic-{self.number}", _PARTITIONS))

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), counts=st.lists(st.integers(1, 5), min_size=1, max_size=3))
    def commit_without_producer(self, data: st.DataObject, counts: list[int]) -> None:
        topics = data.draw(st.lists(st.sampled_from(self.topics), min_size=1, max_size=2, unique_by=id))
        partition = data.draw(st.integers(0, _PARTITIONS - 1))
        sections = {PartitionId(topic.topic_id, partition): [run_of(n) for n in counts] for topic in topics}
        self._commit(self.scene.file(sections))

    @precondition(lambda self: self.topics)
    @rule(
        data=st.data(),
        producer=st.integers(1, 2),
        partition=st.integers(0, _PARTITIONS - 1),
        count=st.integers(1, 4),
    )
    def commit_idempotent(self, data: st.DataObject, producer: int, partition: int, count: int) -> None:
        key = PartitionId(data.draw(st.sampled_from(self.topics)).topic_id, partition)
        sequence = self.sequences.get((key, producer), 0)
        (result,) = self._commit(self.scene.file({key: [run_of(count, producer=(producer, 0, sequence))]}))
        assert result.runs[0].refusal is None
        self.sequences[key, producer] = sequence + count
        self.sent.append((key, producer, sequence, count, result.runs[0].base_offset))

    @precondition(lambda self: self.topics)
    @rule(
        data=st.data(),
        producer=st.integers(1, 2),
        counts=st.lists(st.integers(1, 4), min_size=2, max_size=3),
    )
    def commit_together(self, data: st.DataObject, producer: int, counts: list[int]) -> None:
        """Some of the files were committed before. The others continue a producer's sequence."""
        known = (
            data.draw(st.lists(st.sampled_from(self.committed[-5:]), max_size=2)) if self.committed else []
        )
        topic = data.draw(st.sampled_from(self.topics))
        files = []
        for count in counts:
            key = PartitionId(topic.topic_id, data.draw(st.integers(0, _PARTITIONS - 1)))
            sequence = self.sequences.get((key, producer), 0)
            files.append(self.scene.file({key: [run_of(count, producer=(producer, 0, sequence))]}))
            self.sequences[key, producer] = sequence + count
        results = self.catalog.commits.commit_together(
            [*(commit for commit, _ in known), *files], with_extents=True
        )
        for (_, earlier), again in zip(known, results, strict=False):
            self._check_repeated(earlier, again)
        for file, (result,) in zip(files, results[len(known) :], strict=True):
            assert result.runs[0].refusal is None
            self.committed.append((file, (result,)))
            (run,), key = file.sections[0].runs, PartitionId(result.topic_id, result.partition)
            assert run.producer is not None
            sequence, base_offset = run.producer.base_sequence, result.runs[0].base_offset
            self.sent.append((key, producer, sequence, run.offset_count, base_offset))

    @precondition(lambda self: self.sent)
    @rule()
    def send_again_in_another_file(self) -> None:
        """A duplicate of the newest batch returns its first offset."""
        key, producer, sequence, count, base_offset = self.sent[-1]
        (result,) = self._commit(self.scene.file({key: [run_of(count, producer=(producer, 0, sequence))]}))
        if key.topic_id in self.deleted:
            assert result.runs[0].refusal is RunRefusal.UNKNOWN_TOPIC_OR_PARTITION
        else:
            assert result.runs[0].duplicate
            assert result.runs[0].base_offset == base_offset
            assert result.extents == ()

    @precondition(lambda self: self.sent)
    @rule(gap=st.integers(1, 9))
    def skip_a_sequence(self, gap: int) -> None:
        key, producer, *_ = self.sent[-1]
        sequence = self.sequences[key, producer] + gap
        (result,) = self._commit(
            self.scene.file({key: [run_of(1, producer=(producer, 0, sequence)), run_of(2)]})
        )
        if key.topic_id not in self.deleted:
            assert result.runs[0].refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE
            assert [extent.offset_shift for extent in result.extents] == [result.runs[1].base_offset - 1]

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def retry_a_commit(self, data: st.DataObject) -> None:
        """A retry returns the results of the first commit, with the current log start offsets."""
        commit, results = data.draw(st.sampled_from(self.committed[-5:]))
        self._check_repeated(results, self.catalog.commits.commit(commit, with_extents=True))

    def _check_repeated(self, results: tuple[SectionResult, ...], again: tuple[SectionResult, ...]) -> None:
        assert again == tuple(
            replace(result, log_start_offset=found.log_start_offset)
            for result, found in zip(results, again, strict=True)
        )

    def _commit(self, commit: FileCommit) -> tuple[SectionResult, ...]:
        results = self.catalog.commits.commit(commit, with_extents=True)
        self.committed.append((commit, results))
        return results

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), reaches=st.booleans(), claims_files=st.booleans())
    def submit_job(self, data: st.DataObject, reaches: bool, claims_files: bool) -> None:
        self.scene.claims_files = claims_files
        topic = data.draw(st.sampled_from(self.topics))
        extents = self.scene.extents(topic, data.draw(st.integers(0, _PARTITIONS - 1)))
        if not extents:
            return
        first = 0 if reaches else data.draw(st.integers(0, len(extents) - 1))
        last = data.draw(st.integers(first, len(extents) - 1))
        try:
            job = self.scene.claimed(extents[first : last + 1], reaches_log_start=reaches)
        except ExtentsUnavailableError:
            claimed = self.catalog.planning.extents_of(
                PartitionId(topic.topic_id, extents[0].partition),
                extents[first].base_offset,
                last - first + 1,
            )
            jobs = [self.catalog.jobs.get(each.claimed_by) for each in claimed if each.claimed_by is not None]
            # Others than `self.jobs` wait in the queue while compaction pauses.
            assert any(job.state in {JobState.SUBMITTED, JobState.RUNNING} for job in jobs)
        else:
            self.jobs.append(job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), keep=st.integers(0, 3))
    def complete_job(self, data: st.DataObject, keep: int) -> None:
        job = self._take(data)
        result = self.scene.result(job, keep=keep)
        self.catalog.jobs.complete(result)
        self.catalog.jobs.complete(result)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def fail_job(self, data: st.DataObject) -> None:
        job = self._take(data)
        assert job.attempt_id is not None
        self.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "a test")

    @precondition(lambda self: self.jobs)
    @rule()
    def lose_jobs(self) -> None:
        """Attempts stop their heartbeats; others take over a few times, and the old ones are rejected.

        The second look finds the job whose silence has caused a pause of compaction.
        """
        self.clock.advance(100)
        expired = [each for _ in range(2) for each in self.catalog.jobs.release_expired(50_000, 0)]
        failed = [
            each for each in self.jobs if self.catalog.jobs.get(each.spec.job_id).state is JobState.FAILED
        ]
        assert set(expired) == {each.spec.job_id for each in self.jobs if each not in failed}
        assert all(each.attempts >= MAX_DEATHS for each in failed)
        old, self.jobs = self.jobs, self.catalog.jobs.claim("other", len(expired)) if expired else []
        for job in old:
            with pytest.raises(JobSupersededError):
                self.catalog.jobs.complete(self.scene.result(job))

    def _take(self, data: st.DataObject) -> Job:
        return self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def delete_topic(self, data: st.DataObject) -> None:
        topic = self.topics.pop(data.draw(st.integers(0, len(self.topics) - 1)))
        self.deleted.add(topic.topic_id)
        self.catalog.topics.delete(topic.name)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), partition=st.integers(0, _PARTITIONS - 1), limit=st.integers(1, 3))
    def expire(self, data: st.DataObject, partition: int, limit: int) -> None:
        topic = data.draw(st.sampled_from(self.topics))
        offset = data.draw(st.integers(0, 60))
        advance_log_start(self.catalog.retention, topic.topic_id, partition, offset)
        self.catalog.retention.remove_expired(topic.topic_id, partition, limit=limit)

    @rule(limit=st.integers(1, 5))
    def collect_garbage(self, limit: int) -> None:
        files = self.catalog.garbage.dead_files(2**62, limit)
        assert self.catalog.garbage.delete_rows([file.file_id for file in files]) == len(files)

    @invariant()
    def invariants_hold(self) -> None:
        assert self.checker.violations() == []


def test_no_history_breaks_an_invariant(postgres: PostgresForTests) -> None:
    machine = type("Machine", (CatalogMachine,), {"postgres": postgres})
    run_state_machine_as_test(
        machine,
        settings=settings(
            settings(),
            max_examples=settings().max_examples // 2,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
