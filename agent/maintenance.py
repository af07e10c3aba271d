"""Maintenance inside the agent: retention, garbage collection and expiry, off the event loop.

The tasks run in separate threads. They use at most two connections to the catalog, so that they cannot starve
requests, and a slow statement of one does not hold up the others.
Agents elect the one that runs each task by leases in the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.runtime.work_pool import WorkPool
from maintenance.metrics import MaintenanceCollector

if TYPE_CHECKING:
    from agent.runtime.metrics import AgentMetrics
    from maintenance.runner import MaintenanceRunner


class AgentMaintenance:
    """Life of the maintenance tasks of one agent, which may have none. Belongs to the event loop."""

    def __init__(self, runner: MaintenanceRunner | None, metrics: AgentMetrics) -> None:
        self._runner = runner
        if runner is not None:
            metrics.expose(MaintenanceCollector(runner))

    def start(self) -> None:
        """Start the tasks."""
        if self._runner is not None:
            self._runner.start()

    @property
    def is_running(self) -> bool:
        """Return True if all tasks run, or if there are none."""
        return self._runner is None or self._runner.is_running

    async def stop(self) -> None:
        """End the tasks and release their leases, so that another agent continues at once."""
        if self._runner is None:
            return
        pool = WorkPool("maintenance", threads=1, max_waiting=1)
        try:
            await pool.run(self._runner.stop)
        finally:
            pool.close(wait=False)
