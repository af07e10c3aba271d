"""The threads that clean compacted logs.

Each thread cleans the filthiest log, deletes old segments of compacted logs, and waits when no log was due. A
log whose cleaning fails for an unexpected reason is not cleaned again until a restart. A metric counts such
logs, because their size grows.

Source: LogCleaner of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import structlog
from typing_extensions import override

from core.errors import InvalidInputError
from local_tier.cleaner.cleaner import NO_LIMIT, Cleaner, CleanerStats, Throttler
from local_tier.errors import (
    CleanerStoppedError,
    CleaningAbortedError,
    CleaningFailedError,
    LogDirectoryOfflineError,
)
from object_format.dedupe import KeyTable
from object_format.dedupe.key_table import SLOT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.cleaner.log_cleaner_manager import LogCleanerManager
    from local_tier.cleaner.log_to_clean import LogToClean
    from local_tier.files.file_system import FileSystem
    from local_tier.topic_partition import TopicPartition

_log = structlog.get_logger(__name__)

MIN_TABLE_BYTES: Final = 64 * SLOT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """Kafka's `log.cleaner.*` settings, with their names and defaults, for all threads of a cleaner.

    `io_buffer_bytes` is the size of the reads of each pass, over all threads. There is no load factor: the
    key table is always filled up to 95 %, and holds more than twice as many keys per byte.
    """

    threads: int = 1
    dedupe_buffer_bytes: int = 128 * 2**20
    io_buffer_bytes: int = 4 * 2**20
    io_max_bytes_per_second: float = NO_LIMIT
    backoff_ms: int = 15_000

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InvalidInputError("the log cleaner needs at least one thread")
        if self.dedupe_buffer_bytes // self.threads < MIN_TABLE_BYTES:
            raise InvalidInputError(
                f"{self.dedupe_buffer_bytes} bytes of dedupe buffer are too few for {self.threads} threads",
                remedy="raise the dedupe buffer or use fewer threads",
            )
        if self.io_buffer_bytes < 1 or self.io_max_bytes_per_second <= 0 or self.backoff_ms < 0:
            raise InvalidInputError("sizes, rates and backoff times of the log cleaner must be positive")

    def divided(self, count: int) -> CleanerConfig:
        """Return the configuration of each of `count` cleaners that share the memory and the rate."""
        return replace(
            self,
            dedupe_buffer_bytes=max(self.dedupe_buffer_bytes // count, self.threads * MIN_TABLE_BYTES),
            io_buffer_bytes=max(self.io_buffer_bytes // count, 1),
            io_max_bytes_per_second=self.io_max_bytes_per_second / count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerMetrics:
    """Kafka's gauges of the cleaner. Totals count since the cleaner was created."""

    max_compaction_delay_secs: float
    max_dirty_percent: int
    time_since_last_run_ms: int
    dead_thread_count: int
    uncleanable_partitions: dict[str, int]
    uncleanable_bytes: dict[str, int]
    cleans_total: int
    bytes_read_total: int
    bytes_written_total: int


def combined(found: Sequence[CleanerMetrics]) -> CleanerMetrics:
    """Return the metrics of several cleaners: the worst gauge of all, and the sum of totals."""
    worst = max
    values: dict[str, Any] = {}
    for name in CleanerMetrics.__slots__:
        each = [getattr(one, name) for one in found]
        if isinstance(each[0], dict):
            values[name] = {key: value for one in each for key, value in one.items()}
        else:
            values[name] = sum(each) if name in _SUMMED else worst(each)
    return CleanerMetrics(**values)


_SUMMED: Final = frozenset(
    {
        "dead_thread_count",
        "cleans_total",
        "bytes_read_total",
        "bytes_written_total",
    }
)


class LogCleaner:
    """The cleaner's threads. Tests call `clean_once` on their own thread instead."""

    def __init__(
        self,
        config: CleanerConfig,
        manager: LogCleanerManager,
        *,
        file_system: FileSystem,
        clock: Clock,
        ids: Ids,
        on_failure: Callable[[Path, OSError], None],
    ) -> None:
        self._config = config
        self._manager = manager
        self._file_system = file_system
        self._clock = clock
        self._ids = ids
        self._on_failure = on_failure
        self._throttler = Throttler(clock, config.io_max_bytes_per_second)
        self._stopping = threading.Event()
        self._workers: list[_Worker] = []
        self._cleans = self._bytes_read = self._bytes_written = 0
        self._uncleanable_bytes: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def manager(self) -> LogCleanerManager:
        """The state that keeps cleaning and other operations apart."""
        return self._manager

    def start(self) -> None:
        """Start the threads."""
        self._stopping.clear()
        self._workers = [_Worker(self, index) for index in range(self._config.threads)]
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        """Abort all cleanings, and wait for the threads."""
        self._stopping.set()
        for worker in self._workers:
            worker.join()
        self._workers = []

    def new_cleaner(self) -> Cleaner:
        """Return a cleaner for one thread, with its share of the memory."""
        return Cleaner(
            file_system=self._file_system,
            table=KeyTable(self._config.dedupe_buffer_bytes // self._config.threads),
            window_bytes=max(1, self._config.io_buffer_bytes // self._config.threads),
            throttler=self._throttler,
            clock=self._clock,
            ids=self._ids,
            check_done=self._check_done,
        )

    def clean_once(self, cleaner: Cleaner) -> bool:
        """Clean the filthiest log, then delete old segments of compacted logs.

        Return True if a log was cleaned.
        """
        try:
            cleaned = self._clean_filthiest(cleaner)
            self._delete_old_segments()
        except CleaningFailedError as error:
            _log.exception("log_uncleanable", log=str(error.topic_partition))
            self._manager.mark_uncleanable(error.directory, error.topic_partition)
            cleaned = False
        self._manager.remove_deleted_uncleanable()
        self._uncleanable_bytes = {
            str(path): self._manager.uncleanable_bytes(path) for path in self._manager.uncleanable()
        }
        return cleaned

    def run(self, cleaner: Cleaner) -> None:
        """Clean until the cleaner is stopped."""
        while not self._stopping.is_set():
            if not self.clean_once(cleaner):
                self._stopping.wait(self._config.backoff_ms / 1000)

    def metrics(self) -> CleanerMetrics:
        """Return the current gauges."""
        with self._lock:
            cleans, bytes_read, bytes_written = self._cleans, self._bytes_read, self._bytes_written
        uncleanable = self._manager.uncleanable()
        return CleanerMetrics(
            max_compaction_delay_secs=self._manager.max_compaction_delay_ms / 1000,
            max_dirty_percent=int(100 * self._manager.dirtiest_ratio),
            time_since_last_run_ms=self._clock.now_ms() - self._manager.last_run_ms,
            dead_thread_count=sum(not worker.is_alive() for worker in self._workers),
            uncleanable_partitions={str(path): len(logs) for path, logs in uncleanable.items()},
            uncleanable_bytes=self._uncleanable_bytes,  # measured by the last run: it needs the disk
            cleans_total=cleans,
            bytes_read_total=bytes_read,
            bytes_written_total=bytes_written,
        )

    def _clean_filthiest(self, cleaner: Cleaner) -> bool:
        cleanable = self._manager.grab_filthiest_log()
        if cleanable is None:
            return False
        log, end_offset = cleanable.log, cleanable.first_dirty_offset
        try:
            end_offset, stats = cleaner.clean(cleanable)
            self._record(cleanable, end_offset, stats)
        except (CleaningAbortedError, CleanerStoppedError, LogDirectoryOfflineError) as error:
            _log.debug("log_clean_stopped", log=str(log.topic_partition), reason=str(error))
        except OSError as error:
            self._on_failure(log.directory.parent, error)
        except Exception as error:
            raise CleaningFailedError(
                f"log {log.topic_partition} cannot be cleaned: {error}",
                directory=log.directory.parent,
                topic_partition=log.topic_partition,
            ) from error
        finally:
            self._manager.end_cleaning(log, end_offset)
        return True

    def _delete_old_segments(self) -> None:
        logs = self._manager.begin_deletions()
        try:
            for log in logs:
                try:
                    log.delete_old_segments()
                except LogDirectoryOfflineError as error:
                    _log.debug("segment_deletion_stopped", log=str(log.topic_partition), reason=str(error))
                except Exception as error:
                    raise CleaningFailedError(
                        f"old segments of log {log.topic_partition} cannot be deleted: {error}",
                        directory=log.directory.parent,
                        topic_partition=log.topic_partition,
                    ) from error
        finally:
            self._manager.end_deletions(logs)

    def _check_done(self, log: TopicPartition) -> None:
        if self._stopping.is_set():
            raise CleanerStoppedError("the log cleaner is stopping")
        self._manager.check_aborted(log)

    def _record(self, cleanable: LogToClean, end_offset: int, stats: CleanerStats) -> None:
        with self._lock:
            self._cleans += 1
            self._bytes_read += stats.bytes_read
            self._bytes_written += stats.bytes_written
        _log.debug(
            "log_cleaned",
            log=str(cleanable.log.topic_partition),
            first_dirty_offset=cleanable.first_dirty_offset,
            end_offset=end_offset,
            records_in=stats.records_read,
            records_out=stats.records_written,
            bytes_in=stats.bytes_read,
            bytes_out=stats.bytes_written,
            seconds=round(stats.seconds, 3),
        )
        if stats.records_invalid:
            _log.warning(
                "keyless_records_dropped",
                log=str(cleanable.log.topic_partition),
                records=stats.records_invalid,
            )


class _Worker(threading.Thread):
    def __init__(self, owner: LogCleaner, index: int) -> None:
        super().__init__(name=f"log-cleaner-{index}", daemon=True)
        self._owner = owner

    @override
    def run(self) -> None:
        try:
            self._owner.run(self._owner.new_cleaner())
        except Exception:  # noqa: BLE001  # a metric counts dead threads, and the others go on
            _log.exception("log_cleaner_thread_died", thread=self.name)
