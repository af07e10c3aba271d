"""Leadership of the partitions of a node's logs, whose assignment a failover or a restore has lost.

The node claims them. Otherwise the next request could assign such a partition to another node, which has no
records of it. Only logs with records count. Logs of object topics are copies, and have no leaders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from catalog.model import PartitionId
from catalog.topics.local_leaders import FoundLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from uuid import UUID

    from local_tier.manager.log_manager import LogManager
    from local_tier.manager.set_aside_logs import SetAsideLog

_MAX_PARTITIONS_PER_CALL = 1_000
_log = structlog.get_logger(__name__)


class LeaderTable(Protocol):
    """The leaders of partitions, and their log directories."""

    def directories_of(self, node_id: int) -> Mapping[PartitionId, UUID | None]:
        """Return the recorded log directory of each partition that a node leads."""
        ...

    def claim_found(self, node_id: int, logs: Mapping[PartitionId, FoundLog]) -> Mapping[PartitionId, int]:
        """Let the node lead the partitions of logs; return the leaders of those that others lead."""
        ...


class FoundLogs:
    """The logs of a node that may have lost their leader. Blocking and thread-safe."""

    def __init__(self, table: LeaderTable, node_id: int, manager: LogManager) -> None:
        self._table = table
        self._node_id = node_id
        self._manager = manager
        self._led_elsewhere: set[SetAsideLog] = set()

    def claim_open(self) -> None:
        """Lead the partitions of open logs that have no leader. Reads no disk."""
        known = self._table.directories_of(self._node_id)
        found: dict[PartitionId, tuple[Path, int]] = {}
        for log in self._manager.logs():
            if log.topic_id is None or not log.log_end_offset:
                continue
            partition = PartitionId(log.topic_id, log.topic_partition.partition)
            if partition not in known:
                found[partition] = log.directory, log.leader_epochs[-1].epoch if log.leader_epochs else -1
        self._claim(found)

    def claim_waiting(self, waiting: Iterable[SetAsideLog]) -> bool:
        """Lead the partitions of logs that wait although their topics exist; return False if there are none.

        Such a topic was created again under another name, and the log was set aside before the node has
        claimed the partition. A log is tried once if another node leads its partition.
        """
        found: dict[PartitionId, tuple[Path, int]] = {}
        tried = [log for log in waiting if log not in self._led_elsewhere]
        for log in tried:
            is_only_one = self._manager.reopening.find(log.topic_id, log.partition, None) == log
            if is_only_one and (epoch := self._manager.reopening.latest_epoch(log)) is not None:
                found[PartitionId(log.topic_id, log.partition)] = log.path, epoch
        if not found:
            return False
        elsewhere = self._claim(found)
        self._led_elsewhere |= {log for log in tried if PartitionId(log.topic_id, log.partition) in elsewhere}
        return True

    def _claim(self, logs: Mapping[PartitionId, tuple[Path, int]]) -> set[PartitionId]:
        """Claim the partitions of logs with these directories and last epochs; return those led elsewhere."""
        found: dict[PartitionId, FoundLog] = {}
        for partition, (path, leader_epoch) in sorted(logs.items()):
            directory_id = self._manager.directory_id(path.parent)
            if directory_id is not None:
                found[partition] = FoundLog(directory_id=directory_id, leader_epoch=leader_epoch)
        elsewhere: set[PartitionId] = set()
        for start in range(0, len(found), _MAX_PARTITIONS_PER_CALL):
            some = dict(list(found.items())[start : start + _MAX_PARTITIONS_PER_CALL])
            for partition, leader in self._table.claim_found(self._node_id, some).items():
                elsewhere.add(partition)
                _log.error(
                    "another agent leads the partition of a local log with records, which are not served",
                    directory=str(logs[partition][0]),
                    topic_id=str(partition.topic_id),
                    leader=leader,
                    remedy="read the log with kafka-dump-log, and send the records that are needed again",
                )
        return elsewhere
