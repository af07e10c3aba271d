"""Health of an agent: of its parts, and of what it depends on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.runtime.health import CallHealth, CallTime, Health, LoopLag
from agent.runtime.probes import DiskProbe, Probe
from object_store.binding import probe as probe_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.settings import AgentSettings
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from local_tier.manager.log_manager import LogManager
    from object_store.interface import ObjectStore


class Monitoring:
    """Health of one agent. Calls report to `catalog`, `store` and `disks`; so do probes while it is idle.

    Heartbeats report to `heartbeats`.
    """

    def __init__(self, settings: AgentSettings, clock: Clock, ids: Ids) -> None:
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._probes: list[Probe] = []
        unready_seconds = settings.unready_after_ms / 1000
        self.health = Health()
        self.catalog = CallHealth(clock, limit_seconds=unready_seconds)
        self.heartbeats = CallTime(clock, limit_seconds=settings.unready_heartbeat_ms / 1000)
        self.store = CallHealth(clock, limit_seconds=unready_seconds)
        self.disks = CallHealth(clock, limit_seconds=unready_seconds)
        self.loop_lag = LoopLag(clock)

    def start(self, catalog: Catalog, store: ObjectStore, local_logs: LogManager | None) -> None:
        """Probe the catalog, the store and the disks of local logs from now on."""
        seconds = self._settings.probe_timeout_ms / 1000
        probe = catalog.probe(seconds)
        self._start_probe("catalog", probe.check, self.catalog, close=probe.close)
        self.health.require_ready("catalog", lambda: self.catalog.problem() or self.heartbeats.problem())
        self._start_probe("object_store", partial(probe_identity, store), self.store)
        if local_logs is not None:
            of_each = seconds / max(len(local_logs.live_directories), 1)
            disks = DiskProbe(lambda: local_logs.live_directories, timeout_seconds=of_each)
            self._start_probe("disks", disks.check, self.disks)

    def _start_probe(
        self,
        dependency: str,
        call: Callable[[], object],
        health: CallHealth,
        *,
        close: Callable[[], object] = lambda: None,
    ) -> None:
        health.succeeded()  # it has just worked, at the start
        probe = Probe(
            dependency,
            call,
            health,
            interval_seconds=self._settings.probe_interval_ms / 1000,
            clock=self._clock,
            ids=self._ids,
            close=close,
        )
        self._probes.append(probe)
        self.health.require_running(f"{dependency}_probe", lambda: probe.is_running)
        self.health.require_ready(dependency, health.problem)
        probe.start()

    def require(self, parts: Mapping[str, Callable[[], bool]]) -> None:
        """Report the agent as dead when one of these parts no longer runs."""
        self.health.require_live("event_loop", self.loop_lag.problem)
        self.health.require_running("event_loop_watch", lambda: self.loop_lag.is_running)
        for name, is_running in parts.items():
            self.health.require_running(name, is_running)

    def stop_probes(self) -> None:
        """Stop all probes, because what they probe is about to be closed."""
        for probe in self._probes:
            probe.stop()

    async def stop(self) -> None:
        """Stop the measurement of the event loop."""
        await self.loop_lag.stop()
