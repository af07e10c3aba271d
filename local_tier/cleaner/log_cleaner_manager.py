"""The state that the cleaner's threads share: operations, first dirty offsets, and uncleanable logs.

Source: LogCleanerManager of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from local_tier.cleaner.log_cleaning_state import LogCleaningState, LogCleaningStates
from local_tier.cleaner.log_to_clean import LogToClean, cleanable_bytes, cleanable_offsets, log_to_clean
from local_tier.errors import CleaningAbortedError, CleaningFailedError, CorruptCheckpointError
from local_tier.files.checkpoint_files import OffsetCheckpointFile
from local_tier.files.file_names import CLEANER_CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from core.clock import Clock
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.topic_partition import TopicPartition

_log = structlog.get_logger(__name__)


class LogCleanerManager:
    """Chooses the logs to clean, and keeps cleaning, retention and other operations apart.

    `logs` returns the current logs. Any thread may call; `pause` waits for the thread that works on the log.
    `on_failure` is called when a checkpoint cannot be written; it must not block.
    """

    def __init__(
        self,
        *,
        file_system: FileSystem,
        directories: Iterable[Path],
        logs: Callable[[], Mapping[TopicPartition, UnifiedLog]],
        clock: Clock,
        on_failure: Callable[[Path, OSError], None],
    ) -> None:
        self._logs = logs
        self._on_failure = on_failure
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._states = LogCleaningStates()
        self._uncleanable: dict[Path, set[TopicPartition]] = {}
        self._checkpoints = {
            directory: OffsetCheckpointFile(file_system, directory / CLEANER_CHECKPOINT)
            for directory in directories
        }
        self.dirtiest_ratio = 0.0
        self.last_run_ms = clock.now_ms()
        self.max_compaction_delay_ms = 0

    def checkpoints(self) -> dict[TopicPartition, int]:
        """Return the first dirty offset of each log, from all directories that can be read."""
        with self._lock:
            found: dict[TopicPartition, int] = {}
            for checkpoint in self._checkpoints.values():
                found |= _read(checkpoint)
            return found

    def state(self, log: TopicPartition) -> LogCleaningState | None:
        """Return the operation on a log, or None."""
        with self._lock:
            return self._states.state(log)

    def grab_filthiest_log(self) -> LogToClean | None:
        """Begin to clean the log with the highest cleanable ratio. Return None if no log is due.

        Raises CleaningFailedError for a log that cannot be measured.
        """
        with self._lock:
            now_ms = self._clock.now_ms()
            self.last_run_ms, self.max_compaction_delay_ms = now_ms, 0
            checkpoints = self.checkpoints()
            repairs: dict[Path, dict[TopicPartition, int]] = {}
            dirty = [
                self._measure(name, log, checkpoints.get(name), now_ms, repairs)
                for name, log in self._logs().items()
                if log.config.compact and self._states.is_idle(name) and not self._is_uncleanable(log)
            ]
            for directory, offsets in repairs.items():
                self.update_checkpoints(directory, offsets)
            dirty = [one for one in dirty if one.total_bytes > 0]
            self.dirtiest_ratio = max((one.cleanable_ratio for one in dirty), default=0.0)
            due = [one for one in dirty if one.is_due]
            if not due:
                return None
            filthiest = max(due, key=lambda one: one.cleanable_ratio)
            self._states.begin(filthiest.log.topic_partition)
            return filthiest

    def end_cleaning(self, log: UnifiedLog, end_offset: int) -> None:
        """End a cleaning. Unless it was aborted, the next one begins at `end_offset`."""
        with self._lock:
            if self._states.end(log.topic_partition):
                self.update_checkpoints(log.directory.parent, {log.topic_partition: end_offset})
            self._changed.notify_all()

    def begin_deletions(self) -> list[UnifiedLog]:
        """Begin to delete old segments of the compacted logs without another operation."""
        with self._lock:
            return self._begin_all(
                log for log in self._logs().values() if log.config.compact and not self._is_uncleanable(log)
            )

    def end_deletions(self, logs: Iterable[UnifiedLog]) -> None:
        """End the deletion of old segments."""
        with self._lock:
            for log in logs:
                self._states.end(log.topic_partition)
            self._changed.notify_all()

    def pause_cleaning_of_non_compacted(self) -> list[UnifiedLog]:
        """Pause the logs that are not compacted and have no operation, and return them."""
        with self._lock:
            logs = [
                log
                for name, log in self._logs().items()
                if not log.config.compact and self._states.is_idle(name)
            ]
            for log in logs:
                self._states.pause(log.topic_partition)
            return logs

    def pause(self, log: TopicPartition) -> None:
        """Stop the operation on a log, wait for its end, and prevent others until `resume`."""
        with self._lock:
            if not self._states.pause(log):
                while not self._states.is_paused(log):
                    self._changed.wait()

    def resume(self, log: TopicPartition) -> None:
        """Undo one `pause`."""
        with self._lock:
            self._states.resume(log)

    @contextmanager
    def paused(self, log: TopicPartition) -> Iterator[None]:
        """Prevent cleaning and deletion of old segments of a log."""
        self.pause(log)
        try:
            yield
        finally:
            self.resume(log)

    def check_aborted(self, log: TopicPartition) -> None:
        """Raise CleaningAbortedError if the cleaning was asked to stop."""
        with self._lock:
            if self._states.is_aborted(log):
                raise CleaningAbortedError(f"the cleaning of {log} was asked to stop")

    def update_checkpoints(self, directory: Path, changes: Mapping[TopicPartition, int | None]) -> None:
        """Write the first dirty offsets of logs together, or remove those that are None.

        Entries of logs that no longer exist are removed, too. The file is not written if nothing changes.
        """
        with self._lock:
            checkpoint = self._checkpoints.get(directory)
            if checkpoint is None:
                return
            known, before = self._logs(), _read(checkpoint)
            offsets = {name: value for name, value in before.items() if name in known and name not in changes}
            offsets |= {name: value for name, value in changes.items() if value is not None}
            if offsets != before:
                self._write(checkpoint, offsets)

    def truncate_checkpoint(self, directory: Path, log: TopicPartition, offset: int) -> None:
        """Lower the first dirty offset after a truncation to `offset`."""
        with self._lock:
            checkpoint = self._checkpoints.get(directory)
            if checkpoint is None:
                return
            offsets = _read(checkpoint)
            if offsets.get(log, 0) > offset:
                self._write(checkpoint, {**offsets, log: offset})

    def move_checkpoint(
        self, log: TopicPartition, source: Path, other: LogCleanerManager, target: Path
    ) -> None:
        """Move the entry of a log that is now in a directory of another manager."""
        offset = self.checkpoints().get(log)
        if offset is not None:
            other.update_checkpoints(target, {log: offset})
            self.update_checkpoints(source, {log: None})
        with self._lock:
            was_uncleanable = log in self._uncleanable.get(source, ())
            self._uncleanable.get(source, set()).discard(log)
        if was_uncleanable:
            other.mark_uncleanable(target, log)

    def remove_directory(self, directory: Path) -> None:
        """Stop using a directory that has failed."""
        with self._lock:
            self._checkpoints.pop(directory, None)
            self._uncleanable.pop(directory, None)

    def mark_uncleanable(self, directory: Path, log: TopicPartition) -> None:
        """Exclude a log from cleaning until the process starts again: cleaning it has failed."""
        with self._lock:
            self._uncleanable.setdefault(directory, set()).add(log)

    def remove_deleted_uncleanable(self) -> None:
        """Remove uncleanable logs that no longer exist."""
        with self._lock:
            known = self._logs()
            self._uncleanable = {
                directory: retained
                for directory, logs in self._uncleanable.items()
                if (retained := {log for log in logs if log in known})
            }

    def uncleanable(self) -> dict[Path, frozenset[TopicPartition]]:
        """Return the uncleanable logs by directory."""
        with self._lock:
            return {directory: frozenset(logs) for directory, logs in self._uncleanable.items()}

    def uncleanable_bytes(self, directory: Path) -> int:
        """Return the cleanable bytes of the uncleanable logs in a directory."""
        with self._lock:
            known, checkpoints, now_ms = self._logs(), self.checkpoints(), self._clock.now_ms()
            total = 0
            for name in self._uncleanable.get(directory, ()):
                log = known.get(name)
                if log is not None:
                    first, end, _ = cleanable_offsets(log, checkpoints.get(name), now_ms)
                    total += cleanable_bytes(log, first, end)[1]
            return total

    def _write(self, checkpoint: OffsetCheckpointFile, offsets: dict[TopicPartition, int]) -> None:
        try:
            checkpoint.write(offsets)
        except OSError as error:
            self._on_failure(checkpoint.path.parent, error)

    def _begin_all(self, logs: Iterable[UnifiedLog]) -> list[UnifiedLog]:
        idle_logs = [log for log in logs if self._states.is_idle(log.topic_partition)]
        for log in idle_logs:
            self._states.begin(log.topic_partition)
        return idle_logs

    def _measure(
        self,
        name: TopicPartition,
        log: UnifiedLog,
        checkpointed: int | None,
        now_ms: int,
        repairs: dict[Path, dict[TopicPartition, int]],
    ) -> LogToClean:
        """Measure a log. Add its first dirty offset to `repairs` if the checkpoint has a wrong one."""
        try:
            offsets = cleanable_offsets(log, checkpointed, now_ms)
            if offsets.repair_checkpoint:
                repairs.setdefault(log.directory.parent, {})[name] = offsets.first_dirty_offset
            measured, delay = log_to_clean(log, offsets, now_ms)
        except Exception as error:
            raise CleaningFailedError(
                f"the dirty part of log {name} cannot be measured: {error}",
                directory=log.directory.parent,
                topic_partition=name,
            ) from error
        self.max_compaction_delay_ms = max(self.max_compaction_delay_ms, delay)
        return measured

    def _is_uncleanable(self, log: UnifiedLog) -> bool:
        return log.topic_partition in self._uncleanable.get(log.directory.parent, ())


def _read(checkpoint: OffsetCheckpointFile) -> dict[TopicPartition, int]:
    """Return the entries of a checkpoint, or none if it cannot be read.

    A log without an entry is dirty from its start, which is always correct.
    """
    try:
        return checkpoint.read()
    except (CorruptCheckpointError, OSError) as error:
        _log.warning("cleaner_checkpoint_unreadable", path=str(checkpoint.path), error=str(error))
        return {}
