"""Working on all logs of a directory, several at once, and how far that is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import structlog

from local_tier.errors import LogDirectoryOfflineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


@dataclass(slots=True)
class RecoveryProgress:
    """What is still to be done, by directory; thread-safe (Kafka's remainingLogsToRecover and the like)."""

    logs: dict[Path, int] = field(default_factory=dict)
    segments: dict[Path, int] = field(default_factory=dict)
    _by_log: dict[Path, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, directory: Path, logs: int) -> None:
        """So many logs are to be opened."""
        with self._lock:
            self.logs[directory], self.segments[directory] = logs, 0

    def log_done(self, directory: Path) -> None:
        """One fewer."""
        with self._lock:
            self.logs[directory] -= 1

    def set_segments(self, log: Path, count: int) -> None:
        """So many segments of a log are still to be read through."""
        with self._lock:
            self._by_log[log] = count
            self.segments[log.parent] = sum(
                n for path, n in self._by_log.items() if path.parent == log.parent
            )


class DirectoryPool:
    """Runs work on the logs of one directory on its own threads: a slow disk does not hold up others."""

    def __init__(self, name: str, directory: Path, threads: int) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"{name}-{directory.name}")

    def map(
        self, work: Callable[[_T], None], items: Iterable[_T]
    ) -> Callable[[], OSError | LogDirectoryOfflineError | None]:
        """Begin `work` on each item; what is returned waits for all, and gives the first disk error.

        It raises the first error of another kind, once all are done.
        """
        futures = [self._pool.submit(work, item) for item in items]

        def wait() -> OSError | LogDirectoryOfflineError | None:
            try:
                errors = [error for future in futures if (error := future.exception()) is not None]
            finally:
                self._pool.shutdown()
            disk = [error for error in errors if isinstance(error, (OSError, LogDirectoryOfflineError))]
            for error in errors:
                _log.error("log_directory_work_failed", directory=str(self._directory), error=str(error))
                if error not in disk:
                    raise error
            return disk[0] if disk else None

        return wait
