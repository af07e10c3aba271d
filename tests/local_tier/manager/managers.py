"""Log managers with a clock and a scheduler that tests control."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from core.clock import ManualClock
from core.ids import SeededIds
from local_tier.cleaner.log_cleaner import CleanerConfig
from local_tier.config import LogConfig
from local_tier.log.unified_log import Isolation
from local_tier.manager.config import LogManagerConfig
from local_tier.manager.directory_services import DirectorySchedulers
from local_tier.manager.log_directories import DirectoryOwner
from local_tier.manager.log_manager import LogManager
from local_tier.manager.set_aside_logs import Disposal
from local_tier.topic_partition import TopicPartition
from tests.local_tier.batches import batch, offsets_of
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.manual_scheduler import ManualScheduler
from tests.local_tier.steps import NoFaults, SteppedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog

ORDERS_ID = UUID(int=0x1BDC7A266B1F4AD19D690123456789AB)
OWNER = DirectoryOwner(cluster_id="here", node_id=1)
SMALL = LogConfig(retention_ms=-1, segment_bytes=1000, segment_index_bytes=12 * 100, index_interval_bytes=200)
CLEANER = CleanerConfig(dedupe_buffer_bytes=1 << 16, io_buffer_bytes=1 << 16)


class PeriodicManualScheduler(ManualScheduler):
    """A manual scheduler that also repeats tasks."""

    def schedule_every(
        self, name: str, task: Callable[[], object], *, first_delay_ms: int, period_ms: int
    ) -> None:
        def run() -> None:
            task()
            self.schedule_once(name, run, period_ms)

        self.schedule_once(name, run, first_delay_ms)


@dataclass
class Machine:
    """Disks that outlive the processes that use them."""

    directories: tuple[Path, ...]
    files: FileSystem = field(default_factory=lambda: SteppedFileSystem(UnsyncedFileSystem(), NoFaults()))
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_700_000_000_000))
    configs: dict[str, LogConfig | None] = field(default_factory=dict)
    overrides: dict[str, object] = field(default_factory=dict)
    recorded: dict[TopicPartition, UUID] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = PeriodicManualScheduler(self.clock)

    def manager(self, owner: DirectoryOwner = OWNER) -> LogManager:
        self.scheduler = PeriodicManualScheduler(self.clock)
        config = LogManagerConfig(directories=self.directories, owner=owner, cleaner=CLEANER)
        return LogManager(
            replace(config, **self.overrides),  # type: ignore[arg-type]  # a test may override any field
            file_system=self.files,
            clock=self.clock,
            ids=SeededIds(1, self.clock),
            schedulers={
                path: DirectorySchedulers(tasks=self.scheduler, failures=self.scheduler)
                for path in self.directories
            },
        )

    def start(self) -> LogManager:
        manager = self.manager()
        manager.start(self.config_of, clean=False)
        return manager

    def config_of(
        self, log: TopicPartition, topic_id: UUID | None, directory_id: UUID, *, is_future: bool
    ) -> LogConfig | None:
        assert directory_id.int
        assert topic_id is None or topic_id.int
        recorded = self.recorded.get(log)
        if (is_future or recorded is not None) and recorded != directory_id:
            return None
        return self.configs.get(log.topic, SMALL)

    def names(self, directory: int = 0) -> list[str]:
        """Return the names of the logs in a directory."""
        return sorted(path.name for path in self.directories[directory].iterdir() if path.is_dir())


def orders(manager: LogManager, partition: int = 0, config: LogConfig = SMALL) -> UnifiedLog:
    return manager.get_or_create("orders", ORDERS_ID, partition, config)


def name_of(partition: int) -> TopicPartition:
    return TopicPartition("orders", partition)


def delete_log(manager: LogManager, name: TopicPartition) -> bool:
    """Delete a log as after the removal of its topic. Return False if there is none."""
    log = manager.get(name)
    return log is not None and manager.disposal.set_aside(log, Disposal.DELETE)


def crash(manager: LogManager) -> None:
    """Close files and release locks as the end of a process does. Nothing is written."""
    for log in manager.logs():
        log.close_handles()
    manager._directories.unlock_all()


def fill(log: UnifiedLog, count: int, *, size: int = 100) -> None:
    """Append a number of records, each in a batch, and advance the high watermark."""
    for _ in range(count):
        log.append_as_leader(bytearray(batch(0, size=size)), 0)
    log.update_high_watermark(log.log_end_offset)


def readable(log: UnifiedLog) -> list[int]:
    """Return the offsets from the log start offset to the high watermark, as reads give them."""
    if log.log_start_offset == log.high_watermark:
        return []
    offsets: list[int] = []
    position = log.log_start_offset
    while position < log.high_watermark:
        offsets += offsets_of(log.read(position, 1 << 20, Isolation.HIGH_WATERMARK).data)
        position = offsets[-1] + 1
    return [offset for offset in offsets if offset >= log.log_start_offset]
