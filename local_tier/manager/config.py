"""The configuration of a log manager."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.errors import InvalidInputError
from local_tier.cleaner.log_cleaner import CleanerConfig

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.manager.log_directories import DirectoryOwner


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerConfig:
    """Directories and schedules, in milliseconds, with Kafka's defaults except where noted.

    `flush_check_interval_ms` is one second; in Kafka it is unlimited, so that a topic's `flush.ms` has no
    effect by default. `epoch` is written into the marker of a clean shutdown.
    """

    directories: tuple[Path, ...]
    owner: DirectoryOwner
    recovery_threads_per_directory: int = 2
    retention_check_interval_ms: int = 300_000
    flush_check_interval_ms: int = 1_000
    producer_expiry_check_interval_ms: int = 600_000
    recovery_point_checkpoint_interval_ms: int = 60_000
    log_start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    initial_task_delay_ms: int = 30_000
    file_delete_delay_ms: int = 60_000
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    epoch: int = -1

    def __post_init__(self) -> None:
        resolved = {path.resolve() for path in self.directories}
        if not self.directories or len(resolved) < len(self.directories):
            named = ", ".join(map(str, self.directories))
            raise InvalidInputError(
                f"log directories must be configured, and no two of them may be the same: {named}"
            )
        if self.recovery_threads_per_directory < 1:
            raise InvalidInputError("a log directory needs at least one recovery thread")
