"""Every metric of maintenance changes by the work, or the fault, that it counts.

Each step says what happens before two rounds of all tasks, and which metrics must change by it. One test
fails for a metric that no step moves.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest
from prometheus_client import CollectorRegistry

from catalog.model import PartitionId
from core.clock import DAY_MS
from maintenance.metrics import MaintenanceCollector
from maintenance.runner import MaintenanceRunner
from maintenance.settings import MaintenanceSettings
from maintenance.tasks import maintenance_tasks
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.errors import ObjectsNotDeletedError
from object_store.names import IDENTITY_NAME, RESERVED_COMPONENT
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from tests.agent.metrics.movements import family_values
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.planner.system import System

pytestmark = pytest.mark.integration
_SETTINGS: Final = MaintenanceSettings(fence_confirm_ms=5_000, topic_delete_delay_ms=0)
_GRACE_SECONDS: Final = _SETTINGS.grace_ms / 1000 + 1
_SILENCE_SECONDS: Final = _SETTINGS.session_silence_ms / 1000 + 1
_DEADLINE_SECONDS: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that happens, and the metrics that must change by it."""

    happens: Callable[[Maintained], None]
    moves: frozenset[str]


STEPS: Final[dict[str, Step]] = {}


def step(moves: str) -> Callable[[Callable[[Maintained], None]], Callable[[Maintained], None]]:
    """Add a function to the steps; `moves` has the names of metrics, without their usual prefix."""

    def add(happens: Callable[[Maintained], None]) -> Callable[[Maintained], None]:
        names = frozenset(f"siltstone_maintenance_{name}" for name in moves.split())
        STEPS[happens.__name__] = Step(happens=happens, moves=names)
        return happens

    return add


@dataclass
class Maintained:
    """A system, and the maintenance of one agent for it."""

    system: System
    runner: MaintenanceRunner
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.registry.register(MaintenanceCollector(self.runner))

    def run_all(self) -> None:
        """Run one round of each task, under its lease."""
        for each in self.runner._tasks:
            self.runner._run_round(each)

    def key(self, **config: str) -> PartitionId:
        return PartitionId(self.system.topic("t", 1, **config).topic_id, 0)

    def submit_job(self) -> None:
        key = self.key(cleanup_policy="compact")
        for _ in range(3):
            self.system.produce({key: [(b"a", b"1"), (b"b", b"1")]})
        plan_and_submit(self.system.catalog, self.system.clock, self.system.ids, PlannerSettings())

    def kill_files(self) -> None:
        """Let files die long enough ago to be deleted."""
        self.submit_job()
        self.system.run_jobs()
        self.system.clock.advance(_GRACE_SECONDS)


@pytest.fixture
def maintained(system: System) -> Maintained:
    verify_binding(system.store, system.catalog.store_binding, system.ids)
    tasks = maintenance_tasks(system.catalog, system.store, _SETTINGS)
    return Maintained(system, MaintenanceRunner(tasks, system.catalog, clock=system.clock, ids=system.ids))


@step("rounds_total leader success_age_seconds")
def nothing(_maintained: Maintained) -> None:
    """Each round counts."""


@step("expired_extents_total expired_bytes_total")
def records_expire(maintained: Maintained) -> None:
    maintained.system.produce({maintained.key(retention_ms="1"): [(b"a", b"1")]})
    maintained.system.clock.advance(1)


@step("fenced_sessions_total")
def an_agent_dies(maintained: Maintained) -> None:
    maintained.system.clock.advance(_SILENCE_SECONDS)


@step("released_jobs_total")
def a_driver_dies(maintained: Maintained) -> None:
    maintained.submit_job()
    assert maintained.system.catalog.jobs.claim("a driver", 1)
    maintained.system.clock.advance(_SILENCE_SECONDS)


@step("removed_rows_total")
def a_topic_is_deleted(maintained: Maintained) -> None:
    maintained.system.produce({maintained.key(): [(b"a", b"1")]})
    maintained.system.catalog.topics.delete("t")


@step("dead_files_total dead_bytes_total")
def files_die(maintained: Maintained) -> None:
    maintained.kill_files()


@step("not_deleted_total")
def the_store_refuses_to_delete(maintained: Maintained) -> None:
    def refuse(names: Sequence[str], *, purpose: Purpose) -> None:
        del purpose
        raise ObjectsNotDeletedError("the store", dict.fromkeys(names, "not today"))

    maintained.kill_files()
    maintained.system.store.delete = refuse  # type: ignore[method-assign]  # of this test only


@step("orphans_total orphan_bytes_total removed_owners_total")
def an_agent_ends_and_leaves_an_object(maintained: Maintained) -> None:
    maintained.system.upload({maintained.key(): [(b"a", b"1")]})
    maintained.system.catalog.sessions.end(maintained.system.session_id)
    maintained.system.clock.advance(_SETTINGS.owner_keep_ms / 1000 + 1)


@step("aborted_uploads_total")
def an_upload_is_never_finished(maintained: Maintained) -> None:
    system = maintained.system
    path = system.path_of(f"{RESERVED_COMPONENT}/{system.ids.new_uuid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    old = (system.clock.now_ms() - 2 * DAY_MS) / 1000
    os.utime(path, (old, old))


@step("expired_producers_total")
def a_producer_is_idle(maintained: Maintained) -> None:
    system = maintained.system
    scene = Scene(system.catalog, system.ids, system.session_id)
    scene.commit(system.topic("t"), run_of(1, producer=(7, 0, 0)))
    system.clock.advance(_SETTINGS.producer_idle_ms / 1000 + 1)


@step("aborted_transactions_total")
def a_transaction_lasts_too_long(maintained: Maintained) -> None:
    system = maintained.system
    transactions = system.catalog.transactions
    producer = transactions.initialize("t", 1000).producer
    transactions.add_partitions("t", producer, [PartitionId(system.topic("t").topic_id, 0)])
    system.clock.advance(2)


@step("ongoing_transactions oldest_transaction_seconds")
def a_transaction_is_open(maintained: Maintained) -> None:
    transactions = maintained.system.catalog.transactions
    producer = transactions.initialize("t", 600_000).producer
    transactions.add_partitions("t", producer, [PartitionId(maintained.system.topic("t").topic_id, 0)])


@pytest.mark.parametrize("name", STEPS)
def test_metrics_change_when(name: str, maintained: Maintained) -> None:
    """The second round confirms what the first one has marked."""
    before = family_values(maintained.registry)
    STEPS[name].happens(maintained)
    maintained.run_all()
    maintained.system.clock.advance(_SETTINGS.fence_confirm_ms / 1000)
    maintained.run_all()
    now = family_values(maintained.registry)
    assert {each for each in STEPS[name].moves if now[each] == before[each]} == set()


def test_failures_are_counted_when_the_store_has_lost_its_marker(maintained: Maintained) -> None:
    maintained.system.store.delete([IDENTITY_NAME], purpose=Purpose.GC)
    maintained.runner.start()
    try:
        end = time.monotonic() + _DEADLINE_SECONDS
        totals = maintained.runner.totals
        while not (totals["dead_files"].failures and totals["orphans"].failures):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        maintained.runner.stop()
    value = maintained.registry.get_sample_value(
        "siltstone_maintenance_failures_total", {"task": "dead_files"}
    )
    assert value == totals["dead_files"].failures


def test_every_metric_is_moved_by_a_step(maintained: Maintained) -> None:
    """A metric that nothing can move must not exist."""
    moved = {"siltstone_maintenance_failures_total"}.union(*(each.moves for each in STEPS.values()))
    assert set(family_values(maintained.registry)) == moved
