"""What the threads of the cleaner share: who works on which log, how far each was cleaned, and what failed.

Source: LogCleanerManager of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from local_tier.cleaner.log_cleaning_state import LogCleaningState, LogCleaningStates
from local_tier.cleaner.log_to_clean import LogToClean, cleanable_bytes, cleanable_offsets, log_to_clean
from local_tier.errors import CleaningAbortedError, CleaningFailedError, CorruptCheckpointError
from local_tier.files.checkpoint_files import OffsetCheckpointFile
from local_tier.files.file_names import CLEANER_CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from core.clock import Clock
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.topic_partition import TopicPartition

_log = structlog.get_logger(__name__)


class LogCleanerManager:
    """Chooses logs, and keeps cleaner, retention and everybody else off each other's logs.

    `logs` gives the logs in use. Any thread may call; `pause` waits for the thread that works on the log.
    `on_failure` is told of a directory that cannot be written; it must not wait for anything.
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
        """The first dirty offset of each log, of all directories that can be read."""
        with self._lock:
            found: dict[TopicPartition, int] = {}
            for checkpoint in self._checkpoints.values():
                found |= _read(checkpoint)
            return found

    def state(self, log: TopicPartition) -> LogCleaningState | None:
        """Who works on it."""
        with self._lock:
            return self._states.state(log)

    def grab_filthiest_log(self) -> LogToClean | None:
        """Begin to clean the log that needs it most; None when none does.

        Raises CleaningFailedError for a log of which not even this can be told.
        """
        with self._lock:
            now_ms = self._clock.now_ms()
            self.last_run_ms, self.max_compaction_delay_ms = now_ms, 0
            checkpoints = self.checkpoints()
            dirty = [
                self._measure(name, log, checkpoints.get(name), now_ms)
                for name, log in self._logs().items()
                if log.config.compact and self._states.is_idle(name) and not self._is_uncleanable(log)
            ]
            dirty = [one for one in dirty if one.total_bytes > 0]
            self.dirtiest_ratio = max((one.cleanable_ratio for one in dirty), default=0.0)
            due = [one for one in dirty if one.is_due]
            if not due:
                return None
            filthiest = max(due, key=lambda one: one.cleanable_ratio)
            self._states.begin(filthiest.log.topic_partition)
            return filthiest

    def end_cleaning(self, log: UnifiedLog, end_offset: int) -> None:
        """The clean is over; unless it was aborted, the next begins at `end_offset`."""
        with self._lock:
            if self._states.end(log.topic_partition):
                self.update_checkpoint(log.directory.parent, log.topic_partition, end_offset)
            self._changed.notify_all()

    def begin_deletions(self) -> list[UnifiedLog]:
        """Begin to delete old segments of the compacted logs that nobody works on."""
        with self._lock:
            return self._begin_all(
                log for log in self._logs().values() if log.config.compact and not self._is_uncleanable(log)
            )

    def end_deletions(self, logs: Iterable[UnifiedLog]) -> None:
        """Their old segments are gone."""
        with self._lock:
            for log in logs:
                self._states.end(log.topic_partition)
            self._changed.notify_all()

    def pause_cleaning_of_non_compacted(self) -> list[UnifiedLog]:
        """Keep the cleaner off the logs that are not compacted and that nobody works on."""
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
        """Keep everybody off a log, and wait until who works on it has stopped; `resume` must follow."""
        with self._lock:
            if not self._states.pause(log):
                while not self._states.is_paused(log):
                    self._changed.wait()

    def resume(self, log: TopicPartition) -> None:
        """Take one `pause` back."""
        with self._lock:
            self._states.resume(log)

    def check_aborted(self, log: TopicPartition) -> None:
        """CleaningAbortedError when somebody waits for the clean to end."""
        with self._lock:
            if self._states.is_aborted(log):
                raise CleaningAbortedError(f"the clean of {log} was asked to stop")

    def update_checkpoint(self, directory: Path, log: TopicPartition, offset: int | None) -> None:
        """Write down the first dirty offset of a log, or forget it; logs that are gone are forgotten, too."""
        with self._lock:
            checkpoint = self._checkpoints.get(directory)
            if checkpoint is None:
                return
            known = self._logs()
            offsets = {name: value for name, value in _read(checkpoint).items() if name in known}
            offsets.pop(log, None)
            if offset is not None:
                offsets[log] = offset
            self._write(checkpoint, offsets)

    def truncate_checkpoint(self, directory: Path, log: TopicPartition, offset: int) -> None:
        """The log was truncated: nothing from `offset` on is clean."""
        with self._lock:
            checkpoint = self._checkpoints.get(directory)
            if checkpoint is None:
                return
            offsets = _read(checkpoint)
            if offsets.get(log, 0) > offset:
                self._write(checkpoint, {**offsets, log: offset})

    def move_checkpoint(self, log: TopicPartition, source: Path, target: Path) -> None:
        """The log lies in another directory now."""
        with self._lock:
            checkpoint = self._checkpoints.get(source)
            offset = _read(checkpoint).get(log) if checkpoint is not None else None
            if offset is not None:
                self.update_checkpoint(source, log, None)
                self.update_checkpoint(target, log, offset)
            if log in self._uncleanable.get(source, ()):
                self._uncleanable[source].discard(log)
                self.mark_uncleanable(target, log)

    def remove_directory(self, directory: Path) -> None:
        """The directory has failed: nothing more is read from it or written to it."""
        with self._lock:
            self._checkpoints.pop(directory, None)
            self._uncleanable.pop(directory, None)

    def mark_uncleanable(self, directory: Path, log: TopicPartition) -> None:
        """Cleaning it has failed, and would again: it is left alone until the process starts anew."""
        with self._lock:
            self._uncleanable.setdefault(directory, set()).add(log)

    def remove_deleted_uncleanable(self) -> None:
        """Uncleanable logs that are gone need not be remembered."""
        with self._lock:
            known = self._logs()
            self._uncleanable = {
                directory: retained
                for directory, logs in self._uncleanable.items()
                if (retained := {log for log in logs if log in known})
            }

    def uncleanable(self) -> dict[Path, frozenset[TopicPartition]]:
        """By directory."""
        with self._lock:
            return {directory: frozenset(logs) for directory, logs in self._uncleanable.items()}

    def uncleanable_bytes(self, directory: Path) -> int:
        """What the cleaner should have gone through in the logs that it cannot clean."""
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
        taken = [log for log in logs if self._states.is_idle(log.topic_partition)]
        for log in taken:
            self._states.begin(log.topic_partition)
        return taken

    def _measure(
        self, name: TopicPartition, log: UnifiedLog, checkpointed: int | None, now_ms: int
    ) -> LogToClean:
        try:
            offsets = cleanable_offsets(log, checkpointed, now_ms)
            if offsets.repair_checkpoint:
                self.update_checkpoint(log.directory.parent, name, offsets.first_dirty_offset)
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
    """What a directory's checkpoint says; a log without one is dirty from its start, which loses nothing."""
    try:
        return checkpoint.read()
    except (CorruptCheckpointError, OSError) as error:
        _log.warning("cleaner_checkpoint_unreadable", path=str(checkpoint.path), error=str(error))
        return {}
