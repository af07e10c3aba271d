"""Logs on a real disk with a clock and a scheduler that tests control."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.clock import ManualClock
from core.ids import SeededIds
from local_tier.config import LogConfig
from local_tier.files.file_system import RealFileSystem
from local_tier.log.log_loader import open_log
from local_tier.topic_partition import TopicPartition
from tests.local_tier.manual_scheduler import ManualScheduler

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog

SMALL = LogConfig(segment_bytes=1000, segment_index_bytes=12 * 100, index_interval_bytes=200)


@dataclass
class LogHarness:
    """A log directory, which outlives the logs that are opened in it."""

    root: Path
    fs: FileSystem = field(default_factory=RealFileSystem)
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000_000))
    failures: list[tuple[Path, OSError]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = ManualScheduler(self.clock)
        self.remaining: list[int] = []  # segments remaining, as reported by the last opening

    @property
    def directory(self) -> Path:
        """The partition directory."""
        return self.root / "orders-0"

    def open(
        self,
        config: LogConfig = SMALL,
        *,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        clean: bool = False,
        topic_id: UUID | None = None,
    ) -> UnifiedLog:
        """Open the log as after a start of the agent: scheduled tasks of earlier logs are dropped."""
        self.scheduler = ManualScheduler(self.clock)
        self.remaining = []
        return open_log(
            self.fs,
            self.directory,
            config,
            topic_partition=TopicPartition("orders", 0),
            clock=self.clock,
            ids=SeededIds(0, self.clock),
            scheduler=self.scheduler,
            on_failure=lambda path, error: self.failures.append((path, error)),
            topic_id=topic_id,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            had_clean_shutdown=clean,
            on_segments_remaining=self.remaining.append,
        )

    def names(self) -> list[str]:
        """Return the names of the files in the directory without leading zeros."""
        return sorted(path.name.lstrip("0") for path in self.directory.iterdir())


def crash(log: UnifiedLog) -> None:
    """Close a log's files as a crash of the process does: nothing is written."""
    log.close_handles()
