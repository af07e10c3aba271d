"""What a log needs of its topic's configuration, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from agent.write.validation import AppendRules

if TYPE_CHECKING:
    from catalog.config.topic_config import TopicConfig

NO_LIMIT = -1
"""`retention_ms` and `retention_bytes`: nothing expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one log, by Kafka's names and in Kafka's units (bytes, milliseconds, counts).

    Defaults are Kafka's; `LogConfig.of` reads a topic's own. `segment_bytes` may be smaller here than a topic
    may ask for, as the smallest size of a topic's segments is a rule of topics.
    """

    segment_bytes: int = 2**30
    segment_ms: int = 7 * 24 * 3_600_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 2**20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3_600_000
    retention_bytes: int = NO_LIMIT
    flush_messages: int = 2**63 - 1
    flush_ms: int = 2**63 - 1
    max_message_bytes: int = 1_048_588
    compact: bool = False
    delete: bool = True
    delete_retention_ms: int = 24 * 3_600_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    log_append_time: bool = False
    message_timestamp_before_max_ms: int = 2**63 - 1
    message_timestamp_after_max_ms: int = 3_600_000
    preallocate: bool = False

    @property
    def append_rules(self) -> AppendRules:
        """What is checked of the batches that a producer sends."""
        return AppendRules(
            require_keys=self.compact,
            max_message_bytes=self.max_message_bytes,
            append_time=self.log_append_time,
            before_max_ms=self.message_timestamp_before_max_ms,
            after_max_ms=self.message_timestamp_after_max_ms,
        )

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(topic: TopicConfig) -> LogConfig:
        """The settings of a topic's logs on this agent.

        In a topic whose home is the object store the log is a copy of the tail: it is bounded by
        `local.retention.*`, always by deletion, and never compacted.
        """
        is_copy = topic.storage_mode == "object"
        return LogConfig(
            segment_bytes=topic.segment_bytes,
            segment_ms=topic.segment_ms,
            segment_jitter_ms=min(_whole(topic, "segment.jitter.ms"), topic.segment_ms),
            segment_index_bytes=_whole(topic, "segment.index.bytes"),
            index_interval_bytes=_whole(topic, "index.interval.bytes"),
            retention_ms=topic.local_retention_ms if is_copy else topic.retention_ms,
            retention_bytes=topic.local_retention_bytes if is_copy else topic.retention_bytes,
            flush_messages=_whole(topic, "flush.messages"),
            flush_ms=_whole(topic, "flush.ms"),
            max_message_bytes=topic.max_message_bytes,
            compact=topic.compacts and not is_copy,
            delete=topic.deletes or is_copy,
            delete_retention_ms=topic.delete_retention_ms,
            min_compaction_lag_ms=topic.min_compaction_lag_ms,
            max_compaction_lag_ms=topic.max_compaction_lag_ms,
            min_cleanable_dirty_ratio=topic.min_cleanable_dirty_ratio,
            file_delete_delay_ms=_whole(topic, "file.delete.delay.ms"),
            log_append_time=topic.message_timestamp_type == "LogAppendTime",
            message_timestamp_before_max_ms=topic.message_timestamp_before_max_ms,
            message_timestamp_after_max_ms=topic.message_timestamp_after_max_ms,
            preallocate=bool(topic.value("preallocate")),
        )


def _whole(topic: TopicConfig, name: str) -> int:
    return int(topic.value(name))
