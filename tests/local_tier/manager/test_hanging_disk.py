"""One of two disks hangs. The other one and its logs are not affected, with real threads."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core.clock import SystemClock
from core.ids import SystemIds
from local_tier.errors import LogDirectoryOfflineError
from local_tier.files.file_system import RealFileSystem
from local_tier.manager.config import LogManagerConfig
from local_tier.manager.directory_services import DirectorySchedulers
from local_tier.manager.log_manager import LogManager
from local_tier.manager.set_aside_logs import Disposal
from local_tier.scheduler import BackgroundScheduler
from tests.agent.kafka.waiting import until
from tests.local_tier.batches import batch
from tests.local_tier.crash.disks import Disks
from tests.local_tier.hanging_disk import HangingDisk
from tests.local_tier.manager.managers import CLEANER, ORDERS_ID, OWNER, SMALL, fill
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from local_tier.config import LogConfig
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.topic_partition import TopicPartition

FLUSHED = replace(SMALL, flush_ms=0)
COMPACTED = replace(SMALL, compact=True, delete=False, min_cleanable_dirty_ratio=0.0)


class Scene:
    """A manager of three disks: one may hang, one may fail, one works."""

    def __init__(self, root: Path) -> None:
        self.clock = SystemClock()
        self.paths = tuple(root / name for name in ("hangs", "fails", "works"))
        self.disk = HangingDisk()
        real = RealFileSystem()
        self.schedulers = {
            path: DirectorySchedulers(
                tasks=BackgroundScheduler(self.clock), failures=BackgroundScheduler(self.clock, threads=1)
            )
            for path in self.paths
        }
        self.second = Switch(NoFaults())
        self.manager = LogManager(
            LogManagerConfig(
                directories=self.paths,
                owner=OWNER,
                initial_task_delay_ms=1,
                retention_check_interval_ms=5,
                flush_check_interval_ms=5,
                recovery_point_checkpoint_interval_ms=5,
                high_watermark_checkpoint_interval_ms=5,
                file_delete_delay_ms=1,
                cleaner=replace(CLEANER, backoff_ms=5),
            ),
            file_system=Disks(
                {
                    self.paths[0]: SteppedFileSystem(real, self.disk),
                    self.paths[1]: SteppedFileSystem(real, self.second),
                    self.paths[2]: real,
                }
            ),
            clock=self.clock,
            ids=SystemIds(self.clock),
            schedulers=self.schedulers,
        )
        for each in self.schedulers.values():
            each.tasks.start()
            each.failures.start()
        self.manager.start(self.config_of)

    def config_of(
        self, log: TopicPartition, topic_id: UUID | None, directory_id: UUID, *, is_future: bool
    ) -> LogConfig:
        del log, topic_id, directory_id, is_future
        return SMALL

    def log(self, number: int, config: LogConfig = FLUSHED) -> UnifiedLog:
        return self.manager.get_or_create("orders", ORDERS_ID, number, config)

    def logs_by_disk(self, config: LogConfig) -> list[UnifiedLog]:
        """Create a log on each disk."""
        found: dict[Path, UnifiedLog] = {}
        first = len(self.manager.logs())
        for number in range(first, first + len(self.paths)):
            log = self.log(number, config)
            found[log.directory.parent] = log
        return [found[path] for path in self.paths]

    def close(self) -> None:
        self.disk.work()
        for each in self.schedulers.values():
            each.tasks.stop()
            each.failures.stop()
        self.manager.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def test_a_disk_that_hangs_stops_only_its_own_background_work(scene: Scene) -> None:
    """Flushes, checkpoints, cleaning, deletions and the failure of another disk go on."""
    hung, failing, log = scene.logs_by_disk(FLUSHED)
    _, _, compacted = scene.logs_by_disk(COMPACTED)
    scene.disk.hang()
    stuck = [threading.Thread(target=fill, args=(hung, 3)) for _ in range(3)]
    for thread in stuck:
        thread.start()
    until(lambda: scene.disk.waiting >= 2)  # an append, and a checkpoint

    fill(log, 5)
    until(lambda: log.recovery_point == 5)
    for _ in range(30):
        compacted.append_as_leader(bytearray(batch(0, size=300)), 0)
    compacted.update_high_watermark(compacted.log_end_offset)
    until(lambda: compacted.size < 1_500)
    checkpoint = scene.paths[2] / "recovery-point-offset-checkpoint"
    until(lambda: f"orders {log.topic_partition.partition} 5" in checkpoint.read_text())
    scene.second.faults = DiskError("write .log")
    with pytest.raises(LogDirectoryOfflineError):
        fill(failing, 1)
    until(lambda: failing not in scene.manager.logs())
    assert hung in scene.manager.logs()
    assert scene.manager.disposal.set_aside(log, Disposal.DELETE)
    until(lambda: not list(scene.paths[2].glob(f"orders-{log.topic_partition.partition}*")))

    scene.disk.work()
    for thread in stuck:
        thread.join()
    assert hung.log_end_offset == 9
