"""Jobs in one process, checked against the reference log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.clock import ManualClock
from core.ids import SeededIds
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from spark_jobs.task.compaction_task import TaskHooks, run_compaction
from tests.spark_jobs.reference_log import ReferenceLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from catalog.model import Extent, JobResult, JobSpec, PartitionId


class CompactionHarness:
    """A reference log, and a new store for every task, as on Spark."""

    def __init__(self, directory: Path, seed: int = 1) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.ids = SeededIds(seed, self.clock)
        self.log = ReferenceLog(LocalStore(directory, self.ids), self.clock, self.ids)

    def topic(self, policy: str = "compact") -> UUID:
        return self.log.create_topic(policy)

    def run(self, spec: JobSpec, hooks: TaskHooks | None = None) -> JobResult:
        store = LocalStore(self.directory, self.ids)
        try:
            return run_compaction(
                spec, store, attempt_id=self.ids.new_uuid(), clock=self.clock, ids=self.ids, hooks=hooks
            )
        finally:
            store.close()

    def compact(
        self, extents: Mapping[PartitionId, Sequence[Extent]] | None = None, table_bytes: int = 1 << 20
    ) -> JobResult:
        """Run a job, publish it, and check the log."""
        spec = self.log.job(extents, table_bytes=table_bytes)
        result = self.run(spec)
        self.log.publish(spec, result)
        self.log.check()
        return result

    def objects(self) -> list[str]:
        return [each.name for each in self.log.store.list("", purpose=Purpose.FSCK)]
