"""Definitions of every topic and group setting.

Topics have all of Kafka's settings, and `storage.mode`, which is Siltstone's own. A setting without a meaning
in Siltstone is still accepted, so that tools that send it work. A value that requests an unsupported feature
is rejected.

Sources (Kafka 4.3): org.apache.kafka.storage.internals.log.LogConfig,
org.apache.kafka.common.config.TopicConfig, org.apache.kafka.server.config.ServerTopicConfigSynonyms and
org.apache.kafka.coordinator.group.GroupConfig. Settings of share groups and streams groups are left out,
because Siltstone has no such groups. The coordinator's own settings bound the values of groups.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from catalog.config.schema import Setting
from core.clock import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
_LONG_MAX: Final = 2**63 - 1
_COMPRESSION_LEVEL: Final = "Has no effect: rewritten batches use the codec's default level."


def _number(
    kind: str, name: str, default: float, broker_name: str, documentation: str, **bounds: float
) -> Setting:
    return Setting(
        name=name,
        kind=kind,
        default=str(default),
        documentation=documentation,
        broker_name=broker_name,
        minimum=bounds.get("minimum"),
        maximum=bounds.get("maximum"),
    )


def _long(
    name: str, default: int, broker_name: str, documentation: str, minimum: int | None = None
) -> Setting:
    bounds = {} if minimum is None else {"minimum": minimum}
    return _number("long", name, default, broker_name, documentation, **bounds)


def _int(name: str, default: int, broker_name: str, documentation: str, **bounds: float) -> Setting:
    return _number("int", name, default, broker_name, documentation, **bounds)


def _choice(
    name: str, choices: tuple[str, ...], default: str, broker_name: str | None, documentation: str
) -> Setting:
    return Setting(
        name=name,
        kind="string",
        default=default,
        documentation=documentation,
        choices=choices,
        broker_name=broker_name,
    )


def _boolean(name: str, broker_name: str | None, documentation: str) -> Setting:
    return Setting(
        name=name, kind="boolean", default="false", documentation=documentation, broker_name=broker_name
    )


def _always_false(name: str, documentation: str, remedy: str) -> Setting:
    return Setting(
        name=name,
        kind="boolean",
        default="false",
        documentation=documentation,
        choices=("false",),
        remedy=remedy,
    )


def _throttled_replicas(name: str) -> Setting:
    return Setting(
        name=name,
        kind="replicas",
        default="",
        documentation="Has no effect: there are no replicas whose replication could be throttled.",
    )


_TOPIC: Final = (
    Setting(
        name="cleanup.policy",
        kind="list",
        default="delete",
        choices=("compact", "delete"),
        broker_name="log.cleanup.policy",
        documentation="Whether old records are deleted by retention, compacted to the newest record of each"
        " key, or both. An empty list disables both.",
    ),
    _choice(
        "compression.type",
        ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "producer",
        "compression.type",
        "The codec of batches that compaction or the HTTP API writes. Batches of Kafka producers keep their"
        " own codec.",
    ),
    Setting(
        name="compression.gzip.level",
        kind="int",
        default="-1",
        minimum=1,
        maximum=9,
        special_value=-1,
        broker_name="compression.gzip.level",
        documentation=_COMPRESSION_LEVEL,
    ),
    _int("compression.lz4.level", 9, "compression.lz4.level", _COMPRESSION_LEVEL, minimum=1, maximum=17),
    _int(
        "compression.zstd.level", 3, "compression.zstd.level", _COMPRESSION_LEVEL, minimum=-131072, maximum=22
    ),
    _long(
        "delete.retention.ms",
        DAY_MS,
        "log.cleaner.delete.retention.ms",
        "How long a tombstone is kept after compaction has removed the records that it deletes.",
        0,
    ),
    _long(
        "file.delete.delay.ms",
        60_000,
        "log.segment.delete.delay.ms",
        "How long a deleted segment stays on an agent's disk. Objects have a separate grace period.",
        0,
    ),
    _long(
        "flush.messages",
        _LONG_MAX,
        "log.flush.interval.messages",
        "With storage.mode=local: the number of records after which the log is flushed to disk.",
        1,
    ),
    _long(
        "flush.ms",
        _LONG_MAX,
        "log.flush.interval.ms",
        "With storage.mode=local: the time after which records are flushed to disk.",
        0,
    ),
    _throttled_replicas("follower.replication.throttled.replicas"),
    _int(
        "index.interval.bytes",
        4096,
        "log.index.interval.bytes",
        "The number of bytes between two entries in the index of a segment on an agent's disk.",
        minimum=0,
    ),
    _throttled_replicas("leader.replication.throttled.replicas"),
    _long(
        "local.retention.bytes",
        -2,
        "log.local.retention.bytes",
        "With storage.mode=object: how many bytes of a partition's tail an agent keeps on its disk; -2 uses"
        " retention.bytes.",
        -2,
    ),
    _long(
        "local.retention.ms",
        -2,
        "log.local.retention.ms",
        "With storage.mode=object: how long an agent keeps a partition's tail on its disk; -2 uses"
        " retention.ms.",
        -2,
    ),
    _long(
        "max.compaction.lag.ms",
        _LONG_MAX,
        "log.cleaner.max.compaction.lag.ms",
        "The maximum time that a record stays ineligible for compaction, for any dirty ratio.",
        1,
    ),
    _int(
        "max.message.bytes",
        1_048_588,
        "message.max.bytes",
        "The maximum size of a record batch, as it is sent (compressed).",
        minimum=0,
    ),
    _long(
        "message.timestamp.after.max.ms",
        3_600_000,
        "log.message.timestamp.after.max.ms",
        "How far a producer's timestamp may lie in the future.",
        0,
    ),
    _long(
        "message.timestamp.before.max.ms",
        _LONG_MAX,
        "log.message.timestamp.before.max.ms",
        "How far a producer's timestamp may lie in the past.",
        0,
    ),
    _choice(
        "message.timestamp.type",
        ("CreateTime", "LogAppendTime"),
        "CreateTime",
        "log.message.timestamp.type",
        "Whether a record's timestamp is the producer's or the time of the append.",
    ),
    _number(
        "double",
        "min.cleanable.dirty.ratio",
        0.5,
        "log.cleaner.min.cleanable.ratio",
        "The share of uncompacted bytes above which a compacted partition is cleaned.",
        minimum=0,
        maximum=1,
    ),
    _long(
        "min.compaction.lag.ms",
        0,
        "log.cleaner.min.compaction.lag.ms",
        "The minimum time that a record stays uncompacted.",
        0,
    ),
    _int(
        "min.insync.replicas",
        1,
        "min.insync.replicas",
        "Has no effect: a record is acknowledged once the object store has it, and the store replicates it.",
        minimum=1,
    ),
    _boolean(
        "preallocate",
        "log.preallocate",
        "Whether a new segment on an agent's disk is preallocated at its full size.",
    ),
    _always_false(
        "remote.log.copy.disable",
        "Whether copying to remote storage is disabled. Only false is supported.",
        "use false: storage.mode decides at a topic's creation where its records are stored",
    ),
    _always_false(
        "remote.log.delete.on.disable",
        "Whether disabling remote storage deletes its records. Only false is supported.",
        "use false: retention and DeleteRecords delete records in every storage mode",
    ),
    _boolean(
        "remote.storage.enable",
        None,
        "Has no effect with storage.mode=object, where records always go to the object store. It must be"
        " false with storage.mode=local.",
    ),
    _long(
        "retention.bytes",
        -1,
        "log.retention.bytes",
        "How many bytes of a partition are kept if cleanup.policy has delete; -1 is no limit.",
    ),
    _long(
        "retention.ms",
        7 * DAY_MS,
        "log.retention.ms",
        "How long records are kept if cleanup.policy has delete; -1 is forever.",
        -1,
    ),
    _int(
        "segment.bytes",
        2**30,
        "log.segment.bytes",
        "The size at which a segment on an agent's disk is rolled.",
        minimum=2**20,
    ),
    _int(
        "segment.index.bytes",
        10 * 2**20,
        "log.index.size.max.bytes",
        "The maximum size of the index of a segment on an agent's disk.",
        minimum=4,
    ),
    _long(
        "segment.jitter.ms",
        0,
        "log.roll.jitter.ms",
        "The maximum random time by which segments are rolled early, so that they do not all roll together.",
        0,
    ),
    _long(
        "segment.ms",
        7 * DAY_MS,
        "log.roll.ms",
        "The age at which a segment on an agent's disk is rolled even if it is not full.",
        1,
    ),
    _choice(
        "storage.mode",
        ("object", "local"),
        "object",
        None,
        "Where records are stored: in the object store, or on the disks of agents. It is fixed when the topic"
        " is created.",
    ),
    _boolean(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        "Has no effect: every leader has all acknowledged records.",
    ),
)

_GROUP: Final = (
    Setting(
        name=SESSION_TIMEOUT,
        resource="group",
        kind="int",
        default="45000",
        minimum=1,
        broker_name="group.consumer.session.timeout.ms",
        documentation="How long the coordinator waits for a heartbeat before it removes a member of the"
        " consumer protocol.",
    ),
    Setting(
        name=HEARTBEAT_INTERVAL,
        resource="group",
        kind="int",
        default="5000",
        minimum=1,
        broker_name="group.consumer.heartbeat.interval.ms",
        documentation="The interval at which members of the consumer protocol send heartbeats.",
    ),
    Setting(
        name="consumer.assignment.interval.ms",
        resource="group",
        kind="int",
        default="0",
        minimum=0,
        maximum=0,
        broker_name="group.consumer.assignment.interval.ms",
        documentation="The minimum time between two assignments. Only 0 is supported.",
        remedy="use 0: partitions are assigned as soon as members or topics change",
    ),
)

TOPIC_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({each.name: each for each in _TOPIC})
GROUP_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({each.name: each for each in _GROUP})
