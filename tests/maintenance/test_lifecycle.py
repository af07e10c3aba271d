"""Agents, jobs, retention and garbage collection in random order: no record is lost, no object left over."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from catalog.model import JobState, PartitionId
from catalog.open import open_catalog
from core.clock import ManualClock
from core.errors import StaleStateError
from core.ids import SeededIds
from maintenance.fsck import fsck
from maintenance.garbage_collection import collect_garbage
from maintenance.settings import MaintenanceSettings
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from tests.catalog.scene import advance_log_start
from tests.fixtures.postgres import PATIENT
from tests.planner.system import Row, System

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from catalog.model import FileCommit, Job
    from object_format.record_batch.records import Record

pytestmark = pytest.mark.integration

GRACE_MS = 60_000
SILENCE_MS = 300_000
GARBAGE = MaintenanceSettings(
    grace_ms=GRACE_MS, session_silence_ms=SILENCE_MS, fence_confirm_ms=0, topic_delete_delay_ms=0, batch=3
)
ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=4)), min_size=1, max_size=4
)
PLANS = st.builds(PlannerSettings, max_job_files=st.integers(1, 4), force=st.booleans())


class Lifecycle(RuleBasedStateMachine):
    """State machine that compares the system with the acknowledged records of each partition."""

    make_url: Callable[..., str]
    new_directory: Callable[[], Path]

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        ids = SeededIds(3, self.clock)
        self.catalog = open_catalog(self.make_url(), self.clock, ids, limits=PATIENT)
        self.store = LocalStore(self.new_directory(), ids)
        self.system = System.start(self.catalog, self.store, self.clock, ids)
        self.written: dict[PartitionId, list[Row]] = {}
        self.compacted: set[PartitionId] = set()
        self.uploaded: list[tuple[FileCommit, dict[PartitionId, list[Row]]]] = []
        self.running: list[Job] = []
        self.starts: dict[PartitionId, int] = {}
        self.protected: dict[
            PartitionId, set[int]
        ] = {}  # offsets that must stay while the topic is not compacted

    @override
    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            self.catalog.close()
            self.store.close()

    @initialize()
    def make_topics(self) -> None:
        for name, policy in (("keyed", "compact"), ("plain", "delete")):
            topic = self.system.topic(name, 2, cleanup_policy=policy)
            for partition in range(2):
                key = PartitionId(topic.topic_id, partition)
                self.written[key] = []
                if policy == "compact":
                    self.compacted.add(key)

    @rule(data=st.data(), number=st.integers(0, 3), commit=st.booleans())
    def write(self, data: st.DataObject, number: int, commit: bool) -> None:
        keys = sorted(self.written)
        chosen = {keys[number], keys[data.draw(st.integers(0, 3))]}
        rows = {key: data.draw(ROWS) for key in sorted(chosen)}
        self.uploaded.append((self.system.upload(rows), rows))
        if commit:
            self.commit(len(self.uploaded) - 1)

    @precondition(lambda self: self.uploaded)
    @rule(index=st.integers(0, 10))
    def commit(self, index: int) -> None:
        """Commit an uploaded file late; it is rejected if its session is over."""
        commit, rows = self.uploaded.pop(index % len(self.uploaded))
        try:
            self.catalog.commits.commit(commit)
        except StaleStateError:
            return
        for key, added in rows.items():
            self.written[key] += added

    @rule(orderly=st.booleans())
    def restart_agent(self, orderly: bool) -> None:
        if orderly:
            self.catalog.sessions.end(self.system.session_id)
        self.system = System.start(self.catalog, self.store, self.clock, self.system.ids)

    @rule(number=st.integers(0, 3), offset=st.integers(0, 12))
    def delete_records(self, number: int, offset: int) -> None:
        """Delete records, also of a partition that a job is compacting."""
        key = sorted(self.written)[number]
        start = advance_log_start(self.catalog.retention, key.topic_id, key.partition, offset)
        self.starts[key] = start
        self.protected = {
            each: {o for o in protected if o >= self._start(each)}
            for each, protected in self.protected.items()
        }

    @rule()
    def reconfigure(self) -> None:
        """Switch compaction of a topic off, after which existing records must stay, or on again."""
        protect = not self.protected
        self.catalog.topics.alter_config("keyed", {"cleanup.policy": "delete" if protect else "compact"})
        keys = sorted(self.compacted)
        self.protected = (
            {key: {each.offset for each in self._records(key)} for key in keys} if protect else {}
        )

    def _start(self, key: PartitionId) -> int:
        return self.starts.get(key, 0)

    def _records(self, key: PartitionId) -> list[Record]:
        """Return the records that a reader sees, without those below the log start."""
        return [each for each in self.system.read_log(key) if each.offset >= self._start(key)]

    @rule(limits=PLANS)
    def plan(self, limits: PlannerSettings) -> None:
        plan_and_submit(self.catalog, self.clock, self.system.ids, limits)

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        self.running += self.catalog.jobs.claim("a test", limit)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 10), end=st.sampled_from(["complete", "fail", "release", "vanish"]))
    def end_attempt(self, index: int, end: str) -> None:
        job = self.running.pop(index % len(self.running))
        assert job.attempt_id is not None
        result = self.system.write_outputs(job)
        if end == "complete":
            self.catalog.jobs.complete(result)
        elif end == "fail":
            self.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "a test")
        else:
            self.catalog.jobs.release(job.spec.job_id, job.attempt_id)
            if end == "vanish":
                with pytest.raises(StaleStateError):
                    self.catalog.jobs.complete(result)

    @rule(seconds=st.sampled_from([1, 59, 61, 400]))
    def wait(self, seconds: int) -> None:
        """Let time pass; the agent sends a heartbeat unless the time is long."""
        self.clock.advance(seconds)
        if seconds * 1000 < SILENCE_MS:
            try:
                self.catalog.sessions.heartbeat(self.system.session_id)
            except StaleStateError:
                self.restart_agent(orderly=False)

    @rule()
    def collect(self) -> None:
        collect_garbage(self.catalog, self.store, self.clock, GARBAGE)
        self._check()

    def _check(self) -> None:
        report = fsck(self.catalog, self.store, self.clock, deep=True, grace_ms=10 * SILENCE_MS)
        assert report.differences == ()
        for key, rows in self.written.items():
            records = {each.offset: (each.key, each.value) for each in self._records(key)}
            expected = dict(list(enumerate(rows))[self._start(key) :])
            if key not in self.compacted:
                assert records == expected
                continue
            newest = {row[0]: offset for offset, row in expected.items()}
            assert all(records[offset] == rows[offset] for offset in newest.values())
            assert self.protected.get(key, set()) <= set(records)
            assert all(rows[offset] == row for offset, row in records.items())
        open_jobs = self.catalog.jobs.list([JobState.SUBMITTED, JobState.RUNNING])
        objects = {info.name for info in self.store.list("", purpose=Purpose.GC)}
        assert all(file.object_name in objects for job in open_jobs for file in job.spec.inputs)

    def _finish(self) -> None:
        """Complete all work; afterwards there is exactly one object for each live file."""
        self._check()
        if self.protected:
            self.reconfigure()
        for job in self.running:
            assert job.attempt_id is not None
            self.catalog.jobs.release(job.spec.job_id, job.attempt_id)
        while self.system.run_jobs():
            pass
        self.catalog.quarantine.release()
        while plan_and_submit(
            self.catalog, self.clock, self.system.ids, PlannerSettings(max_job_files=3, force=True)
        ).jobs:
            self.system.run_jobs()
        self.catalog.sessions.end(self.system.session_id)
        # The first round marks silent sessions, the second fences them, the third deletes their objects.
        for _ in range(3):
            self.clock.advance((SILENCE_MS + GRACE_MS) / 1000 + 1)
            collect_garbage(self.catalog, self.store, self.clock, GARBAGE)
        self._check()
        report = fsck(self.catalog, self.store, self.clock, grace_ms=0)
        assert (report.differences, dict(report.pending)) == ((), {})
        files = self.catalog.garbage.known_files("")
        assert {file.object_name for file in files} == {
            info.name for info in self.store.list("", purpose=Purpose.GC)
        }
        for key in self.compacted & {key for key, rows in self.written.items() if rows}:
            records = self._records(key)
            assert len(records) == len({record.key for record in records})


def test_no_record_is_lost_and_no_object_is_left_over(
    new_catalog_url: Callable[..., str], tmp_path: Path
) -> None:
    numbers = count()

    class ConfiguredLifecycle(Lifecycle):
        make_url = staticmethod(new_catalog_url)
        new_directory = staticmethod(lambda: tmp_path / str(next(numbers)))

    limits = hypothesis_settings(max_examples=12, stateful_step_count=25)
    run_state_machine_as_test(ConfiguredLifecycle, settings=limits)
