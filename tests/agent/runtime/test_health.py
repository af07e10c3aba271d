"""Health as a function of state, and the number of calls that probes make."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from agent.assembly.monitoring import Monitoring
from agent.runtime.health import CallHealth, CallTime, Health, LoopLag
from agent.runtime.probes import PROBE_FILE, DiskProbe, Probe
from agent.settings import AgentSettings
from core.clock import ManualClock, SystemClock
from core.ids import SeededIds
from object_store.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from catalog.open import Catalog


def test_a_dependency_works_while_its_last_success_is_recent() -> None:
    clock = ManualClock()
    health = CallHealth(clock, limit_seconds=4)
    problems = []
    for _ in range(3):
        problems.append(health.problem())
        clock.advance(3)
    health.succeeded()
    problems.append(health.problem())

    assert problems == [None, None, "no call has succeeded for 6.0 seconds", None]


def test_a_dependency_works_again_once_a_call_was_fast() -> None:
    """Otherwise one whose calls are all slow would change with each of them."""
    clock = ManualClock()
    time = CallTime(clock, limit_seconds=2.5)
    seen = []
    for attempts in ((2.0,), (1.5, 1.5), (3.0,), (1.0,)):  # all but the last attempt fail
        for seconds in attempts:
            time.began()
            clock.advance(seconds)
        seen.append((time.problem() is None, time.is_doubtful))
        time.succeeded()
        seen.append((time.problem() is None, time.is_doubtful))

    slow = [(False, True), (False, True)]
    assert seen == [(True, True), (True, False), *slow, *slow, (False, True), (True, False)]


def test_an_event_loop_that_never_runs_is_a_problem_that_other_threads_see() -> None:
    clock = ManualClock()
    lag = LoopLag(clock)
    clock.advance(4)
    assert lag.problem() is None
    clock.advance(2)
    assert lag.problem() == "is 6 seconds late"


@pytest.mark.anyio
async def test_what_is_read_after_a_stall_may_have_arrived_before_it() -> None:
    """Also in the next seconds, in which the loop reads what has waited, and after a further stall."""
    clock = ManualClock()
    lag = LoopLag(clock, interval_seconds=0.01)
    lag.start()
    try:
        await asyncio.sleep(0.05)
        assert lag.earliest_arrival() == clock.monotonic()
        before = clock.monotonic()
        for seconds in (5, 0.5, 3):  # the second and the third stall follow at once
            clock.advance(seconds)
            assert lag.earliest_arrival() == before
            await _beat(lag)
            assert lag.earliest_arrival() == before
        for _ in range(9):  # no stalls
            clock.advance(0.25)
            await _beat(lag)
        assert lag.earliest_arrival() == clock.monotonic()
    finally:
        await lag.stop()


async def _beat(lag: LoopLag) -> None:
    """Wait until the event loop has noted that it runs."""
    for _ in range(10_000):
        if lag._beat_at == lag._clock.monotonic():
            return
        await asyncio.sleep(0.005)
    pytest.fail("the event loop noted nothing")


def test_a_fault_shows_within_five_seconds_and_so_does_its_end() -> None:
    """A dependency may have worked just before the fault, and a probe may hang when it ends."""
    clock = ManualClock()
    settings = AgentSettings()
    monitoring = Monitoring(settings, clock, SeededIds(1, clock))
    clock.advance(4.9)
    parts = (monitoring.catalog, monitoring.store, monitoring.disks, monitoring.loop_lag)
    assert None not in [each.problem() for each in parts]
    assert settings.probe_timeout_ms + settings.probe_interval_ms / 2 < 5_000
    assert settings.heartbeat_interval_ms + settings.unready_heartbeat_ms < 5_000


def test_what_is_not_live_is_not_ready_either() -> None:
    health = Health()
    health.require_running("commits", lambda: False)
    health.require_ready("catalog", lambda: "is away")
    health.require_ready("disks", lambda: None)

    stopped = {"commits": "has stopped unexpectedly"}
    assert health.live_problems() == stopped
    assert health.ready_problems() == stopped | {"catalog": "is away"}


def test_a_probe_calls_only_while_no_other_call_succeeds() -> None:
    """It survives failures, and one call at a time is under way."""
    clock = ManualClock()
    health = CallHealth(clock, limit_seconds=4)
    gate, fail = threading.Event(), threading.Event()
    calls = []

    def call() -> None:
        calls.append(clock.monotonic())
        gate.wait()
        if fail.is_set():
            raise RuntimeError("a fault")

    probe = Probe("store", call, health, interval_seconds=0.01, clock=clock, ids=SeededIds(1, clock))
    probe.start()
    SystemClock().sleep(0.1)  # many intervals
    assert calls == []

    clock.advance(10)
    _until(lambda: len(calls) == 1)
    SystemClock().sleep(0.1)
    assert len(calls) == 1  # it hangs

    fail.set()
    gate.set()
    _until(lambda: len(calls) > 5)
    assert health.problem() is not None
    fail.clear()
    _until(lambda: health.problem() is None)
    assert probe.is_running
    probe.stop()
    _until(lambda: not probe.is_running)


def test_a_probe_keeps_nothing_open_while_other_calls_succeed() -> None:
    clock = ManualClock()
    health = CallHealth(clock, limit_seconds=4)
    calls: list[float] = []
    closed: list[float] = []
    probe = Probe(
        "catalog",
        lambda: calls.append(clock.monotonic()),
        health,
        interval_seconds=0.01,
        clock=clock,
        ids=SeededIds(1, clock),
        close=lambda: closed.append(clock.monotonic()),
    )
    probe.start()
    clock.advance(1)
    _until(lambda: bool(calls))
    SystemClock().sleep(0.1)  # many intervals
    assert closed == []

    def is_closed_while_others_succeed() -> bool:
        clock.advance(61)
        health.succeeded()
        return bool(closed)

    _until(is_closed_while_others_succeed)
    probe.stop()


@pytest.mark.integration
def test_a_stopped_probe_of_the_catalog_leaves_no_connection(
    catalog: Catalog, catalog_url: str, tmp_path: Path
) -> None:
    clock = SystemClock()
    settings = replace(AgentSettings(), probe_interval_ms=5)
    monitoring = Monitoring(settings, clock, SeededIds(1, clock))
    monitoring.start(catalog, LocalStore(tmp_path, SeededIds(2, clock)), None)

    with psycopg.connect(catalog_url, autocommit=True) as observer:

        def count_connections() -> int:
            row = observer.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND query LIKE '%transaction_read_only%' AND pid <> pg_backend_pid()"
            ).fetchone()
            assert row is not None
            return int(row[0])

        _until(lambda: count_connections() == 1)
        monitoring.stop_probes()
        _until(lambda: count_connections() == 0)


def test_a_disk_is_written_until_none_is_left(tmp_path: Path) -> None:
    full, good = tmp_path / "full", tmp_path / "good"
    for path in (full, good):
        path.mkdir()
    (full / PROBE_FILE).symlink_to("/dev/full")

    probe_of(full, good).check()
    assert list(good.iterdir()) == []
    with pytest.raises(OSError, match="No space left"):
        probe_of(full).check()
    with pytest.raises(OSError, match="no log directory is online"):
        probe_of().check()


def test_a_disk_that_hangs_is_left_out_until_it_responds(tmp_path: Path) -> None:
    """Opening a pipe for writing waits for a reader."""
    hanging, good = tmp_path / "hanging", tmp_path / "good"
    for path in (hanging, good):
        path.mkdir()
    os.mkfifo(hanging / PROBE_FILE)
    directories = [hanging, good]
    probe = DiskProbe(lambda: directories, timeout_seconds=2)

    def writing() -> int:
        return sum(thread.name == "siltstone-probe-disk" for thread in threading.enumerate())

    for _ in range(3):
        probe.check()
    _until(lambda: writing() == 1)
    directories.remove(good)
    with pytest.raises(OSError, match="the log directory does not respond"):
        probe.check()
    assert writing() == 1

    descriptor = os.open(hanging / PROBE_FILE, os.O_RDONLY | os.O_NONBLOCK)
    _until(lambda: writing() == 0)
    os.close(descriptor)
    probe.check()  # the late write
    assert list(hanging.iterdir()) == []
    probe.check()


def probe_of(*directories: Path) -> DiskProbe:
    return DiskProbe(lambda: directories, timeout_seconds=240)


def _until(condition: Callable[[], bool]) -> None:
    clock = SystemClock()
    end = clock.monotonic() + 240
    while not condition():
        assert clock.monotonic() < end
        clock.sleep(0.005)
