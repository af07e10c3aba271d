"""The directories of a log manager: which are there, which have failed, and which takes the next log.

A failure may be found by any thread, with any lock held: it is noted at once, and the scheduler acts upon it.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import structlog

from core.errors import FatalError
from local_tier.manager.data_directory import DataDirectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.files.file_system import FileSystem
    from local_tier.manager.config import LogManagerConfig
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.scheduling import Scheduler

_log = structlog.get_logger(__name__)


class LogDirectories:
    """The configured directories; `on_offline` is called, by the scheduler, for each that has failed."""

    def __init__(
        self,
        config: LogManagerConfig,
        *,
        files: FileSystem,
        scheduler: Scheduler,
        on_offline: Callable[[Path], None],
    ) -> None:
        self._config = config
        self._files = files
        self._scheduler = scheduler
        self._on_offline = on_offline
        self._directories: dict[Path, DataDirectory] = {}
        self._failures: deque[Path] = deque()
        self.failed: set[Path] = set()

    @property
    def live(self) -> list[DataDirectory]:
        """Those that have not failed."""
        return [one for path, one in list(self._directories.items()) if path not in self.failed]

    def get(self, path: Path) -> DataDirectory | None:
        """A directory that has not failed."""
        return self._directories.get(path) if path not in self.failed else None

    def open_all(self, clock: Clock, ids: Ids) -> None:
        """Lock and identify all; one whose disk fails is noted. For the rest see `DataDirectory.open`."""
        for path in self._config.directories:
            try:
                self._directories[path] = DataDirectory.open(
                    self._files, path, self._config.owner, clock, ids
                )
            except OSError as error:
                self.report_failure(path, error)

    def require_one(self) -> None:
        """FatalError when all have failed."""
        if not self.live:
            raise FatalError(
                "no log directory can be used: " + ", ".join(map(str, self._config.directories)),
                remedy="the errors logged before say why; the agent needs one directory that works",
            )

    def by_load(self, registry: LogRegistry) -> list[DataDirectory]:
        """Those that have not failed, the one with the fewest logs first."""
        counts = Counter(log.directory.parent for log in registry.all())
        return sorted(self.live, key=lambda directory: counts[directory.path])

    def report_failure(self, path: Path, error: OSError) -> None:
        """The disk of a directory has failed: it goes offline until the process starts again. Never waits."""
        if path not in self.failed:
            self.failed.add(path)
            _log.error("log_directory_failed", path=str(path), error=str(error))
            self._failures.append(path)
            self._scheduler.schedule_once("log-directory-failure", self.take_failed_offline)

    def take_failed_offline(self) -> None:
        """Act upon what was reported."""
        while self._failures:
            path = self._failures.popleft()
            self._on_offline(path)
            directory = self._directories.pop(path, None)
            if directory is not None:
                directory.unlock()

    def unlock_all(self) -> None:
        """Let others have them."""
        for directory in self._directories.values():
            directory.unlock()
        self._directories.clear()
