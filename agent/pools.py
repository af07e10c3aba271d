"""The agent's thread pools, by kind of work, so that no kind can starve another."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from agent.work_pool import WorkPool

if TYPE_CHECKING:
    from agent.settings import AgentSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """One pool for each kind of work.

    Uploads and commits have threads of their own, as many as there can be of either: they never wait behind
    reads. Hot and cold reads are apart, so that those who catch up cannot delay those at the tail. What is
    read is cut out and rendered apart from the kernels that producers wait for.
    """

    uploads: WorkPool
    commits: WorkPool
    catalog: WorkPool
    kernels: WorkPool
    rendering: WorkPool
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
            catalog=WorkPool("catalog", threads=settings.catalog_threads, max_waiting=waiting),
            kernels=WorkPool("kernels", threads=settings.kernel_threads, max_waiting=waiting),
            rendering=WorkPool("rendering", threads=settings.rendering_threads, max_waiting=waiting),
            hot_reads=WorkPool("hot reads", threads=settings.hot_read_threads, max_waiting=waiting),
            cold_reads=WorkPool("cold reads", threads=settings.cold_read_threads, max_waiting=waiting),
        )

    def all(self) -> list[WorkPool]:
        """Every pool."""
        return [getattr(self, field.name) for field in fields(self)]

    def close(self) -> None:
        """Wait for what is under way in each."""
        for pool in self.all():
            pool.close()
