"""Reads from this agent's disks: local topics, and the tail cache of object topics.

The tail cache has the batches as they were produced. Of a compacted topic these are the batches of the log
only while the offsets lie in ingestion files, which is known once the extents are. Of a topic that was
compacted earlier, they are those of the log from the first dirty offset on.
"""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from agent.cluster.errors import DiskLateError
from agent.local_topics.local_topics import no_local_disks_error
from agent.read.fetch_plan import with_room
from agent.runtime.errors import BusyError
from catalog.model import FileKind
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.local_topics.disks.disk_pools import DiskPools
    from agent.local_topics.local_topics import LocalTopics
    from agent.local_topics.tail_cache import TailCache
    from agent.read.fetch_memory import HeldRecords
    from agent.read.fetch_plan import Cursor
    from catalog.model import Extent, PartitionState, Topic
    from core.errors import SiltstoneError
    from local_tier.log.leader_epoch_file_cache import EpochEntry
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager
    from local_tier.producers.producer_state_entry import ProducerStateEntry
    from local_tier.segment.time_index import TimestampOffset

T = TypeVar("T")
_LOOKUP_SECONDS: Final = 2.0
"""How long a lookup by time in the tail cache waits for a disk that hangs. Objects have the same records."""
_MIN_DISK_SECONDS: Final = 0.1
"""The least time that a read gets, also if other disks have used up the time of the fetch."""


class LogSize(NamedTuple):
    """The size of a log in bytes, or of a copy that will replace it, and by how many offsets it is behind."""

    name: TopicPartition
    size: int
    offset_lag: int = 0
    is_future: bool = False


class LocalLogReader:
    """Reads for the cursors of fetches. Belongs to the event loop. Without disks it serves nothing.

    `tail_cache_hits` counts the reads that the tail cache served instead of the object store. While a
    directory hangs, the tail cache there is not used, and its local topics have no records to fetch.
    """

    def __init__(self, tail_cache: TailCache) -> None:
        self._tail_cache = tail_cache
        self.local_topics: LocalTopics | None = None
        self.tail_cache_hits = 0
        self._manager: LogManager | None = None
        self._disks: DiskPools | None = None

    def open(self, manager: LogManager, disks: DiskPools) -> None:
        """Start to use the logs of `manager`, with the threads of `disks`."""
        self._manager, self._disks = manager, disks
        self._tail_cache.open(manager)

    async def sizes(self) -> dict[str, list[LogSize]]:
        """Return the size of each log by directory, and of each copy that will replace a log."""
        manager = self._manager
        if manager is None:
            return {}
        found: dict[str, list[LogSize]] = {str(path): [] for path in manager.live_directories}
        ends = {}
        for log in manager.logs():
            ends[log.topic_partition] = log.log_end_offset
            found.setdefault(str(log.directory.parent), []).append(LogSize(log.topic_partition, log.size))
        for log in manager.future_logs():
            lag = max(ends.get(log.topic_partition, 0) - log.log_end_offset, 0)
            found.setdefault(str(log.directory.parent), []).append(
                LogSize(log.topic_partition, log.size, offset_lag=lag, is_future=True)
            )
        return found

    def directory_at(self, path: str) -> Path | None:
        """Return the log directory with a path, as `sizes` shows it, or None. It may be offline."""
        configured = () if self._manager is None else self._manager.directories
        return next((each for each in configured if str(each) == path), None)

    async def space(self, directory: str) -> tuple[int, int]:
        """Return the total and the free bytes of a directory's volume, or -1 if they are unknown."""
        assert self._disks is not None
        return await self._disks.at(Path(directory)).run(partial(_space, directory))

    def high_watermark(self, topic: str, partition: int) -> int | None:
        """Return the high watermark of a partition of a local topic, or None unless this agent has its log.

        Any thread may call it.
        """
        log = None if self._manager is None else self._manager.get(TopicPartition(topic, partition))
        return None if log is None else log.high_watermark

    @property
    def offline(self) -> list[str]:
        """The directories that have failed."""
        return [] if self._manager is None else [str(path) for path in self._manager.offline_directories]

    async def find_bounds(self, cursors: Sequence[Cursor]) -> list[Cursor]:
        """Set the states or errors of the cursors of local topics, and return the other cursors."""
        topics = {
            each.fetch.topic.topic_id: each.fetch.topic for each in cursors if each.fetch.topic.is_local
        }
        if self.local_topics is not None and len(topics) > 1:
            await self.local_topics.find_leaders(list(topics.values()))
        for cursor in cursors:
            if cursor.fetch.topic.is_local:
                if self.local_topics is None:
                    cursor.error = no_local_disks_error(cursor.fetch.topic.name)
                else:
                    await self.local_topics.find_bounds(cursor)
        return [cursor for cursor in cursors if not cursor.fetch.topic.is_local]

    async def serve(
        self, cursors: Sequence[Cursor], max_bytes: int, held: HeldRecords, disk_deadline: float
    ) -> None:
        """Serve cursors that need no extents, up to `max_bytes` including what is served already.

        If memory is full, the response ends with the records that it has. Raises `BusyError` if it has none.
        It waits for disks that hang until about `disk_deadline`, in the loop's time. They serve no records.
        """
        is_full = False
        for cursor, left in with_room(cursors, max_bytes):
            if is_full:
                cursor.served.is_cut = True
                continue
            limit = min(cursor.fetch.max_bytes, left)
            if cursor.fetch.topic.is_local:
                if self.local_topics is not None:
                    await self.local_topics.serve(cursor, limit, _seconds_until(disk_deadline))
            elif _is_as_produced(cursor) and cursor.state is not None:
                end = cursor.state.high_watermark
                await self._serve_from_tail_cache(cursor, limit, end, disk_deadline)
            if left == max_bytes:
                held.require(cursor.served.size)
            elif cursor.served.size > limit:
                cursor.drop_served()
            elif not held.add(cursor.served.size):
                cursor.drop_served()
                is_full = True

    async def serve_within_extents(
        self, cursors: Sequence[Cursor], held: HeldRecords, disk_deadline: float
    ) -> None:
        """Serve cursors that need extents, if the next one is not compacted yet. It waits as `serve` does."""
        for cursor in cursors:
            extents = cursor.needed_extents() if cursor.needs_extents else []
            if extents and not cursor.served.runs and extents[0].file_kind is FileKind.INGESTION:
                end = extents[0].last_offset + 1
                await self._serve_from_tail_cache(cursor, cursor.limit, end, disk_deadline)
                held.require(cursor.served.size)

    async def _serve_from_tail_cache(
        self, cursor: Cursor, limit: int, end: int, disk_deadline: float
    ) -> None:
        fetch, offset = cursor.fetch, cursor.served.next_offset
        log = self._tail_cache.log_with(fetch.topic, fetch.partition, offset)
        if log is None:
            return
        plain_only = fetch.committed_only and not cursor.needs_extents
        read = partial(
            self._tail_cache.read, fetch.topic, fetch.partition, offset, limit, end, plain_only=plain_only
        )
        found = await self._read_in_time(log, read, _seconds_until(disk_deadline))
        if found is not None:
            self.tail_cache_hits += 1
            cursor.served.take(found)

    async def _read_in_time(self, log: UnifiedLog, read: Callable[[], T], seconds: float) -> T | None:
        """Return the result of a read of the tail cache, or None if its disk hangs or is busy."""
        if self._disks is None:
            return None
        try:
            return await self._disks.read_in_time(log, read, seconds=seconds)
        except (BusyError, DiskLateError):
            return None

    async def offset_in_extent(
        self, topic: Topic, extent: Extent, timestamp: int, log_start_offset: int
    ) -> TimestampOffset | None:
        """Return the first record at or after a timestamp if it lies in `extent` and is in the tail cache."""
        first = max(extent.base_offset, log_start_offset)
        offset_count = extent.last_offset - extent.base_offset + 1
        is_as_produced = extent.file_kind is FileKind.INGESTION or extent.record_count == offset_count
        log = self._tail_cache.log_with(topic, extent.partition, first) if is_as_produced else None
        if log is None:
            return None
        find = partial(self._tail_cache.find_by_time, topic, extent.partition, timestamp, first)
        found = await self._read_in_time(log, find, _LOOKUP_SECONDS)
        if found is None or found.offset > extent.last_offset:
            return None
        self.tail_cache_hits += 1
        return found

    async def offset_by_time(self, topic: Topic, partition: int, timestamp: int) -> TimestampOffset | None:
        """Return the first record of a local topic at or after a timestamp."""
        return await self._local_of(topic).query(
            topic, partition, lambda log: log.offset_for_timestamp(timestamp)
        )

    async def newest(self, topic: Topic, partition: int) -> TimestampOffset | None:
        """Return the first record of a local topic with the largest timestamp."""
        return await self._local_of(topic).query(topic, partition, lambda log: log.offset_of_max_timestamp())

    async def delete_records(self, wanted: Sequence[tuple[Topic, int, int]]) -> list[int | SiltstoneError]:
        """Do what `LocalTopics.delete_records` does. Without disks, return an error for each partition."""
        if self.local_topics is None:
            return [no_local_disks_error(topic.name) for topic, _, _ in wanted]
        return await self.local_topics.delete_records(wanted)

    async def end_of_epoch(self, topic: Topic, partition: int, epoch: int) -> EpochEntry:
        """Return the last epoch of a local topic at or before `epoch` and its end offset; -1 if unknown."""
        return await self._local_of(topic).query(
            topic, partition, lambda log: log.end_offset_for_epoch(epoch)
        )

    async def move(self, topic: Topic, partition: int, directory: Path) -> None:
        """Begin to move the log of a local topic to another log directory, or cancel such a move."""
        await self._local_of(topic).move(topic, partition, directory)

    async def producers(self, topic: Topic, partition: int) -> dict[int, ProducerStateEntry]:
        """Return the producer states of a local topic's log, by producer id."""
        return await self._local_of(topic).query(topic, partition, lambda log: log.known_producers())

    async def state(self, topic: Topic, partition: int) -> PartitionState:
        """Return the bounds of a partition of a local topic."""
        return await self._local_of(topic).state(topic, partition)

    def _local_of(self, topic: Topic) -> LocalTopics:
        if self.local_topics is None:
            raise no_local_disks_error(topic.name)
        return self.local_topics


def _is_as_produced(cursor: Cursor) -> bool:
    """Return True if the log has all records from the cursor's position on that were ever committed."""
    state, offset = cursor.state, cursor.served.next_offset
    return state is not None and offset >= state.first_dirty_offset and not cursor.needs_extents


def _seconds_until(disk_deadline: float) -> float:
    return max(disk_deadline - asyncio.get_running_loop().time(), _MIN_DISK_SECONDS)


def _space(path: str) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return -1, -1
    return usage.total, usage.free
