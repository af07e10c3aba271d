"""The local logs on the agent's disks, kept in step with the topics of the catalog.

A directory belongs to one node of one cluster permanently (`meta.properties`). Used directories therefore
determine the node id. Logs without a topic are set aside at the start and deleted while the agent runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

from agent.local_topics.log_config import log_config_of
from core.errors import SiltstoneError
from core.outage import Outage
from local_tier.files.file_names import LOCK
from local_tier.files.file_system import RealFileSystem
from local_tier.files.metadata_files import read_meta_properties
from local_tier.manager.config import LogManagerConfig
from local_tier.manager.log_directories import DirectoryOwner
from local_tier.manager.log_manager import LogManager
from local_tier.scheduler import BackgroundScheduler

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from uuid import UUID

    from catalog.model import Topic
    from core.clock import Clock
    from core.ids import Ids
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.topic_partition import TopicPartition

_MAX_AGENTS = 1000
TOPIC_SYNC_MS = 5_000


class TopicTable(Protocol):
    """The operations of the catalog that the storage needs."""

    def list(self) -> Sequence[Topic]:
        """Return all topics by name."""
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

    The first directory with a node id decides. A failed disk does not keep an agent from starting, unless
    only that disk could have the node id. Then it raises OSError.
    """
    files = files or RealFileSystem()
    failure: OSError | None = None
    for directory in directories:
        try:
            properties = read_meta_properties(files, directory)
        except OSError as error:
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
        clock: Clock,
        ids: Ids,
        files: FileSystem | None = None,
    ) -> None:
        self._topics = topics
        self._scheduler = BackgroundScheduler(clock)
        self._outage = Outage("topics of the local logs", clock=clock, ids=ids)
        self.manager = LogManager(
            LogManagerConfig(
                directories=tuple(directories),
                owner=DirectoryOwner(cluster_id=identity.cluster_id, node_id=identity.node_id),
            ),
            file_system=files or RealFileSystem(),
            clock=clock,
            ids=ids,
            scheduler=self._scheduler,
        )

    def open(self) -> None:
        """Open every log, with recovery after a crash.

        Raises the error that keeps the disks from being used.
        """
        topics = {topic.topic_id: topic for topic in self._topics.list()}

        def config_of(log: TopicPartition, topic_id: UUID | None) -> LogConfig | None:
            topic = topics.get(topic_id) if topic_id is not None else None
            if topic is None or topic.name != log.topic or log.partition >= topic.partition_count:
                return None
            return log_config_of(topic.config)

        self._scheduler.start()
        try:
            self.manager.start(config_of)
        except BaseException:
            self._scheduler.stop()
            raise
        # These logs have no followers, so all their records are committed. The checkpointed high watermark
        # may be older, and would hide records that were acknowledged before a crash.
        for log in self.manager.logs():
            log.update_high_watermark(log.log_end_offset)
        self._scheduler.schedule_every(
            "local-topics", self.sync_topics, first_delay_ms=TOPIC_SYNC_MS, period_ms=TOPIC_SYNC_MS
        )

    def sync_topics(self) -> None:
        """Delete the logs of deleted topics, and update the configuration of the others."""
        try:
            topics = {topic.topic_id: topic for topic in self._topics.list()}
        except SiltstoneError as error:
            self._outage.failed(error)
            return
        self._outage.succeeded()
        changed = set()
        for log in self.manager.logs():
            topic = topics.get(log.topic_id) if log.topic_id is not None else None
            if topic is None:
                self.manager.delete(log.topic_partition)
            elif log.config != log_config_of(topic.config):
                changed.add(topic.topic_id)
        for topic_id in changed:
            self.manager.update_config(topics[topic_id].name, log_config_of(topics[topic_id].config))

    def close(self) -> None:
        """Flush and close all logs, and mark the directories as cleanly shut down."""
        self._scheduler.stop()
        self.manager.close()
