"""The local logs on the agent's disks, kept in step with the topics of the catalog.

A directory belongs to one node of one cluster permanently (`meta.properties`). Used directories therefore
determine the node id.

The log of a deleted local topic is set aside. It is opened again if the topic is undeleted, and deleted after
the catalog has confirmed that it cannot be. The log of a deleted object topic is only a copy of its tail, and
is deleted at once. If a failover has lost the creation of a local topic, it is created again. Any other log
without a topic is renamed to a stray and kept.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

from agent.local_tier_settings import LocalTierSettings
from agent.local_topics.disks.found_logs import FoundLogs
from agent.local_topics.disks.known_topics import KnownTopics
from agent.local_topics.disks.log_config import log_config_of
from agent.write.loss_recovery import log_restored_topics
from catalog.lifecycle.deletions import TopicAbsence
from catalog.model import PartitionId
from catalog.topics.local_leaders import UNASSIGNED
from core.errors import RetryableError, SiltstoneError
from core.outage import Outage
from local_tier.cleaner.log_cleaner import CleanerConfig
from local_tier.errors import CorruptCheckpointError, LogDirectoryOfflineError, ProcessLimitError
from local_tier.files.file_names import LOCK
from local_tier.files.file_system import RealFileSystem
from local_tier.files.metadata_files import read_meta_properties
from local_tier.files.process_limits import process_limits
from local_tier.manager.config import LogManagerConfig
from local_tier.manager.directory_services import DirectorySchedulers
from local_tier.manager.log_directories import DirectoryOwner
from local_tier.manager.log_manager import LogManager
from local_tier.manager.set_aside_logs import Disposal
from local_tier.scheduler import BackgroundScheduler
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from agent.local_topics.disks.found_logs import LeaderTable
    from catalog.model import Topic
    from catalog.topics.lost import RestoredTopic
    from core.clock import Clock
    from core.ids import Ids
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.set_aside_logs import SetAsideLog

_MAX_AGENTS = 1000
_MAX_TOPICS_PER_CALL = 1_000
_DISPOSALS = {
    TopicAbsence.UNKNOWN: Disposal.STRAY,
    TopicAbsence.DELETED: Disposal.WAIT,
    TopicAbsence.PURGED: Disposal.DELETE,
}
TOPIC_SYNC_MS = 5_000
MIN_SYNC_MS = 1_000


class TopicTable(Protocol):
    """The topics of the catalog."""

    def list(self) -> Sequence[Topic]:
        """Return all topics by name."""
        ...

    def by_ids(self, topic_ids: Sequence[UUID], /) -> Sequence[Topic]:
        """Return the topics with these distinct ids that exist."""
        ...


class DeletionTable(Protocol):
    """The deletions that the catalog has recorded."""

    def confirm_gone_topics(self, topic_ids: Collection[UUID]) -> Mapping[UUID, TopicAbsence]:
        """Return those of the topics that do not exist, and why."""
        ...

    def find_purged_topics(self, topic_ids: Collection[UUID]) -> Collection[UUID]:
        """Return those of the topics that seem to be purged; `confirm_gone_topics` confirms it."""
        ...


class LostTopicTable(Protocol):
    """The local topics whose creation or undeletion a failover of the catalog has lost."""

    def restore_local(self, topics: Sequence[Topic], epochs: Mapping[UUID, int]) -> Sequence[RestoredTopic]:
        """Create those that the catalog had in an earlier one of the `epochs`, and lacks; return these."""
        ...

    def undelete_local(
        self, node_id: int, leader_epochs: Mapping[PartitionId, int]
    ) -> Sequence[RestoredTopic]:
        """Undelete them, as the last leader epochs in the logs of a node show; return what became of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageIdentity:
    """The owner of the directories."""

    cluster_id: str
    node_id: int


def free_directory(root: Path, files: FileSystem | None = None) -> Path:
    """Return the first numbered directory below `root` that no process has locked.

    Agents may share a root.
    """
    files = files or RealFileSystem()
    root.mkdir(parents=True, exist_ok=True)
    for number in range(_MAX_AGENTS):
        path = root / str(number)
        path.mkdir(exist_ok=True)
        lock = files.lock(path / LOCK)
        if lock is not None:
            lock.release()
            return path
    return root / str(next(count(_MAX_AGENTS)))


def stored_node_id(directories: Sequence[Path], files: FileSystem | None = None) -> int | None:
    """Return the node id that `directories` belong to, or None if all are new.

    The first directory with a node id decides. A failed disk or a damaged `meta.properties` does not keep an
    agent from starting, unless only that disk could have the node id. Then it raises the error.
    """
    files = files or RealFileSystem()
    failure: OSError | CorruptCheckpointError | None = None
    for directory in directories:
        try:
            properties = read_meta_properties(files, directory)
        except (OSError, CorruptCheckpointError) as error:
            failure = error
            continue
        if properties is not None:
            return properties.node_id
    if failure is not None:
        raise failure
    return None


class LocalStorage:
    """The logs on this agent's disks. Blocking and thread-safe."""

    def __init__(
        self,
        directories: Sequence[Path],
        identity: StorageIdentity,
        *,
        topics: TopicTable,
        deletions: DeletionTable,
        lost: LostTopicTable,
        leaders: LeaderTable,
        clock: Clock,
        ids: Ids,
        epoch: Callable[[], int],
        settings: LocalTierSettings | None = None,
        files: FileSystem | None = None,
    ) -> None:
        self._topics = topics
        self._deletions = deletions
        self._lost = lost
        self.known_topics = KnownTopics(clock, epoch)
        """The topics of the logs. A request that creates a log notes its topic."""
        self._leaders = leaders
        self._node_id = identity.node_id
        self._schedulers = {
            path: DirectorySchedulers(
                tasks=BackgroundScheduler(clock), failures=BackgroundScheduler(clock, threads=1)
            )
            for path in directories
        }
        self._outage = Outage("topics of the local logs", clock=clock, ids=ids)
        self._early: set[Path] = set()
        """The directories that were compared with the topics early, because a request asked for it."""
        self._early_lock = threading.Lock()
        self._may_wait = False
        self.manager = LogManager(
            _manager_config(directories, identity, settings or LocalTierSettings()),
            file_system=files or RealFileSystem(),
            clock=clock,
            ids=ids,
            schedulers=self._schedulers,
        )
        self.found_logs = FoundLogs(leaders, identity.node_id, self.manager)

    def open(self) -> None:
        """Open every log, with recovery after a crash.

        Raises the error that keeps the disks from being used.
        """
        topics = _StartTopics(self._topics, partial(self._leaders.directories_of, self._node_id))
        reading = self.known_topics.begin_reading()
        for schedulers in self._schedulers.values():
            schedulers.tasks.start()
            schedulers.failures.start()
        try:
            self.manager.start(topics.config_of, lambda logs: self._disposals_at_start(logs, topics.by_id))
        except BaseException:
            self._stop_schedulers()
            raise
        # These logs have no followers, so all their records are committed. The checkpointed high watermark
        # may be older, and would hide records that were acknowledged before a crash.
        logs = self.manager.logs()
        for log in logs:
            log.update_high_watermark(log.log_end_offset)
        opened = {log.topic_id for log in logs}
        if opened:
            found = [topic for topic_id, topic in topics.by_id.items() if topic_id in opened]
            self.known_topics.note(found, reading)
        if self.manager.reopening.set_aside_logs():
            self.sync_topics()
        for path, schedulers in self._schedulers.items():
            schedulers.tasks.schedule_every(
                "local-topics",
                partial(self.sync_topics, path),
                first_delay_ms=TOPIC_SYNC_MS,
                period_ms=TOPIC_SYNC_MS,
            )
        process_limits.begin()
        self._may_wait = True

    def sync_topics(self, path: Path | None = None) -> None:
        """Update the configuration of the logs in a directory or all, and set aside those without a topic.

        Open the logs of undeleted topics again, and delete those of purged ones.

        The logs are listed before the topics: the topic of a listed log had been created before. So a topic
        that is not found was deleted, or the catalog has lost it. Only in the first case the log may go.
        Only the topics of these logs are looked up: the catalog may have many more.
        """
        logs = [
            log
            for log in self.manager.logs()
            if log.topic_id is not None and path in {None, log.directory.parent}
        ]
        reading = self.known_topics.begin_reading()
        try:
            waiting = self.manager.reopening.set_aside_logs(path)
            topics = self._topics_of(logs, waiting)
            restored = self._restore_lost(logs, topics)
            if restored:
                self.found_logs.claim_open()
            if restored is not None:
                topics = self._topics_of(logs, waiting)
            homeless = [log for log in logs if not _belongs_to(topics.get(_id_of(log)), log.topic_partition)]
            self._undelete(_latest_epochs(log for log in homeless if _id_of(log) not in topics))
            disposals = self._disposals([(log.topic_partition, _id_of(log)) for log in homeless], topics)
        except SiltstoneError as error:
            self._outage.failed(error)
            return
        decided = [(log, disposals.get((log.topic_partition, _id_of(log)))) for log in homeless]
        self.manager.disposal.set_all_aside(
            (log, disposal) for log, disposal in decided if disposal is not None
        )
        try:
            self._sync_set_aside(self.manager.reopening.set_aside_logs(path), topics)
        except SiltstoneError as error:
            self._outage.failed(error)
            return
        self._outage.succeeded()
        self.manager.marks.remove(path)  # also of the logs that requests have opened
        self.known_topics.note(topics.values(), reading)
        # Listed before the logs: a topic that is noted meanwhile stays.
        self.known_topics.forget(self.known_topics.ids() - {log.topic_id for log in self.manager.logs()})
        for log in logs:
            topic = topics.get(_id_of(log))
            if topic is None or not _belongs_to(topic, log.topic_partition):
                continue
            config = log_config_of(topic.config)
            if log.config != config:
                self.manager.update_config(log, config)

    def sync_soon(self, path: Path) -> None:
        """Do what `sync_topics` does for a directory, on another thread, at most once in `MIN_SYNC_MS`."""
        with self._early_lock:
            if path in self._early:
                return
            self._early.add(path)
        tasks = self._schedulers[path].tasks
        tasks.schedule_once("local-topics", partial(self.sync_topics, path))
        tasks.schedule_once("local-topics", partial(self._early.discard, path), MIN_SYNC_MS)

    def _topics_of(self, logs: Sequence[UnifiedLog], waiting: Sequence[SetAsideLog]) -> dict[UUID, Topic]:
        """Return the topics of logs and of logs that wait, as far as they exist, by id."""
        wanted = sorted({_id_of(log) for log in logs} | {log.topic_id for log in waiting})
        found: dict[UUID, Topic] = {}
        for start in range(0, len(wanted), _MAX_TOPICS_PER_CALL):
            topics = self._topics.by_ids(wanted[start : start + _MAX_TOPICS_PER_CALL])
            found.update((topic.topic_id, topic) for topic in topics)
        return found

    def _sync_set_aside(self, waiting: Sequence[SetAsideLog], topics: Mapping[UUID, Topic]) -> None:
        """Open the logs of undeleted topics again, and delete those of purged topics."""
        self._undelete(self._latest_epochs_of([log for log in waiting if log.topic_id not in topics]))
        absent = sorted({log.topic_id for log in waiting} - topics.keys())
        purged: set[UUID] = set()
        for start in range(0, len(absent), _MAX_TOPICS_PER_CALL):
            found = self._deletions.find_purged_topics(absent[start : start + _MAX_TOPICS_PER_CALL])
            confirmed = self._deletions.confirm_gone_topics(found) if found else {}
            purged |= {each for each, absence in confirmed.items() if absence is TopicAbsence.PURGED}
        directories = self._led_directories([log for log in waiting if log.topic_id in topics], topics)
        for log in waiting:
            partition = PartitionId(log.topic_id, log.partition)
            # Tried again when the directory is back, or the process may open files again.
            with suppress(LogDirectoryOfflineError, ProcessLimitError):
                if log.topic_id in purged:
                    self.manager.disposal.delete_set_aside(log)
                elif log.topic_id in topics and partition in directories:
                    self._reopen(log, topics[log.topic_id], directories[partition])

    def _led_directories(
        self, back: Sequence[SetAsideLog], topics: Mapping[UUID, Topic]
    ) -> Mapping[PartitionId, UUID | None]:
        """Return the directories of the partitions that this node leads; the topics of `back` exist."""
        if not back:
            return {}
        directories = self._leaders.directories_of(self._node_id)
        unled = [
            log
            for log in back
            if topics[log.topic_id].is_local and PartitionId(log.topic_id, log.partition) not in directories
        ]
        if self.found_logs.claim_waiting(unled):
            directories = self._leaders.directories_of(self._node_id)
        return directories

    def restore_lost(self) -> None:
        """Create or undelete the topics of open logs that a failover has lost, and lead their partitions.

        Reads no disk.
        """
        logs = [log for log in self.manager.logs() if log.topic_id is not None]
        topics = self._topics_of(logs, ())
        self._restore_lost(logs, topics)
        self._undelete(_latest_epochs(log for log in logs if _id_of(log) not in topics))
        self.found_logs.claim_open()

    def _restore_lost(
        self, logs: Iterable[UnifiedLog], topics: Mapping[UUID, Topic]
    ) -> Sequence[RestoredTopic] | None:
        """Create the topics of logs with records, or their partitions, that the catalog had and has lost.

        Return what was created; None if `topics` lack nothing. If nothing was created, the topics were
        deleted, or another agent has created them since `topics` were looked up.
        """
        lost = self.known_topics.lost((_id_of(log) for log in logs if log.log_end_offset > 0), topics)
        if not lost:
            return None
        epochs = {each.topic.topic_id: each.epoch for each in lost}
        restored = self._lost.restore_local([each.topic for each in lost], epochs)
        log_restored_topics(restored)
        return restored

    def _undelete(self, epochs: Mapping[PartitionId, int]) -> None:
        """Undelete the topics whose logs were written after the deletion, as their last epochs show.

        The next comparison opens the logs that wait, or a request does.
        """
        if epochs:
            log_restored_topics(self._lost.undelete_local(self._node_id, epochs))

    def _latest_epochs_of(self, waiting: Sequence[SetAsideLog]) -> dict[PartitionId, int]:
        """Return the last leader epoch in the logs of each partition."""
        epochs: dict[PartitionId, int] = {}
        for log in waiting:
            if (epoch := self.manager.reopening.latest_epoch(log)) is not None:
                partition = PartitionId(log.topic_id, log.partition)
                epochs[partition] = max(epoch, epochs.get(partition, -1))
        return epochs

    def _reopen(self, log: SetAsideLog, topic: Topic, recorded: UUID | None) -> None:
        directory_id = None if recorded == UNASSIGNED else recorded
        if topic.is_local and log == self.manager.reopening.find(log.topic_id, log.partition, directory_id):
            name = TopicPartition(topic.name, log.partition)
            self.manager.reopening.reopen(name, log, log_config_of(topic.config))

    def _disposals(
        self, logs: Collection[tuple[TopicPartition, UUID]], topics: Mapping[UUID, Topic]
    ) -> dict[tuple[TopicPartition, UUID], Disposal]:
        """Return what becomes of logs without a partition. One that the catalog may not list yet is left out.

        A log of a local topic that has another name now waits to be opened under it.
        """
        unknown = sorted({topic_id for _, topic_id in logs} - topics.keys())
        gone: dict[UUID, TopicAbsence] = {}
        for start in range(0, len(unknown), _MAX_TOPICS_PER_CALL):
            gone |= self._deletions.confirm_gone_topics(unknown[start : start + _MAX_TOPICS_PER_CALL])
        disposals = {}
        for name, topic_id in logs:
            topic = topics.get(topic_id)
            if topic is None:
                if topic_id in gone:
                    disposals[name, topic_id] = _DISPOSALS[gone[topic_id]]
            elif not topic.is_local:
                disposals[name, topic_id] = Disposal.DELETE
            else:
                disposals[name, topic_id] = Disposal.STRAY if topic.name == name.topic else Disposal.WAIT
        return disposals

    def _disposals_at_start(
        self, logs: Collection[tuple[TopicPartition, UUID]], topics: Mapping[UUID, Topic]
    ) -> Mapping[tuple[TopicPartition, UUID], Disposal]:
        disposals = self._disposals(logs, topics)
        for name, topic_id in logs:
            if (name, topic_id) not in disposals:
                raise RetryableError(
                    f"topic {topic_id} exists, but the catalog did not list it",
                    remedy="start the agent again; the catalog has just failed over",
                )
        return disposals

    def end_waiting(self) -> None:
        """Let no call wait for a descriptor or a memory map any more: calls that wait raise their errors."""
        if self._may_wait:
            self._may_wait = False
            process_limits.end()

    def close(self) -> None:
        """Flush and close all logs, and mark the directories as cleanly shut down."""
        self.end_waiting()
        self._stop_schedulers()
        self.manager.close()

    def _stop_schedulers(self) -> None:
        for schedulers in self._schedulers.values():
            schedulers.tasks.stop()
            schedulers.failures.stop()


def _manager_config(
    directories: Sequence[Path], identity: StorageIdentity, settings: LocalTierSettings
) -> LogManagerConfig:
    return LogManagerConfig(
        directories=tuple(directories),
        owner=DirectoryOwner(cluster_id=identity.cluster_id, node_id=identity.node_id),
        recovery_threads_per_directory=settings.num_recovery_threads_per_data_dir,
        retention_check_interval_ms=settings.log_retention_check_interval_ms,
        flush_check_interval_ms=settings.log_flush_scheduler_interval_ms,
        producer_expiry_check_interval_ms=settings.producer_id_expiration_check_interval_ms,
        recovery_point_checkpoint_interval_ms=settings.log_flush_offset_checkpoint_interval_ms,
        log_start_offset_checkpoint_interval_ms=settings.log_flush_start_offset_checkpoint_interval_ms,
        high_watermark_checkpoint_interval_ms=settings.replica_high_watermark_checkpoint_interval_ms,
        initial_task_delay_ms=settings.log_initial_task_delay_ms,
        cleaner=CleanerConfig(
            threads=settings.log_cleaner_threads,
            dedupe_buffer_bytes=settings.log_cleaner_dedupe_buffer_size,
            io_buffer_bytes=settings.log_cleaner_io_buffer_size,
            io_max_bytes_per_second=settings.log_cleaner_io_max_bytes_per_second,
            backoff_ms=settings.log_cleaner_backoff_ms,
        ),
    )


class _StartTopics:
    """The topics and the recorded directories, listed once, when the first log was found. Thread-safe."""

    def __init__(
        self, topics: TopicTable, directories: Callable[[], Mapping[PartitionId, UUID | None]]
    ) -> None:
        self._topics = topics
        self._list_directories = directories
        self._lock = threading.Lock()
        self._by_id: dict[UUID, Topic] | None = None
        self._directories: Mapping[PartitionId, UUID | None] = {}
        self._copies: set[PartitionId] = set()

    @property
    def by_id(self) -> Mapping[UUID, Topic]:
        """The topics by id."""
        with self._lock:
            if self._by_id is None:
                self._by_id = {topic.topic_id: topic for topic in self._topics.list()}
                self._directories = self._list_directories()
            return self._by_id

    def config_of(
        self, log: TopicPartition, topic_id: UUID | None, directory_id: UUID, *, is_future: bool
    ) -> LogConfig | None:
        """Return the configuration of a log, or None if its partition does not exist or is elsewhere.

        The copy of a log that was to move is complete if the catalog has recorded its directory.
        """
        topic = self.by_id.get(topic_id) if topic_id is not None else None
        if topic is None or not _belongs_to(topic, log):
            return None
        partition = PartitionId(topic.topic_id, log.partition)
        if is_future:
            is_here = topic.is_local and self._directories.get(partition) == directory_id
        elif topic.is_local:
            is_here = self._directories.get(partition) in {None, UNASSIGNED, directory_id}
        else:
            with self._lock:  # a disk that comes back may have another copy of the tail
                is_here = partition not in self._copies
                self._copies.add(partition)
        return log_config_of(topic.config) if is_here else None


def _belongs_to(topic: Topic | None, log: TopicPartition) -> bool:
    return topic is not None and topic.name == log.topic and log.partition < topic.partition_count


def _latest_epochs(logs: Iterable[UnifiedLog]) -> dict[PartitionId, int]:
    """Return the last leader epoch in each log that has one."""
    return {
        PartitionId(_id_of(log), log.topic_partition.partition): log.leader_epochs[-1].epoch
        for log in logs
        if log.leader_epochs
    }


def _id_of(log: UnifiedLog) -> UUID:
    assert log.topic_id is not None
    return log.topic_id
