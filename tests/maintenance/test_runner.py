"""Maintenance tasks that are stuck, fail, move to another process, and survive outages."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from catalog.open import DatabaseLimits, Reserve, open_catalog
from core.clock import ManualClock, SystemClock
from core.errors import RetryableError
from core.ids import SystemIds
from maintenance.metrics import MaintenanceCollector
from maintenance.runner import MaintenanceRunner, MaintenanceTask, StoppedError
from maintenance.settings import MaintenanceSettings
from maintenance.tasks import maintenance_tasks
from object_store.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from catalog.lifecycle.leases import Lease
    from catalog.open import Catalog
    from core.clock import Clock
    from maintenance.report import MaintenanceReport, Progress
    from tests.fixtures.restartable import RestartablePostgres, RestartableS3
    from tests.planner.system import System

pytestmark = pytest.mark.integration
DEADLINE_SECONDS = 120
CLOCK = SystemClock()
IDS = SystemIds(CLOCK)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def task(name: str, run: Callable[[MaintenanceReport, Progress], None]) -> MaintenanceTask:
    return MaintenanceTask(name=name, interval_seconds=0.02, run=run)


def runner(catalog: Catalog, *tasks: MaintenanceTask) -> MaintenanceRunner:
    return MaintenanceRunner(tasks, catalog, clock=CLOCK, ids=IDS)


def count_one(report: MaintenanceReport, _progress: Progress) -> None:
    report.dead_files += 1


@pytest.fixture
def restarted(
    restartable_postgres: RestartablePostgres, restartable_s3: RestartableS3
) -> Iterator[MaintenanceRunner]:
    limits = DatabaseLimits(connect_seconds=1, max_connections=1)
    with (
        closing(open_catalog(restartable_postgres.url, CLOCK, IDS, limits=limits)) as catalog,
        closing(open_store(restartable_s3.config, CLOCK, IDS, probe_timeout_seconds=5)) as store,
    ):
        tasks = maintenance_tasks(catalog, store, MaintenanceSettings())
        yield runner(catalog, *(replace(each, interval_seconds=0.05) for each in tasks))


def test_a_slow_statement_of_one_task_does_not_hold_up_the_others(catalog: Catalog, catalog_url: str) -> None:
    """All tasks of an agent share few connections."""
    tasks = (task("slow", count_one), task("good", count_one))
    dedicate = partial(catalog.dedicate_thread, Reserve.MAINTENANCE)
    running = MaintenanceRunner(tasks, catalog, clock=CLOCK, ids=IDS, prepare=dedicate)
    with psycopg.connect(catalog_url) as connection:
        running.start()
        try:
            until(lambda: all(each.rounds > 0 for each in running.totals.values()))
            connection.execute("SELECT FROM siltstone.periodic_tasks WHERE name = 'slow' FOR UPDATE")
            slow = running.totals["slow"].rounds
            good = running.totals["good"].rounds
            until(lambda: running.totals["good"].rounds >= good + 5)
            assert running.totals["slow"].rounds <= slow + 1
        finally:
            connection.rollback()
            running.stop()


def test_no_round_begins_after_a_migration_that_excludes_this_code(
    catalog: Catalog, catalog_url: str
) -> None:
    """The threads continue, so that an agent reports the exclusion and not a part that has ended."""
    running = runner(catalog, task("good", count_one))
    running.start()
    try:
        until(lambda: running.totals["good"].rounds > 0)
        assert running.excluded is None
        with psycopg.connect(catalog_url, autocommit=True) as connection:
            connection.execute("UPDATE siltstone.schema_version SET version = 99, min_version = 98")
        until(lambda: running.excluded is not None)
        rounds = running.totals["good"].rounds
        time.sleep(0.1)  # several intervals
        assert running.totals["good"].rounds == rounds
        assert running.is_running
    finally:
        running.stop()


def test_a_stuck_task_and_a_failing_one_do_not_hold_up_the_others(catalog: Catalog) -> None:
    release = threading.Event()

    def stuck(_report: MaintenanceReport, progress: Progress) -> None:
        release.wait(DEADLINE_SECONDS)
        progress()

    def failing(_report: MaintenanceReport, _progress: Progress) -> None:
        raise RetryableError("not today")

    def broken(_report: MaintenanceReport, _progress: Progress) -> None:
        raise ZeroDivisionError

    running = runner(
        catalog,
        task("stuck", stuck),
        task("failing", failing),
        task("broken", broken),
        task("good", count_one),
    )
    running.start()
    try:
        totals = running.totals
        until(lambda: totals["good"].rounds >= 5 and totals["failing"].failures >= 2)
        until(lambda: totals["broken"].failures >= 1)
        assert totals["stuck"].rounds == totals["failing"].rounds == 0
        assert totals["good"].report.dead_files >= 5
        registry = CollectorRegistry()
        registry.register(MaintenanceCollector(running))
        read = registry.get_sample_value
        assert read("siltstone_maintenance_rounds_total", {"task": "good"}) >= 5  # type: ignore[operator]
        assert read("siltstone_maintenance_failures_total", {"task": "failing"}) >= 2  # type: ignore[operator]
        assert read("siltstone_maintenance_dead_files_total") >= 5  # type: ignore[operator]
        assert read("siltstone_maintenance_leader", {"task": "good"}) == 1
        assert read("siltstone_maintenance_success_age_seconds", {"task": "good"}) is not None
        assert read("siltstone_maintenance_success_age_seconds", {"task": "stuck"}) is None
    finally:
        release.set()
        running.stop()


def test_one_process_runs_a_task_and_another_one_continues_after_its_stop(catalog: Catalog) -> None:
    first, second = (runner(catalog, task("good", count_one)) for _ in range(2))
    first.start()
    until(lambda: first.totals["good"].rounds >= 2)
    second.start()
    try:
        until(lambda: second.totals["good"].success_at is not None)
        assert (second.totals["good"].rounds, second.totals["good"].is_leader) == (0, False)
        first.stop()
        until(lambda: second.totals["good"].rounds >= 1)
    finally:
        second.stop()


def test_a_lease_that_is_taken_during_a_stop_is_released(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is slower than the stop, which waits for a bounded time."""
    stopping, first = runner(catalog, task("good", count_one)), threading.Event()
    acquire = catalog.leases.acquire

    def stop_first(name: str, holder_id: UUID, duration_ms: int) -> Lease:
        stopping._stopped.set()
        catalog.leases.release(holder_id)
        first.set()
        return acquire(name, holder_id, duration_ms)

    monkeypatch.setattr(catalog.leases, "acquire", stop_first)
    stopping.start()
    assert first.wait(DEADLINE_SECONDS)
    until(lambda: not stopping.is_running)
    assert stopping.totals["good"].rounds == 0
    assert acquire("good", IDS.new_uuid(), 1000).is_held


def test_a_round_without_progress_loses_its_lease_and_ends(catalog: Catalog, clock: Clock) -> None:
    """Another process has taken the task over; the first one notices at its next progress."""
    assert isinstance(clock, ManualClock)
    ended = threading.Event()
    paused = MaintenanceRunner([], catalog, clock=CLOCK, ids=IDS)
    slow = replace(task("good", count_one), interval_seconds=-19.9)  # a lease of 150 ms
    assert catalog.leases.acquire("good", paused.holder_id, slow.lease_ms).is_held
    progress = paused._progress(slow)
    other = runner(catalog, slow)
    assert not catalog.leases.acquire("good", other.holder_id, 60_000).is_held
    clock.advance(1)
    assert catalog.leases.acquire("good", other.holder_id, 60_000).is_held

    def continues() -> bool:
        try:
            progress()
        except StoppedError:
            ended.set()
        return ended.is_set()

    until(continues)


def test_a_round_of_each_task_runs_although_one_fails(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = maintenance_tasks(system.catalog, system.store, MaintenanceSettings())

    def refuse(*_: object, **__: object) -> None:
        raise RetryableError("not today")

    monkeypatch.setattr(system.catalog.retention, "due", refuse)
    report, failures = runner(system.catalog, *tasks).run_once()
    assert list(failures) == ["retention"]
    assert report.removed() == {}
    ages = {
        each.name: system.catalog.leases.acquire(each.name, IDS.new_uuid(), 1).success_age_ms
        for each in tasks
    }
    assert {name for name, age in ages.items() if age is None} == {"retention"}


def test_every_task_continues_after_outages_of_the_catalog_and_the_store(
    restarted: MaintenanceRunner, restartable_postgres: RestartablePostgres, restartable_s3: RestartableS3
) -> None:
    totals = restarted.totals
    restarted.start()
    try:
        until(lambda: all(each.rounds for name, each in totals.items() if name != "rows"))
        restartable_postgres.stop()
        until(lambda: all(each.failures for name, each in totals.items() if name != "rows"))
        restartable_postgres.start()
        restartable_s3.stop()
        before = {name: each.rounds for name, each in totals.items()}
        until(lambda: totals["retention"].rounds > before["retention"])
        restartable_s3.start()
        until(lambda: all(each.rounds > before[name] for name, each in totals.items() if name != "rows"))
    finally:
        restarted.stop()
