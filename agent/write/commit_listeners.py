"""Listeners of the write path: metrics of appends, and announcements of commits to other agents."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.cluster.commits import CommittedFile
    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.work_pool import WorkPool
    from catalog.model import SectionResult

_log = structlog.get_logger(__name__)


class AppendMetrics:
    """Counts the records and bytes that were appended, and the runs that the catalog rejected."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Count by runs; rejected runs and duplicates were not appended."""
        for section, result in zip(file.commit.sections, results, strict=True):
            outcomes = list(zip(section.runs, result.runs, strict=True))
            appended = [run for run, done in outcomes if done.refusal is None and not done.duplicate]
            self._metrics.appended_records.inc(sum(run.record_count for run in appended))
            if len(appended) == len(outcomes):
                self._metrics.appended_bytes.inc(section.length)
            for _, done in outcomes:
                if done.refusal is not None:
                    self._metrics.rejected_runs.labels(done.refusal.value).inc()


class CommitAnnouncer:
    """Announces commits to other agents, without delaying producers. Belongs to the event loop.

    One announcement is under way at a time. The next one covers everything that was committed meanwhile. A
    failed announcement is dropped, because agents that wait for commits also poll.
    """

    def __init__(self, announce: Callable[[Sequence[PartitionId]], object], pool: WorkPool) -> None:
        self._announce = announce
        self._pool = pool
        self._grown: set[PartitionId] = set()
        self._task: asyncio.Task[None] | None = None

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Announce the partitions that have new records."""
        del file
        self.announce(
            PartitionId(result.topic_id, result.partition)
            for result in results
            if any(run.refusal is None and not run.duplicate for run in result.runs)
        )

    def announce(self, partitions: Iterable[PartitionId]) -> None:
        """Announce partitions that changed."""
        self._grown.update(partitions)
        if self._grown and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="announce commits")

    async def _run(self) -> None:
        try:
            while self._grown:
                grown, self._grown = self._grown, set()
                await self._pool.run(partial(self._announce, list(grown)))
        except SiltstoneError as error:
            _log.warning("commits could not be announced to other agents", reason=error.message)
        finally:
            self._task = None

    async def stop(self) -> None:
        """Wait until all commits are announced."""
        if self._task is not None:
            await self._task
