"""The background work and the threads of each log directory, apart from those of the others.

Each directory has its own schedulers, queue of deletions and cleaner, and these have their own threads and
locks. A disk that hangs therefore stops the work on its own logs only.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from local_tier.cleaner.log_cleaner import LogCleaner
from local_tier.cleaner.log_cleaner_manager import LogCleanerManager
from local_tier.errors import LogDirectoryOfflineError
from local_tier.manager.log_registry import DeletionQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.cleaner.log_cleaner import CleanerConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.scheduler import OwnedScheduler

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySchedulers:
    """The schedulers of one log directory. `failures` only takes the directory offline."""

    tasks: OwnedScheduler
    failures: OwnedScheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryServices:
    """The background work of one log directory."""

    schedulers: DirectorySchedulers
    deletion_queue: DeletionQueue
    cleaner: LogCleaner


def make_directory_services(
    path: Path,
    schedulers: DirectorySchedulers,
    *,
    cleaner_config: CleanerConfig,
    delete_delay_ms: int,
    registry: LogRegistry,
    file_system: FileSystem,
    clock: Clock,
    ids: Ids,
    on_failure: Callable[[Path, OSError], None],
) -> DirectoryServices:
    """Return the background work of one log directory. `on_failure` is called when its disk fails."""
    return DirectoryServices(
        schedulers=schedulers,
        deletion_queue=DeletionQueue(
            file_system=file_system,
            clock=clock,
            scheduler=schedulers.tasks,
            delay_ms=delete_delay_ms,
            on_failure=on_failure,
        ),
        cleaner=LogCleaner(
            cleaner_config,
            LogCleanerManager(
                file_system=file_system,
                directories=(path,),
                logs=partial(registry.current_in, path),
                clock=clock,
                on_failure=on_failure,
            ),
            file_system=file_system,
            clock=clock,
            ids=ids,
            on_failure=on_failure,
        ),
    )


class DirectoryPool:
    """Threads that work on the logs of one log directory.

    Each directory has its own threads, so that a slow disk does not delay others.
    """

    def __init__(self, name: str, directory: Path, threads: int) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"{name}-{directory.name}")

    def map(
        self, work: Callable[[_T], None], items: Iterable[_T]
    ) -> Callable[[], OSError | LogDirectoryOfflineError | None]:
        """Start `work` on each item. Return a function that waits for all of it.

        That function returns the first disk error, or None. It raises the first error of another kind.
        """
        futures = [self._pool.submit(work, item) for item in items]

        def wait() -> OSError | LogDirectoryOfflineError | None:
            try:
                errors = [error for future in futures if (error := future.exception()) is not None]
            finally:
                self._pool.shutdown()
            disk = [error for error in errors if isinstance(error, (OSError, LogDirectoryOfflineError))]
            for error in errors:
                _log.error("log_directory_task_failed", directory=str(self._directory), error=str(error))
                if error not in disk:
                    raise error
            return disk[0] if disk else None

        return wait
