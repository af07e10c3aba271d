"""The background work of each log directory, apart from that of the others.

Each directory has its own schedulers, queue of deletions and cleaner, and these have their own threads and
locks. A disk that hangs therefore stops the work on its own logs only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from local_tier.cleaner.log_cleaner import LogCleaner
    from local_tier.manager.log_registry import DeletionQueue
    from local_tier.scheduler import OwnedScheduler


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
