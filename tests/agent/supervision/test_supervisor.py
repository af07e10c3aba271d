"""Reports of the supervisor, and when it ends the process."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from agent.runtime.health import Health, LoopLag
from agent.runtime.sockets import bind
from agent.supervision.control_loop import ControlLoop
from agent.supervision.supervisor import Supervisor
from core.clock import ManualClock

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

    async def start(self) -> None:
        self.control.start()
        await self.supervisor.start(bind("127.0.0.1", 0))

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


async def test_a_process_whose_event_loop_is_stuck_is_ended() -> None:
    process = _Process()
    process.clock.advance(61)
    await process.start()
    assert await asyncio.to_thread(process.was_ended.wait, _TIMEOUT_SECONDS)
    await process.stop()
    assert process.failures == []
