"""Reports of the supervisor, and when it ends the process."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from functools import partial
from typing import TYPE_CHECKING

import httpx
import pytest

from agent.runtime.health import CallHealth, Health, LoopLag
from agent.runtime.probes import Probe
from agent.runtime.sockets import bind
from agent.supervision.control_loop import ControlLoop
from agent.supervision.supervisor import Supervisor
from core.clock import ManualClock
from core.ids import SeededIds

if TYPE_CHECKING:
    from core.errors import BackgroundTaskError

pytestmark = pytest.mark.anyio
_TIMEOUT_SECONDS = 60


class _Process:
    """A process that records what its supervisor does with it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.health = Health()
        self.lag = LoopLag(self.clock)
        self.control = ControlLoop()
        self.failures: list[BackgroundTaskError] = []
        self.has_failed, self.was_ended = threading.Event(), threading.Event()
        self.supervisor = Supervisor(
            self.control,
            self.health,
            self.lag,
            on_failure=self._fail,
            on_stuck=self.was_ended.set,
            stuck_seconds=60,
        )

    def _fail(self, error: BackgroundTaskError) -> None:
        self.failures.append(error)
        self.has_failed.set()

    async def start(self) -> str:
        self.control.start()
        return await self.supervisor.start(bind("127.0.0.1", 0))

    async def stop(self) -> None:
        self.supervisor.stop_watching()
        await self.supervisor.stop()
        await self.control.stop()


async def test_a_part_that_has_ended_is_reported_once() -> None:
    process = _Process()
    process.health.require_running("commits", lambda: False)
    process.health.require_running("heartbeats", lambda: True)
    await process.start()
    assert await asyncio.to_thread(process.has_failed.wait, _TIMEOUT_SECONDS)
    process.clock.advance(61)  # the supervisor checks this after the parts
    assert await asyncio.to_thread(process.was_ended.wait, _TIMEOUT_SECONDS)
    await process.stop()
    assert [error.message for error in process.failures] == [
        "essential parts of the agent have ended: commits"
    ]


async def test_parts_that_end_because_the_agent_stops_are_no_failure() -> None:
    """The watch may be in a check while it is told to end."""
    process = _Process()
    checks, stops = threading.Event(), threading.Event()

    def is_running() -> bool:
        checks.set()
        stops.wait(_TIMEOUT_SECONDS)
        return False

    process.health.require_running("kafka_listener", is_running)
    await process.start()
    assert await asyncio.to_thread(checks.wait, _TIMEOUT_SECONDS)
    process.supervisor.stop_watching()
    stops.set()
    await process.stop()
    assert process.failures == []


async def test_a_process_whose_event_loop_is_stuck_is_ended() -> None:
    process = _Process()
    process.clock.advance(61)
    await process.start()
    assert await asyncio.to_thread(process.was_ended.wait, _TIMEOUT_SECONDS)
    await process.stop()
    assert process.failures == []


async def test_a_watch_that_is_stopped_at_once_leaves_nothing_behind() -> None:
    process = _Process()
    gc.collect()  # the warnings of other tests
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        await process.start()
        await process.stop()
        gc.collect()
    assert [str(each.message) for each in found if "never awaited" in str(each.message)] == []


@pytest.mark.parametrize("route", ["/livez", "/readyz"])
async def test_a_response_does_not_wait_for_a_probe_that_hangs(route: str) -> None:
    process = _Process()
    events: list[str] = []
    hangs, fault_ends, has_ended = threading.Event(), threading.Event(), threading.Event()

    def call(dependency: str) -> None:
        events.append(f"{dependency} hangs")
        if len(events) == 2:
            hangs.set()
        fault_ends.wait(_TIMEOUT_SECONDS)
        events.append("a probe has ended")
        if len(events) == 5:
            has_ended.set()

    probes = []
    for dependency in ("catalog", "object_store"):
        health = CallHealth(process.clock, limit_seconds=4)
        process.health.require_ready(dependency, health.problem)
        probes.append(
            Probe(
                dependency,
                partial(call, dependency),
                health,
                interval_seconds=0.01,
                clock=process.clock,
                ids=SeededIds(1, process.clock),
            )
        )
    address = await process.start()
    process.clock.advance(5)
    for probe in probes:
        probe.start()
    assert await asyncio.to_thread(hangs.wait, _TIMEOUT_SECONDS)
    async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
        response = await client.get(f"http://{address}{route}")
    events.append("response")
    for probe in probes:
        probe.stop()
    fault_ends.set()
    assert await asyncio.to_thread(has_ended.wait, _TIMEOUT_SECONDS)
    await process.stop()
    assert events[2:] == ["response", "a probe has ended", "a probe has ended"]
    problems = response.json()["problems"].keys()
    assert problems == ({"catalog", "object_store"} if route == "/readyz" else set())
