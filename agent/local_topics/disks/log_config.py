"""Translation of a topic's configuration to that of its logs on this agent."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from local_tier.config import LogConfig

if TYPE_CHECKING:
    from catalog.config.values import TopicConfig


@lru_cache(maxsize=4096)
def log_config_of(topic: TopicConfig) -> LogConfig:
    """Return the configuration of a topic's logs on this agent.

    The local log of an object topic is only a copy of the tail. It is bounded by `local.retention.*`, always
    by deletion, and never compacted.
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
