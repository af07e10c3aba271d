"""The agent's local logs as one part of its process: opened first, closed last.

Without log directories it serves no local topic and caches no tail.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.local_topics.append_router import AppendRouter
from agent.local_topics.disks.disk_pools import DiskPools
from agent.local_topics.disks.log_metrics import LocalLogCollector
from agent.local_topics.disks.storage import LocalStorage, StorageIdentity, free_directory, stored_node_id
from agent.local_topics.leaders import LeaderDirectory, record_directories
from agent.local_topics.local_topics import LocalTopics
from agent.local_topics.moves.log_mover import LogMover
from agent.local_topics.moves.move_throttle import MoveThrottle
from agent.local_topics.partition_locks import PartitionLocks
from agent.local_topics.reader import LocalLogReader
from agent.local_topics.tail_cache import TailCache
from agent.local_topics.transactions.marker_writer import MarkerWriter
from agent.local_topics.transactions.transaction_verifier import TransactionVerifier
from catalog.model import PartitionId
from core.errors import InvalidInputError, SiltstoneError
from core.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path
    from uuid import UUID

    from agent.cluster.brokers import Brokers
    from agent.cluster.catalog_epoch import CatalogEpoch
    from agent.cluster.topic_directory import TopicDirectory
    from agent.read.commit_notifier import CommitNotifier
    from agent.runtime.metrics import MetricReaders
    from agent.runtime.pools import Pools
    from agent.settings import AgentSettings
    from agent.write.failed_producers import FailedProducers
    from agent.write.write_path import WritePath
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids

_TRIES = 4
_log = structlog.get_logger(__name__)


class LocalLogService:
    """The tail cache, and the local topics that this agent leads. Belongs to the event loop.

    `tail_cache` receives commits, `reader` serves the read path, and `storage` has the logs while they are
    open.
    """

    def __init__(
        self,
        *,
        settings: AgentSettings,
        catalog: Catalog,
        directory: TopicDirectory,
        pools: Pools,
        clock: Clock,
        ids: Ids,
        epoch: CatalogEpoch,
        failed_producers: FailedProducers,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._pools = pools
        self._clock = clock
        self._ids = ids
        self.storage: LocalStorage | None = None
        self._opening: LocalStorage | None = None
        self._local: LocalTopics | None = None
        self._directory = directory
        self._epoch = epoch
        self._failed_producers = failed_producers
        self._loop = asyncio.get_running_loop()
        self._announcing: asyncio.Task[None] | None = None
        self._announces_again = False
        self.markers: MarkerWriter | None = None
        self.node_id = -1
        self.tail_cache = TailCache(
            directory, max_pending_bytes=settings.max_tail_cache_pending_bytes, epoch=epoch
        )
        self.reader = LocalLogReader(self.tail_cache)

    def create_router(self, write_path: WritePath) -> AppendRouter:
        """Return the router of appends between `write_path` and the local topics."""
        self._appends = AppendRouter(write_path)
        return self._appends

    def restore_lost(self) -> None:
        """Create or undelete the topics of open logs that a failover has lost, and lead their partitions.

        Blocks.
        """
        if self.storage is not None:
            self.storage.restore_lost()

    async def open(self) -> int:
        """Open the local logs; return the node id, which used disks have stored."""
        root = self._settings.local_root
        if root is None:
            return await self._open(self._settings.local_directories)
        for _ in range(_TRIES):
            directory = await asyncio.to_thread(free_directory, root)
            try:
                return await self._open((directory,))
            except InvalidInputError:  # another agent locked it first
                continue
        return await self._open((await asyncio.to_thread(free_directory, root),))

    async def _open(self, directories: Sequence[Path]) -> int:
        known = await asyncio.to_thread(stored_node_id, directories)
        if known is None:
            known = await self._pools.catalog.run(self._catalog.brokers.new_node_id)
        self.node_id = known
        if directories:
            cluster_id = await self._pools.catalog.run(self._catalog.brokers.cluster_id)
            storage = LocalStorage(
                directories,
                StorageIdentity(cluster_id=str(cluster_id), node_id=known),
                topics=self._catalog.topics,
                deletions=self._catalog.deletions,
                lost=self._catalog.topics.lost,
                leaders=self._catalog.local_leaders,
                clock=self._clock,
                ids=self._ids,
                epoch=lambda: self._epoch.current,
                settings=self._settings.local_tier,
            )
            self._opening = storage
            # Not in a bounded pool: recovery may take long and must not be interrupted.
            await asyncio.to_thread(storage.open)
            self.storage = storage
            self._disks = DiskPools(
                directories,
                threads=self._settings.disk_threads,
                max_waiting=self._settings.max_waiting_calls,
                max_append_bytes=self._settings.max_local_append_bytes,
                min_share_bytes=self._settings.max_request_bytes,
            )
            self.reader.open(storage.manager, self._disks)
        return known

    @property
    def is_enabled(self) -> bool:
        """Return True if this agent has log directories."""
        return self.storage is not None

    async def lead_partitions(self, brokers: Brokers, commit_notifier: CommitNotifier) -> LeaderDirectory:
        """Serve local topics as the node of `brokers`, if there are disks; return the leader directory."""
        leaders = LeaderDirectory(self._catalog.local_leaders, pool=self._pools.catalog, clock=self._clock)
        self._epoch.on_change(leaders.clear)
        if self.storage is None:
            return leaders
        table, manager = self._catalog.local_leaders, self.storage.manager
        await self._pools.catalog.run(self.storage.found_logs.claim_open)
        await self._pools.catalog.run(partial(table.begin_epochs, self.node_id))
        recorded = await self._pools.catalog.run(partial(record_directories, table, self.node_id, manager))
        changes = PartitionLocks()
        mover = LogMover(
            manager,
            leaders,
            node_id=self.node_id,
            disks=self._disks,
            changes=changes,
            throttle=MoveThrottle(
                self._catalog.broker_configs, self.node_id, pool=self._pools.catalog, clock=self._clock
            ),
            clock=self._clock,
            ids=self._ids,
        )
        verifier = TransactionVerifier(
            self._catalog.local_transactions, pool=self._pools.catalog, disks=self._disks
        )
        self._local = LocalTopics(
            manager,
            leaders,
            brokers,
            pool=self._pools.disks,
            disks=self._disks,
            commit_notifier=commit_notifier,
            changes=changes,
            mover=mover,
            verifier=verifier,
            failed_producers=self._failed_producers,
            sync_soon=self.storage.sync_soon,
            known_topics=self.storage.known_topics,
            recorded_directories=recorded,
        )
        self.markers = MarkerWriter(
            self._catalog.local_transactions,
            self._catalog.deletions,
            table,
            node_id=self.node_id,
            manager=manager,
            logs=self._local,
            mover=mover,
            verifier=verifier,
            directory=self._directory,
            pool=self._pools.catalog,
            disks=self._disks,
            commit_notifier=commit_notifier,
            clock=self._clock,
            outage=Outage("markers of transactions in local logs", clock=self._clock, ids=self._ids),
        )
        self._epoch.on_change(self.markers.check_again)
        manager.reopening.on_reopen = self._note_reopened
        self.markers.start()
        self.reader.local_topics = self._appends.local_topics = self._local
        return leaders

    def notify_markers(self) -> None:
        """Note that markers may be pending. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake_markers)

    def _note_reopened(self, topic_id: UUID, partition: int) -> None:
        """Note that a log is served again. May be called from any thread."""
        if self.markers is not None:
            note = partial(self.markers.reopened, PartitionId(topic_id, partition))
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(note)

    def _wake_markers(self) -> None:
        if self.markers is not None:
            self.markers.wake()

    def announce_markers(self, leaders: Collection[int]) -> None:
        """Let the nodes look for pending markers. Announcements that wait are sent as one."""
        if self.node_id in leaders:
            self._wake_markers()
        if any(each != self.node_id for each in leaders):
            self._announces_again = True
            if self._announcing is None:
                self._announcing = self._loop.create_task(self._announce(), name="announce markers")

    async def _announce(self) -> None:
        try:
            while self._announces_again:
                self._announces_again = False
                await self._pools.catalog.run(self._catalog.local_transactions.announce)
        except SiltstoneError as error:
            _log.warning("pending markers could not be announced", reason=error.message)  # leaders also poll
        finally:
            self._announcing = None

    async def stop(self) -> None:
        """Complete the pending appends, write the tail cache, and close the logs.

        Calls wait for descriptors and maps only until the appends are complete, or the caller gives up.
        Otherwise the event loop, which waits for the threads of the disks, and the end of the process would
        wait, too.
        """
        try:
            if self._announcing is not None:
                await self._announcing
            if self.markers is not None:
                await self.markers.stop()
            if self._local is not None:
                await self._local.mover.stop()
                await self._local.stop()
        finally:
            if self.storage is not None:
                self.storage.end_waiting()
        await self.tail_cache.stop()
        storage, self.storage = self.storage, None
        if storage is not None:
            self._opening = None
            self._disks.close()
            await asyncio.to_thread(storage.close)

    def log_collector(self) -> LocalLogCollector:
        """Return a collector of the metrics of the log manager, which also has values while it opens logs."""
        return LocalLogCollector(lambda: None if self._opening is None else self._opening.manager.metrics())

    def gauges(self) -> MetricReaders:
        """Return the gauges of leaders, moves and the tail cache."""
        return {
            "siltstone_local_directories_away": (
                "Log directories with local topics of this node that are not open",
                lambda: 0 if self._local is None else self._local.directories_away,
            ),
            "siltstone_local_moves": (
                "Logs that move or wait to move to another log directory",
                lambda: 0 if self._local is None else self._local.mover.running,
            ),
            "siltstone_local_disk_calls": (
                "Running and waiting calls of the threads of the log directories",
                lambda: 0 if self.storage is None else self._disks.pending,
            ),
            "siltstone_tail_cache_pending_bytes": (
                "Committed bytes that are not written to the tail cache yet",
                lambda: self.tail_cache.pending_bytes,
            ),
        }

    def counters(self) -> MetricReaders:
        """Return the counters of moves, markers and the tail cache."""
        return {
            "siltstone_local_moved_logs": (
                "Logs that have moved to another log directory",
                lambda: 0 if self._local is None else self._local.mover.moved_logs,
            ),
            "siltstone_local_moved_bytes": (
                "Bytes that moves of logs have copied",
                lambda: 0 if self._local is None else self._local.mover.moved_bytes,
            ),
            "siltstone_local_transaction_markers": (
                "Markers of transactions that were appended to local logs",
                lambda: 0 if self.markers is None else self.markers.written_markers,
            ),
            "siltstone_local_unknown_transactions": (
                "Transactions that the catalog has lost, and that were aborted in local logs",
                lambda: 0 if self.markers is None else self.markers.aborted_unknown,
            ),
            "siltstone_local_failed_moves": (
                "Moves of logs that have failed; the log stays where it was",
                lambda: 0 if self._local is None else self._local.mover.failed_moves,
            ),
            "siltstone_tail_cache_hits": (
                "Fetches and lookups that were served from the tail cache",
                lambda: self.reader.tail_cache_hits,
            ),
            "siltstone_tail_cache_written_bytes": (
                "Bytes written to the tail cache",
                lambda: self.tail_cache.written_bytes,
            ),
            "siltstone_tail_cache_restarts": (
                "Partitions of the tail cache that restarted after a commit of another agent",
                lambda: self.tail_cache.restarts,
            ),
            "siltstone_tail_cache_dropped_files": (
                "Committed files that the tail cache skipped: too many bytes were pending, or files open",
                lambda: self.tail_cache.dropped_files,
            ),
        }
