"""Logs that are not served, because their topic was deleted, and that may be opened again.

The directory of such a log has the name of a stray (`-stray`), which Kafka and earlier releases keep, too.
They delete a directory with `-delete` at a start. A file in it has the log's entries of the checkpoints. A
stray without that file is never opened again by itself.
"""

from __future__ import annotations

import threading
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID


class Disposal(Enum):
    """What becomes of a log that is not served any more.

    `DELETE`: its files are deleted after `file.delete.delay.ms`. `WAIT`: it is kept until the caller opens it
    again or deletes it. `STRAY`: it is kept.
    """

    DELETE = auto()
    WAIT = auto()
    STRAY = auto()


class SetAsideLog(NamedTuple):
    """A log that waits, and its partition directory."""

    path: Path
    topic_id: UUID
    partition: int


class SetAsideLogs:
    """The logs that wait, and the number of strays. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[tuple[UUID, int], list[SetAsideLog]] = {}
        self._latest_epochs: dict[SetAsideLog, int | None] = {}
        self._strays = 0

    @property
    def strays(self) -> int:
        """The number of strays without a mark."""
        return self._strays

    def count_stray(self) -> None:
        """Count one more stray without a mark."""
        with self._lock:
            self._strays += 1

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._logs.values()))

    def add(self, log: SetAsideLog) -> None:
        """Add a log."""
        with self._lock:
            self._logs.setdefault((log.topic_id, log.partition), []).append(log)

    def take(self, log: SetAsideLog) -> bool:
        """Remove a log. Return False if another caller has removed it."""
        with self._lock:
            logs = self._logs.get((log.topic_id, log.partition), [])
            if log not in logs:
                return False
            logs.remove(log)
            self._latest_epochs.pop(log, None)
            if not logs:
                del self._logs[log.topic_id, log.partition]
            return True

    def of(self, topic_id: UUID, partition: int) -> list[SetAsideLog]:
        """Return the logs of a partition. There are several after a move that a crash has interrupted."""
        with self._lock:
            return list(self._logs.get((topic_id, partition), ()))

    def all(self) -> list[SetAsideLog]:
        """Return all logs."""
        with self._lock:
            return [log for logs in self._logs.values() for log in logs]

    def latest_epoch(self, log: SetAsideLog, read: Callable[[], int | None]) -> int | None:
        """Return the last leader epoch of a log. It does not change while the log waits, so read it once."""
        with self._lock:
            if log in self._latest_epochs:
                return self._latest_epochs[log]
        epoch = read()
        with self._lock:
            if log in self._logs.get((log.topic_id, log.partition), ()):
                self._latest_epochs[log] = epoch
        return epoch

    def remove_directory(self, directory: Path) -> None:
        """Remove the logs of a log directory."""
        for log in self.all():
            if log.path.parent == directory:
                self.take(log)
