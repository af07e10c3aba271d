"""Translation of topic configurations to log configurations."""

from __future__ import annotations

from dataclasses import fields

from agent.local_topics.disks.log_config import log_config_of
from catalog.config.values import TopicConfig
from local_tier.config import LogConfig


def test_the_defaults_of_topics_give_the_defaults_of_logs() -> None:
    """A local topic without settings has the defaults of LogConfig."""
    assert log_config_of(TopicConfig.of({"storage.mode": "local"})) == LogConfig()


def test_every_topic_setting_reaches_the_log() -> None:
    """Each field differs from its default if its topic setting does."""
    settings = {
        "storage.mode": "local",
        "segment.bytes": "2097152",
        "segment.ms": "1000",
        "segment.jitter.ms": "100",
        "segment.index.bytes": "4096",
        "index.interval.bytes": "1",
        "retention.ms": "5",
        "retention.bytes": "6",
        "flush.messages": "7",
        "flush.ms": "8",
        "max.message.bytes": "9",
        "cleanup.policy": "compact",
        "delete.retention.ms": "10",
        "min.compaction.lag.ms": "11",
        "max.compaction.lag.ms": "12",
        "min.cleanable.dirty.ratio": "0.25",
        "file.delete.delay.ms": "13",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "14",
        "message.timestamp.after.max.ms": "15",
        "preallocate": "true",
    }
    config = log_config_of(TopicConfig.of(settings))
    same = {
        field.name
        for field in fields(config)
        if getattr(config, field.name) == getattr(LogConfig(), field.name)
    }
    assert same == set()


def test_the_tail_cache_of_an_object_topic_has_local_retention_and_is_never_compacted() -> None:
    """The local log of an object topic is bounded by `local.retention.*` and only deletes."""
    config = log_config_of(
        TopicConfig.of(
            {
                "cleanup.policy": "compact",
                "retention.ms": "100",
                "local.retention.ms": "7",
                "local.retention.bytes": "8",
            }
        )
    )
    assert (config.compact, config.delete, config.retention_ms, config.retention_bytes) == (False, True, 7, 8)


def test_jitter_is_at_most_segment_ms() -> None:
    """As in Kafka, the jitter is cut at `segment.ms`."""
    config = log_config_of(TopicConfig.of({"segment.ms": "50", "segment.jitter.ms": "80"}))
    assert config.segment_jitter_ms == 50
