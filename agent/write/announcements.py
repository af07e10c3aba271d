"""Tells other agents of this agent's commits, off the way of producers and many commits at a time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.runtime.work_pool import WorkPool
    from agent.write.ingestion_file import SealedFile
    from catalog.model import SectionResult

_log = structlog.get_logger(__name__)


class Announcements:
    """One announcement at a time; what is committed meanwhile goes into the next. Belongs to the event loop.

    What cannot be told is dropped: whoever waits at the tail looks now and then without being told.
    """

    def __init__(self, announce: Callable[[Sequence[PartitionId]], None], pool: WorkPool) -> None:
        self._announce = announce
        self._pool = pool
        self._grown: set[PartitionId] = set()  # as many as there are partitions at the most
        self._telling: asyncio.Task[None] | None = None

    def committed(self, sealed: SealedFile, results: Sequence[SectionResult]) -> None:
        """Tell of what was appended."""
        del sealed
        for result in results:
            if any(run.refusal is None and not run.duplicate for run in result.runs):
                self._grown.add(PartitionId(result.topic_id, result.partition))
        if self._grown and self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell(), name="announce commits")

    async def _tell(self) -> None:
        try:
            while self._grown:
                grown, self._grown = self._grown, set()
                await self._pool.run(partial(self._announce, list(grown)))
        except SiltstoneError as error:
            _log.warning("other agents could not be told of commits", reason=error.message)
        finally:
            self._telling = None

    async def stop(self) -> None:
        """Once what was committed is told."""
        if self._telling is not None:
            await self._telling
