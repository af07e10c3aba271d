"""The quotas of an agent, kept up to date with the catalog.

Each agent polls the version of the quotas, as it does for the other settings that clients change while agents
run. A change holds on every agent within the interval, and at once on the one that made it. While the catalog
does not respond, the last known quotas hold.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from agent.quotas.client_quotas import ClientQuotas
from agent.quotas.rates import Windows
from agent.runtime.health import start_essential_task, stop_task
from agent.runtime.metrics import SnapshotCollector
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from uuid import UUID

    from agent.runtime.metrics import AgentMetrics, MetricReaders
    from agent.runtime.work_pool import WorkPool
    from agent.settings import AgentSettings
    from catalog.config.client_quotas import QuotaSnapshot
    from catalog.config.quota_entities import QuotaKey
    from core.clock import Clock
    from core.outage import Outage

_log = structlog.get_logger(__name__)


class QuotaSource(Protocol):
    """The catalog's quotas."""

    def changed_since(self, version: UUID | None, /) -> QuotaSnapshot | None:
        """Return all quotas if their version is not `version`."""
        ...


class QuotaFollower:
    """Follows the quotas in the catalog. Belongs to the event loop.

    `active` is None while no quota is set, so that a request without quotas costs one comparison.
    """

    def __init__(
        self,
        source: QuotaSource,
        quotas: ClientQuotas,
        *,
        pool: WorkPool,
        outage: Outage,
        poll_seconds: float,
    ) -> None:
        self.active: ClientQuotas | None = None
        self._source = source
        self._quotas = quotas
        self._pool = pool
        self._outage = outage
        self._poll_seconds = poll_seconds
        self._version: UUID | None = None
        self._refreshing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of_agent(
        cls,
        settings: AgentSettings,
        source: QuotaSource,
        *,
        pool: WorkPool,
        clock: Clock,
        outage: Outage,
        metrics: AgentMetrics,
    ) -> QuotaFollower:
        """Return the follower of an agent, with its metrics."""

        def count(key: QuotaKey, seconds: float) -> None:
            metrics.throttles.labels(str(key)).inc()
            metrics.throttle_seconds.labels(str(key)).inc(seconds)

        quotas = ClientQuotas(
            clock,
            windows=Windows(
                count=settings.quota_window_num, window_ms=1000 * settings.quota_window_size_seconds
            ),
            mutation_windows=Windows(
                count=settings.controller_quota_window_num,
                window_ms=1000 * settings.controller_quota_window_size_seconds,
            ),
            max_tracked=settings.max_quota_clients,
            on_throttle=count,
        )
        gauges: MetricReaders = {
            "siltstone_quota_clients": ("Clients with a quota whose rate is measured", lambda: len(quotas)),
            "siltstone_quota_throttled_clients": ("Clients that are throttled now", quotas.throttled),
        }
        metrics.expose(SnapshotCollector(gauges=gauges, counters={}))
        return cls(source, quotas, pool=pool, outage=outage, poll_seconds=settings.quota_poll_ms / 1000)

    async def start(self) -> None:
        """Read the quotas, then follow them."""
        await self.refresh()
        self._task = start_essential_task(self._follow(), name="client quotas")

    @property
    def is_running(self) -> bool:
        """Return True if the task that follows the quotas runs."""
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        """Stop following."""
        await stop_task(self._task)

    async def refresh_soon(self) -> None:
        """Apply the quotas now if the catalog responds, and otherwise with the next poll."""
        try:
            await self.refresh()
        except SiltstoneError as error:
            _log.warning("changed quotas could not be read; they are read later", reason=str(error))

    async def refresh(self) -> None:
        """Apply the quotas that the catalog has now."""
        async with self._refreshing:
            found = await self._pool.run(partial(self._source.changed_since, self._version))
            if found is not None:
                self._version = found.version
                self._quotas.set_limits(found.quotas)
                self.active = self._quotas if self._quotas.has_limits else None

    async def _follow(self) -> None:
        pause = self._poll_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                await self.refresh()
            except SiltstoneError as error:
                pause = max(self._outage.failed(error), self._poll_seconds)
            else:
                self._outage.succeeded()
                pause = self._poll_seconds
