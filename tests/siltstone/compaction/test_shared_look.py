"""Shared looks of watchers: cheap while nothing changes, as rare for several as for one, never too rare."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import psycopg
import pytest

from catalog.database.sql_files import load_queries
from catalog.model import JobState, PartitionId
from core.clock import ManualClock, SystemClock
from core.errors import NotFoundError, StaleStateError
from core.ids import SystemIds
from object_store.local.store import LocalStore
from object_store.open import StoreConfig
from planner.planner import plan
from planner.settings import PlannerSettings
from siltstone.compaction import shared_look as module
from siltstone.compaction.compactor import CompactionOptions
from siltstone.compaction.shared_look import shared_look
from siltstone.compaction.watcher import Watcher
from siltstone.context import AppContext
from siltstone.interrupts import Interrupts
from siltstone.settings.sources import load_settings
from tests.catalog.scene import advance_log_start
from tests.planner.system import System
from tests.siltstone.compaction.test_watcher import InProcessSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids

pytestmark = pytest.mark.integration
PACED: Final = PlannerSettings(
    paced=True,
    min_ingestion_files=3,
    max_ingestion_age_ms=20_000,
    max_cleaning_age_ms=30_000,
    merge_fan_in=2,
    max_look_age_ms=10**12,
)
FULL: Final = ("planning.dirty_partitions", "planning.fragmented", "planning.files_to_merge", "retention.due")
_LARGE: Final = (
    """INSERT INTO topics (topic_id, name, partition_count, config, created_ms)
       SELECT md5('t' || t)::uuid, 't' || t, 1000, '{"cleanup.policy": "compact"}', 1
       FROM generate_series(1, 100) AS t""",
    """INSERT INTO partitions (topic_id, partition, high_watermark, last_stable_offset, log_end_offset)
       SELECT md5('t' || t)::uuid, p, 9, 9, 9
       FROM generate_series(1, 100) AS t, generate_series(0, 999) AS p""",
    "ANALYZE",
)


@pytest.fixture
def system(catalog: Catalog, clock: Clock, ids: Ids, tmp_path: Path) -> Iterator[System]:
    assert isinstance(clock, ManualClock)
    store = LocalStore(tmp_path / "objects", ids)
    yield System.start(catalog, store, clock, ids)
    store.close()


def context_of(system: System) -> AppContext:
    return AppContext(
        catalog=system.catalog,
        store=system.store,
        store_config=StoreConfig(system.store.url),
        clock=system.catalog.clock,
        ids=SystemIds(SystemClock()),
    )


def watcher_of(system: System, tmp_path: Path) -> Watcher:
    settings = load_settings({"data_dir": tmp_path / "data"})
    return Watcher(
        context_of(system), settings, CompactionOptions(), interval_seconds=10.0, session=InProcessSession(1)
    )


def calls(system: System) -> dict[str, int]:
    return {name: each.calls for name, each in system.catalog.operation_counts().items()}


def statements(system: System) -> int:
    return sum(each.statements for each in system.catalog.operation_counts().values())


@dataclass
class Operations:
    """Random changes by agents, drivers and an operator."""

    system: System
    random: Random
    done: set[str] = field(default_factory=set)

    def step(self) -> None:
        choices: list[Callable[[], object]] = [
            self.write,
            self.write,
            self.write,
            self.publish,
            self.publish,
            self.fail,
            self.configure,
            self.delete_records,
            self.replace_topic,
            self.release_quarantine,
            self.wait,
            self.wait,
        ]
        chosen = self.random.choice(choices)
        self.done.add(chosen.__name__)
        with suppress(NotFoundError, StaleStateError):
            chosen()

    def keys(self) -> list[PartitionId]:
        return [
            PartitionId(topic.topic_id, number)
            for topic in self.system.catalog.topics.list()
            for number in range(2)
        ]

    def write(self) -> None:
        some = self.random.sample(self.keys(), 2)
        rows = [(b"%d" % self.random.randrange(2), b"v")] * self.random.randrange(1, 4)
        self.system.produce(dict.fromkeys(some, rows))

    def publish(self) -> None:
        self.system.run_jobs(self.random.randrange(1, 4))

    def fail(self) -> None:
        for job in self.system.catalog.jobs.claim(str(self.random.random()), 1):
            assert job.attempt_id is not None
            suspects = [job.spec.inputs[0].file_id] if self.random.random() < 0.5 else []
            self.system.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "a test", suspects=suspects)

    def configure(self) -> None:
        name, values = self.random.choice(
            [
                ("cleanup.policy", ("compact", "delete", "compact,delete")),
                ("min.cleanable.dirty.ratio", ("0.0", "0.5", "0.9")),
                ("min.compaction.lag.ms", ("0", "15000")),
                ("max.compaction.lag.ms", ("40000", "9223372036854775807")),
                ("retention.ms", ("100000", "-1")),
            ]
        )
        topic = self.random.choice(self.system.catalog.topics.list())
        self.system.catalog.topics.alter_config(topic.name, {name: self.random.choice(values)})

    def delete_records(self) -> None:
        key = self.random.choice(self.keys())
        advance_log_start(
            self.system.catalog.retention, key.topic_id, key.partition, self.random.randrange(9)
        )

    def replace_topic(self) -> None:
        self.system.catalog.topics.delete("t0")
        self.system.catalog.topics.create("t0", 2, {"cleanup.policy": "compact"})

    def release_quarantine(self) -> None:
        self.system.catalog.quarantine.release()

    def wait(self) -> None:
        self.system.clock.advance(self.random.choice([0.5, 5, 14, 35]))


@pytest.mark.parametrize("seed", range(2))
def test_a_look_that_is_not_due_would_plan_nothing(system: System, seed: int) -> None:
    """After each of many random changes, the shared look and a look at everything are compared."""
    operations = Operations(system, Random(seed))
    for number in range(3):
        system.topic(f"t{number}", 2, cleanup_policy="compact")
    context = context_of(system)
    looked = rested = 0
    for _ in range(120):
        operations.step()
        expected = plan(system.catalog, system.catalog.clock, PACED).jobs
        before = calls(system).get("looks.begin", 0)
        shared_look(context, PACED, 100)
        if calls(system).get("looks.begin", 0) > before:
            looked += 1
        else:
            rested += 1
            assert expected == ()
    assert min(looked, rested) > 10
    assert len(operations.done) >= 8
    assert system.catalog.jobs.counts()[JobState.COMPLETED] > 1


def test_an_idle_look_reads_few_rows_of_many_partitions(
    system: System, catalog_url: str, tmp_path: Path
) -> None:
    """Only the first poll plans. The others send a few statements, which read no partition."""
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        for fill in _LARGE:
            connection.execute(fill.encode())
    watcher = watcher_of(system, tmp_path)
    watcher.poll(Interrupts())
    first, sent = calls(system), statements(system)
    assert all(first[name] for name in FULL)
    for _ in range(5):
        system.clock.advance(10)
        assert watcher.poll(Interrupts()) == 10.0
    idle = calls(system)
    assert [idle[name] - first[name] for name in FULL] == [0] * len(FULL)
    assert (statements(system) - sent) / 5 <= 20
    with psycopg.connect(catalog_url) as connection:
        for file, name in (("looks", "find_look"), ("planning", "backlog")):
            params = {"settings": "s", "duration_ms": 1, "now_ms": None}
            statement = b"EXPLAIN (ANALYZE, FORMAT JSON) " + load_queries(file)[name].sql
            (report,) = connection.execute(statement, params).fetchall()
            assert _read_rows(report[0][0]["Plan"]) <= 5


def _read_rows(node: dict[str, Any]) -> float:
    """Return the rows that the scans below a node of a query's plan have read."""
    removed = node.get("Rows Removed by Filter", 0)
    rows = (node["Actual Rows"] + removed) * node["Actual Loops"] if "Relation Name" in node else 0.0
    return float(rows + sum(_read_rows(child) for child in node.get("Plans", ())))


def test_three_watchers_look_as_often_as_one(system: System, tmp_path: Path) -> None:
    """Every change is followed by one look of any of them, or two after a job."""
    watchers = [watcher_of(system, tmp_path) for _ in range(3)]
    topic = system.topic("t", 2, cleanup_policy="compact")

    def looks_of_a_round(polling: Sequence[Watcher] = watchers) -> int:
        before = calls(system).get("planning.dirty_partitions", 0)
        for watcher in polling:
            watcher.poll(Interrupts())
        return calls(system).get("planning.dirty_partitions", 0) - before

    assert [looks_of_a_round() for _ in range(3)] == [1, 0, 0]
    system.produce({PartitionId(topic.topic_id, 0): [(b"k", b"v")]})
    assert looks_of_a_round() == 0  # the file waits for more
    system.catalog.topics.alter_config("t", {"min.cleanable.dirty.ratio": "0.1"})
    assert [looks_of_a_round() for _ in range(2)] == [1, 0]
    system.clock.advance(120)  # the file waits no longer
    assert looks_of_a_round(watchers[:1]) == 2  # before the job, and for its slot after it
    assert watchers[0].status.run.compaction.jobs_completed == 1
    assert [looks_of_a_round() for _ in range(2)] == [0, 0]


def test_a_look_is_due_at_the_time_that_the_last_one_named(system: System) -> None:
    """A record exceeds max.compaction.lag.ms then: first a clean one, for nothing, and later a dirty one."""
    topic = system.topic("t", cleanup_policy="compact", max_compaction_lag_ms="100000")
    system.catalog.topics.alter_config("t", {"min.cleanable.dirty.ratio": "0.9"})
    context = context_of(system)
    settings = replace(PACED, merge_fan_in=8)
    for _ in range(2):
        system.produce({PartitionId(topic.topic_id, 0): [(b"k", b"v")]})
        system.clock.advance(21)
        while shared_look(context, settings, 1).submission.jobs:
            system.run_jobs()

    def looks_after(seconds: float) -> tuple[int, int]:
        before = calls(system)["looks.begin"]
        system.clock.advance(seconds)
        submitted = shared_look(context, settings, 1).submission.jobs
        return calls(system)["looks.begin"] - before, len(submitted)

    assert [looks_after(57), looks_after(2)] == [(0, 0), (1, 0)]
    assert [looks_after(18), looks_after(3)] == [(0, 0), (1, 1)]


def test_a_watcher_polls_again_soon_while_another_one_looks(system: System, tmp_path: Path) -> None:
    looks = system.catalog.looks
    look_id = looks.begin("s", looks.last("s"))
    assert look_id is not None
    watcher = watcher_of(system, tmp_path)
    assert watcher.poll(Interrupts()) == 1.0
    assert "planning.dirty_partitions" not in calls(system)
    looks.finish(look_id, 0)
    assert watcher.poll(Interrupts()) == 10.0
    assert "planning.dirty_partitions" in calls(system)


def test_a_look_that_fails_does_not_keep_others_from_looking(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StaleStateError("a test")

    looks = system.catalog.looks
    with monkeypatch.context() as patched:
        patched.setattr(module, "look", fail)
        with pytest.raises(StaleStateError):
            shared_look(context_of(system), PACED, 1)
    last = looks.last("s")
    assert (last.is_running, last.is_due) == (False, True)
    assert isinstance(last.look_id, UUID)


def test_a_look_that_could_not_see_everything_is_repeated_every_minute(system: System) -> None:
    """A plan examines one of several small files; the others may fit together."""
    topic = system.topic("t", 2)
    for _ in range(4):
        system.produce({PartitionId(topic.topic_id, number): [(b"k", b"v")] for number in range(2)})
        system.clock.advance(30)
        shared_look(context_of(system), PACED, 1)
        system.run_jobs()
    narrow = PlannerSettings(paced=True, max_plan_files=1, max_look_age_ms=10**12)
    shared_look(context_of(system), narrow, 1)

    def looks_after(seconds: float) -> int:
        before = calls(system)["planning.dirty_partitions"]
        system.clock.advance(seconds)
        shared_look(context_of(system), narrow, 1)
        return calls(system)["planning.dirty_partitions"] - before

    assert [looks_after(59), looks_after(1)] == [0, 1]
