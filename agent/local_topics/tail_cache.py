"""Cache of the tail of object topics on this agent's disks, for readers that are behind the tail in memory.

The cached log of a partition has no gaps. Batches that this agent commits directly after its end are
appended, as on a follower. If another agent has committed in between, the cached log restarts at the new
batches. Between its log start offset and its end, it therefore has all records of the partition. It is
bounded by the topic's `local.retention.*`. Losing it loses no data. It restarts in each leader epoch, and is
not read in a later one, because the log may have lost the last batches of an earlier epoch.

One thread writes, and the bytes that wait for it are bounded. Files beyond the bound are skipped, and the log
restarts after them. The same holds while the process has many files open or mapped: each log needs some, and
local topics could not be written without them. Neither producers nor the tail in memory wait for the disk.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.local_topics.disks.log_config import log_config_of
from agent.read.hot_tail import TailRead
from agent.runtime.process_resources import may_map_more_files, may_open_more_files, open_file_limit
from agent.runtime.work_pool import WorkPool
from core.errors import SiltstoneError
from local_tier.files.file_system import mapped_file_count
from local_tier.topic_partition import TopicPartition
from object_format.record_batch.headers import (
    has_transactional_batches,
    set_base_offsets,
    trim_batches,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.cluster.catalog_epoch import CatalogEpoch
    from agent.cluster.commits import AppendedBatches, CommittedFile
    from agent.cluster.topic_directory import TopicDirectory
    from catalog.model import SectionResult, Topic
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager
    from local_tier.segment.time_index import TimestampOffset

_log = structlog.get_logger(__name__)
_Run = tuple[int, list[memoryview]]
_Section = tuple["Topic", int, int, list[_Run]]
"""Topic, partition, leader epoch, and the runs to append."""

_MAX_PENDING_FILES = 1_000


class TailCache:
    """The tail cache. `committed` belongs to the event loop; reads are thread-safe."""

    def __init__(self, directory: TopicDirectory, *, max_pending_bytes: int, epoch: CatalogEpoch) -> None:
        self._manager: LogManager | None = None
        self._epoch = epoch
        self._directory = directory
        self._limit = max_pending_bytes
        self._pool = WorkPool("tail cache", threads=1, max_waiting=_MAX_PENDING_FILES)
        self._writes: set[asyncio.Task[bool]] = set()
        self.pending_bytes = 0
        self.written_bytes = 0
        self.dropped_files = 0
        self.restarts = 0

    def open(self, manager: LogManager) -> None:
        """Start to use the logs of `manager`."""
        self._manager = manager

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Write the appended batches of a committed file in the background."""
        if self._manager is None:
            return
        size = sum(sum(map(len, section.batches)) for section in file.sections)
        if self.pending_bytes + size > self._limit or len(self._writes) >= _MAX_PENDING_FILES:
            self.dropped_files += 1
            return
        work: list[_Section] = []
        for section, result in zip(file.sections, results, strict=True):
            topic = self._directory.last_known_by_id(result.topic_id)
            if topic is not None:
                runs = _runs(section.appended(result), result.leader_epoch)
                if runs:
                    work.append((topic, result.partition, result.leader_epoch, runs))
        if not work:
            return
        self.pending_bytes += size
        write = asyncio.get_running_loop().create_task(
            self._pool.run(partial(self._write, self._manager, work))
        )
        self._writes.add(write)
        write.add_done_callback(partial(self._written, size))

    def _written(self, size: int, write: asyncio.Task[bool]) -> None:
        self.pending_bytes -= size
        self._writes.discard(write)
        if not write.cancelled() and write.exception() is None and not write.result():
            self.dropped_files += 1

    def _write(self, manager: LogManager, work: Sequence[_Section]) -> bool:
        """Write sections; return False if some were skipped because too many files are open or mapped."""
        may_write, is_complete = _may_use_more_files(), True
        for topic, partition, epoch, runs in work:
            if manager.get(TopicPartition(topic.name, partition)) is None:  # a new log opens several files
                may_write = _may_use_more_files()
            if not may_write:
                is_complete = False
                continue
            try:
                log = manager.get_or_create(
                    topic.name, topic.topic_id, partition, log_config_of(topic.config)
                )
                for base_offset, batches in runs:
                    self._append(manager, log, epoch, base_offset, batches)
            except (SiltstoneError, OSError) as error:
                _log.warning(
                    "the tail cache could not be written",
                    topic=topic.name,
                    partition=partition,
                    reason=str(error),
                )
        if not is_complete:
            _log.warning(
                "the tail cache skips batches, because the process has too many files open or mapped",
                open_file_limit=open_file_limit(),
                mapped_files=mapped_file_count(),
                remedy="raise the limit of open files (ulimit -n, LimitNOFILE=) or vm.max_map_count",
            )
        return is_complete

    def _append(
        self,
        manager: LogManager,
        log: UnifiedLog,
        epoch: int,
        base_offset: int,
        batches: Sequence[memoryview],
    ) -> None:
        if base_offset != log.log_end_offset or _latest_epoch(log) not in {epoch, None}:
            self.restarts += 1
            manager.truncate_fully(log.topic_partition, base_offset)
        data = b"".join(batches)  # one copy, so that the log writes the run with one call
        appended = log.append_as_follower(data)
        log.update_high_watermark(appended.last_offset + 1)
        self.written_bytes += len(data)

    def log_with(self, topic: Topic, partition: int, offset: int) -> UnifiedLog | None:
        """Return the log that has an offset in the cache, or None; without I/O."""
        log = self._log_of(topic, partition)
        has_offset = log is not None and log.log_start_offset <= offset < log.high_watermark
        return log if has_offset else None

    def read(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        max_bytes: int,
        end: int,
        *,
        plain_only: bool = False,
    ) -> TailRead | None:
        """Return batches from the one with `offset` on, below `end`; None if the cache does not have it.

        With `plain_only`, return None also if one of them is transactional: a compaction may have removed it.
        """
        log = self._log_of(topic, partition)
        if log is None or not log.log_start_offset <= offset < log.high_watermark:
            return None
        try:
            found = log.read(offset, max_bytes)
        except (SiltstoneError, OSError):  # the log restarted, or its disk has failed
            return None
        if plain_only and has_transactional_batches(found.data):
            return None
        if found.next_offset <= end:
            return TailRead([found.data], len(found.data), found.next_offset) if found.data else None
        data = trim_batches(found.data, first_offset=offset, last_offset=end - 1)
        return TailRead([data], len(data), end) if data else None

    def find_by_time(
        self, topic: Topic, partition: int, timestamp: int, first_offset: int
    ) -> TimestampOffset | None:
        """Return the first record from `first_offset` on at or after a timestamp; None if not cached."""
        log = self._log_of(topic, partition)
        if log is None or not log.log_start_offset <= first_offset < log.high_watermark:
            return None
        try:
            return log.offset_for_timestamp(timestamp, first_offset)
        except (SiltstoneError, OSError):
            return None

    def _log_of(self, topic: Topic, partition: int) -> UnifiedLog | None:
        if self._manager is None:
            return None
        log = self._manager.get(TopicPartition(topic.name, partition))
        if log is None or log.topic_id != topic.topic_id:
            return None
        return log if _latest_epoch(log) in {self._epoch.current, None} else None

    async def idle(self) -> None:
        """Wait until everything that was committed is written."""
        while self._writes:
            await asyncio.wait(self._writes)

    async def stop(self) -> None:
        """Write pending files and stop."""
        await self.idle()
        self._pool.close()


def _may_use_more_files() -> bool:
    return may_open_more_files() and may_map_more_files(mapped_file_count())


def _latest_epoch(log: UnifiedLog) -> int | None:
    """Return the leader epoch of a log's last batches, or None if it never had any."""
    epochs = log.leader_epochs
    return epochs[-1].epoch if epochs else None


def _runs(appended: AppendedBatches, leader_epoch: int) -> list[_Run]:
    """Return the appended batches with final offsets, in runs of consecutive offsets."""
    set_base_offsets(appended.batches, appended.base_offsets, leader_epoch)
    runs: list[_Run] = []
    expected = -1
    for batch, base, offset_count in zip(*appended, strict=True):
        if base != expected:
            runs.append((base, []))
        runs[-1][1].append(batch)
        expected = base + offset_count
    return runs
