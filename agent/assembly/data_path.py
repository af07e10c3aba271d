"""The path of records through an agent: from appends to committed files, and from there to fetches.

Appends to topics of the object store go through `WritePath`, those to local topics to `LocalLogService`.
Fetches look in memory first, then on the local disks, then in the object store.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.cluster.topic_directory import TopicDirectory
from agent.local_topics.service import LocalLogService
from agent.read.caches.block_cache import BlockCache
from agent.read.caches.cache_memory import CacheMemory
from agent.read.caches.catalog_cache import BoundsCache
from agent.read.caches.range_cache import RangeCache
from agent.read.commit_notifier import CommitNotifier
from agent.read.hot_tail import HotTail
from agent.read.log_lookup import LogLookup
from agent.read.memory_reads import MemoryReads
from agent.read.object_reader import ObjectReader
from agent.read.read_path import ReadPath
from agent.read.timestamp_lookup import TimestampLookup
from agent.runtime.retry import RetryPolicy
from agent.write.commit_listeners import AppendMetrics, CommitAnnouncer
from agent.write.failed_producers import FailedProducers
from agent.write.write_path import WritePath
from catalog.transactions.local_partitions import MARKER_CHANNEL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.assembly.resources import Resources
    from agent.cluster.session import Session
    from agent.runtime.health import CallHealth
    from agent.write.acknowledged_commits import AcknowledgedCommits


class DataPath:
    """The write path and the read path of one agent, and what both share.

    `channels` are the functions to call for notifications of other channels than those of commits.
    """

    def __init__(
        self,
        resources: Resources,
        session: Session,
        acknowledged: AcknowledgedCommits,
        store_health: CallHealth,
        channels: Mapping[str, Callable[[], None]],
    ) -> None:
        settings, catalog, pools = resources.settings, resources.catalog, resources.pools
        clock, ids = resources.clock, resources.ids
        # Identifies this agent in notifications of commits; its sessions may change.
        origin = ids.new_uuid()
        self.announcer = CommitAnnouncer(partial(catalog.commits.announce, origin=origin), pools.catalog)
        self.directory = TopicDirectory(
            catalog.topics, pool=pools.catalog, clock=clock, cache_ms=settings.topic_cache_ms
        )
        self.failed_producers = FailedProducers(clock)
        self.local_logs = LocalLogService(
            settings=settings,
            catalog=catalog,
            directory=self.directory,
            pools=pools,
            clock=clock,
            ids=ids,
            epoch=resources.epoch,
            failed_producers=self.failed_producers,
        )
        self.bounds_cache = BoundsCache(
            clock, ttl_ms=settings.bounds_cache_ms, limit=settings.max_cached_bounds
        )
        if settings.local_root is not None or settings.local_directories:
            channels = {**channels, MARKER_CHANNEL: self.local_logs.notify_markers}
        self.commit_notifier = CommitNotifier(
            catalog.watcher(ignored_origin=origin, listeners=dict(channels)),
            self.bounds_cache,
            outage=resources.outage("notifications of commits"),
        )
        self.tail = HotTail(settings.tail_bytes)
        self.write_path = self._create_write_path(resources, session, acknowledged, store_health)
        self.appends = self.local_logs.create_router(self.write_path)
        self.blocks = BlockCache(CacheMemory(settings.cache_bytes))
        self.reader = ObjectReader(
            resources.store,
            RangeCache(self.blocks.memory),
            pools,
            gap=settings.coalesce_gap_bytes,
            limit=settings.max_read_bytes,
            health=store_health,
        )
        self.timestamps = TimestampLookup(
            catalog.extents, self.reader, pools, settings, self.local_logs.reader
        )
        self._log_lookup = LogLookup(
            settings=settings,
            bounds=catalog.topics,
            extents=catalog.extents,
            bounds_cache=self.bounds_cache,
            pool=pools.lookups,
            clock=clock,
            epoch=resources.epoch,
            is_current=catalog.incarnations.is_current,
        )
        self.read_path = self._create_read_path(resources)
        self.memory_reads = MemoryReads(
            tail=self.tail,
            blocks=self.blocks,
            bounds=self.bounds_cache,
            budget=self.read_path.budget,
            commit_notifier=self.commit_notifier,
            clock=clock,
            metrics=resources.metrics,
            max_fetch_bytes=settings.max_fetch_bytes,
            poll_seconds=settings.poll_interval_ms / 1000,
        )

    def _create_write_path(
        self,
        resources: Resources,
        session: Session,
        acknowledged: AcknowledgedCommits,
        store_health: CallHealth,
    ) -> WritePath:
        settings, metrics = resources.settings, resources.metrics
        retry = RetryPolicy(
            attempts=settings.write_attempts,
            first_pause=settings.retry_pause_ms / 1000,
            max_pause=settings.max_retry_pause_ms / 1000,
            ids=resources.ids,
        )
        return WritePath(
            settings=settings,
            store=resources.store,
            log=resources.catalog.commits,
            session=session,
            pools=resources.pools,
            retry=retry,
            clock=resources.clock,
            ids=resources.ids,
            metrics=metrics,
            store_health=store_health,
            epoch=resources.epoch,
            failed_producers=self.failed_producers,
            # Tail and bounds before the notifier, so that woken fetches find the new records.
            listeners=(
                acknowledged,
                self.tail,
                self.bounds_cache,
                AppendMetrics(metrics),
                self.directory,
                self.local_logs.tail_cache,
                self.commit_notifier,
                self.announcer,
            ),
        )

    def _create_read_path(self, resources: Resources) -> ReadPath:
        return ReadPath(
            settings=resources.settings,
            log=self._log_lookup,
            tail=self.tail,
            blocks=self.blocks,
            local_reader=self.local_logs.reader,
            timestamps=self.timestamps,
            find_aborted=resources.catalog.transaction_lookups.aborted,
            reader=self.reader,
            commit_notifier=self.commit_notifier,
            pools=resources.pools,
            clock=resources.clock,
            metrics=resources.metrics,
        )

    def start(self) -> None:
        """Accept appends, and listen for the commits of other agents."""
        self.write_path.start()
        self.commit_notifier.start()

    def clear(self) -> None:
        """Drop everything that belongs to an earlier epoch of the catalog."""
        self.tail.clear()
        self.blocks.clear()
        self._log_lookup.clear()
        self.directory.clear()

    def running(self) -> dict[str, Callable[[], bool]]:
        """Return the essential parts, and whether they run."""
        parts: dict[str, Callable[[], bool]] = {
            "commits": lambda: self.write_path.is_running,
            "notifications": lambda: self.commit_notifier.is_running,
        }
        if (markers := self.local_logs.markers) is not None:
            parts["transaction_markers"] = lambda: markers.is_running
        return parts
