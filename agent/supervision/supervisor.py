"""Supervision: an agent whose background task or thread has ended stops, because it serves only in part.

With a dead committer, for example, it accepts records and acknowledges none. `/livez` reports such a part at
once. The supervisor lets the process exit with a distinct code, so that a service manager starts it again.

An event loop that stays stuck cannot even stop: after `stuck_seconds` the process ends without it. Its
heartbeats would otherwise go on, and other agents would leave its groups and partitions to it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from agent.runtime.health import start_essential_task
from agent.supervision.health_listener import HealthListener
from core.errors import BackgroundTaskError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from agent.runtime.health import Health, LoopLag
    from agent.supervision.control_loop import ControlLoop

_CHECK_SECONDS: Final = 0.25
_log = structlog.get_logger(__name__)


class Supervisor:
    """Watches the essential parts of one agent, and serves its health, in the control loop.

    `on_failure` is called once, in the control loop, with the error that the process reports. `on_stuck` ends
    the process.
    """

    def __init__(
        self,
        control: ControlLoop,
        health: Health,
        loop_lag: LoopLag,
        *,
        on_failure: Callable[[BackgroundTaskError], None],
        on_stuck: Callable[[], None],
        stuck_seconds: float,
    ) -> None:
        self._control = control
        self._health = health
        self._loop_lag = loop_lag
        self._on_failure = on_failure
        self._on_stuck = on_stuck
        self._stuck_seconds = stuck_seconds
        self._listener: HealthListener | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def start(self, listener: socket.socket) -> str:
        """Start to watch and to serve the health on a socket; return its address."""
        server = self._listener = HealthListener(self._health, listener)
        await self._control.run(server.start())
        watching = self._watching = start_essential_task(self._keep_watching(), name="supervisor")
        self._health.require_live(
            "supervisor", lambda: "has stopped unexpectedly" if watching.done() else None
        )
        self._health.require_running("health_listener", lambda: server.is_running)
        return server.address

    def stop_watching(self) -> None:
        """Watch no longer, because the parts are about to end."""
        self._is_stopping = True
        if self._watching is not None:
            self._watching.cancel()

    async def stop(self) -> None:
        """Stop to serve the health."""
        if self._listener is not None and self._control.is_running:
            await self._control.run(self._listener.stop())

    async def _keep_watching(self) -> None:
        await self._control.run(self._watch())

    async def _watch(self) -> None:
        """Check until cancelled; after a failure, only whether the loop is stuck."""
        has_failed = False
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            ended = () if has_failed else self._health.ended()
            if ended and not self._is_stopping:  # in this order: parts end only after it is set
                has_failed = True
                self._report(ended)
            if self._loop_lag.current_seconds > self._stuck_seconds:
                _log.critical("the event loop is stuck; the process ends", seconds=self._stuck_seconds)
                self._on_stuck()
                return

    def _report(self, ended: tuple[str, ...]) -> None:
        parts = ", ".join(ended)
        _log.critical("essential parts of the agent have ended; it stops", parts=parts)
        self._on_failure(
            BackgroundTaskError(
                f"essential parts of the agent have ended: {parts}",
                remedy="restart the agent; its log has the reason",
            )
        )
