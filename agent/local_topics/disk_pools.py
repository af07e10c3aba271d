"""Threads and memory for the requests of each log directory.

A disk that hangs holds up its own threads and its own share of the memory. Requests for other disks have
theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.runtime.byte_budget import ByteBudget
from agent.runtime.work_pool import WorkPool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog


class DiskPools:
    """One pool of threads and one budget of pending appends for each log directory."""

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        threads: int,
        max_waiting: int,
        max_append_bytes: int,
        min_share_bytes: int = 0,
    ) -> None:
        share = max(max_append_bytes // max(len(directories), 1), min_share_bytes)
        self._pools = {
            path: WorkPool(f"disk {number}", threads=threads, max_waiting=max_waiting)
            for number, path in enumerate(directories)
        }
        self._budgets = {path: ByteBudget(f"the buffer of appends to {path}", share) for path in directories}

    @property
    def pending(self) -> int:
        """The number of running and waiting calls."""
        return sum(pool.pending for pool in self._pools.values())

    def at(self, directory: Path) -> WorkPool:
        """Return the threads of a directory."""
        return self._pools[directory]

    def of(self, log: UnifiedLog) -> WorkPool:
        """Return the threads of a log's directory."""
        return self._pools[log.directory.parent]

    def budget_of(self, log: UnifiedLog | None) -> ByteBudget:
        """Return the budget of a log's directory. A log that does not exist yet may use any."""
        if log is not None:
            return self._budgets[log.directory.parent]
        return min(self._budgets.values(), key=lambda budget: budget.used)

    def close(self) -> None:
        """Cancel the calls that have not started, and wait for the others."""
        for pool in self._pools.values():
            pool.close()
