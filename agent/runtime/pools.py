"""The agent's thread pools, by kind of work, so that no kind can starve another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from agent.runtime.work_pool import WorkPool

if TYPE_CHECKING:
    from agent.settings import AgentSettings

_IDLE_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """One pool for each kind of work.

    The session has a thread of its own, so that its heartbeat never waits. Uploads and commits have as many
    as there can be of either: they never wait behind reads. Hot and cold reads are apart, so that those who
    catch up cannot delay those at the tail. What is read is cut out and rendered apart from the kernels that
    producers wait for.
    """

    uploads: WorkPool
    commits: WorkPool
    session: WorkPool
    catalog: WorkPool
    kernels: WorkPool
    rendering: WorkPool
    disks: WorkPool
    hot_reads: WorkPool
    cold_reads: WorkPool

    @classmethod
    def open(cls, settings: AgentSettings) -> Pools:
        """Pools of the sizes that the settings say."""
        files = settings.max_files_in_flight
        waiting = settings.max_waiting_calls
        return cls(
            uploads=WorkPool("uploads", threads=files, max_waiting=files),
            commits=WorkPool("commits", threads=1, max_waiting=1),
            session=WorkPool("session", threads=1, max_waiting=1),
            catalog=WorkPool("catalog", threads=settings.catalog_threads, max_waiting=waiting),
            kernels=WorkPool("kernels", threads=settings.kernel_threads, max_waiting=waiting),
            rendering=WorkPool("rendering", threads=settings.rendering_threads, max_waiting=waiting),
            disks=WorkPool("disks", threads=settings.disk_threads, max_waiting=waiting),
            hot_reads=WorkPool("hot reads", threads=settings.hot_read_threads, max_waiting=waiting),
            cold_reads=WorkPool("cold reads", threads=settings.cold_read_threads, max_waiting=waiting),
        )

    def all(self) -> list[WorkPool]:
        """Every pool."""
        return [getattr(self, field.name) for field in fields(self)]

    def close(self, *, wait: bool = True) -> None:
        """Drop what has not begun; wait for what is under way unless told not to."""
        for pool in self.all():
            pool.close(wait=wait)

    async def idle(self) -> None:
        """Wait until no call is under way."""
        while any(pool.pending for pool in self.all()):  # noqa: ASYNC110  # only at the end of a process
            await asyncio.sleep(_IDLE_POLL_SECONDS)
