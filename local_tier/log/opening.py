"""From a directory to a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from local_tier.errors import InconsistentTopicError
from local_tier.files.partition_metadata import read_topic_id, write_topic_id
from local_tier.leader_epochs import LeaderEpochs
from local_tier.log.loading import LogLoader
from local_tier.log.local_log import LocalLog
from local_tier.log.log_home import LogHome
from local_tier.log.unified_log import UnifiedLog
from local_tier.producers.producer_states import PRODUCER_EXPIRY_MS, ProducerStates
from local_tier.segment.segments import LogSegments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.scheduling import Scheduler
    from local_tier.topic_partition import TopicPartition


def open_log(
    fs: FileSystem,
    directory: Path,
    config: LogConfig,
    *,
    topic_partition: TopicPartition,
    clock: Clock,
    ids: Ids,
    scheduler: Scheduler,
    on_failure: Callable[[Path, OSError], None],
    topic_id: UUID | None = None,
    log_start_offset: int = 0,
    recovery_point: int | None = 0,
    had_clean_shutdown: bool = False,
    on_remaining: Callable[[int], None] = lambda _: None,
    producer_expiry_ms: int = PRODUCER_EXPIRY_MS,
) -> UnifiedLog:
    """Open the log in `directory`, which is made when it is not there, and recover it where that is due.

    `log_start_offset` and `recovery_point` are what the checkpoints of its disk say; one who does not know
    the recovery point gives None: no gap is then taken for a loss, and all of the log is made durable at
    once, so that it is known from now on. The high watermark begins at the log start offset, for the caller
    to move. `on_failure` is told the parent directory when the disk fails, `on_remaining` how many segments
    are still to be read through. Raises InconsistentTopicError when the directory belongs to a topic of
    another id, and LogDirectoryOfflineError.
    """
    home = LogHome(
        fs=fs,
        directory=directory,
        topic_partition=topic_partition,
        config=config,
        clock=clock,
        ids=ids,
        scheduler=scheduler,
        on_failure=on_failure,
    )
    with home.disk("opening"):
        if fs.status(directory) is None:
            fs.make_dir(directory)
            fs.sync_dir(directory.parent)
        known_id = _bind_topic(fs, directory, topic_id)
        segments = LogSegments()
        states = ProducerStates(fs, directory, where=home.where, expiry_ms=producer_expiry_ms)
        epochs = LeaderEpochs(fs, directory, home)
        loader = LogLoader(
            home,
            segments,
            states,
            epochs,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            had_clean_shutdown=had_clean_shutdown,
            on_remaining=on_remaining,
        )
        offsets = loader.load()
    local = LocalLog(
        home, segments, recovery_point=offsets.recovery_point, log_end_offset=offsets.log_end_offset
    )
    log = UnifiedLog(
        home, local, states, epochs, log_start_offset=offsets.log_start_offset, topic_id=known_id
    )
    if recovery_point is None:
        log.flush()
    return log


def _bind_topic(fs: FileSystem, directory: Path, topic_id: UUID | None) -> UUID | None:
    """The topic's id is on disk before any of its records."""
    known = read_topic_id(fs, directory)
    if known is None and topic_id is not None:
        write_topic_id(fs, directory, topic_id)
        return topic_id
    if topic_id is not None and known != topic_id:
        raise InconsistentTopicError(
            f"{directory} holds the log of topic {known}, not of topic {topic_id}",
            remedy="the topic was deleted and made again: move the directory away",
        )
    return known
