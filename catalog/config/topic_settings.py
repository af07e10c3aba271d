"""The settings of topics: Kafka's, all of them, and `storage.mode`, which is ours.

Source: org.apache.kafka.storage.internals.log.LogConfig, org.apache.kafka.common.config.TopicConfig and
org.apache.kafka.server.config.ServerTopicConfigSynonyms, of Kafka 4.3. A setting that has no meaning here is
still taken, so that tools which send it go on working; a value that asks for what cannot be done is refused.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from catalog.config.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONG_MAX: Final = 2**63 - 1
_DAY_MS: Final = 24 * 60 * 60 * 1000


def _number(kind: str, name: str, default: float, broker_name: str, says: str, **bounds: float) -> Setting:
    return Setting(
        name=name,
        kind=kind,
        default=str(default),
        documentation=says,
        broker_name=broker_name,
        lowest=bounds.get("lowest"),
        highest=bounds.get("highest"),
    )


def _long(name: str, default: int, broker_name: str, says: str, lowest: int | None = None) -> Setting:
    bounds = {} if lowest is None else {"lowest": lowest}
    return _number("long", name, default, broker_name, says, **bounds)


def _int(name: str, default: int, broker_name: str, says: str, **bounds: float) -> Setting:
    return _number("int", name, default, broker_name, says, **bounds)


def _choice(name: str, choices: tuple[str, ...], default: str, broker_name: str | None, says: str) -> Setting:
    return Setting(
        name=name,
        kind="string",
        default=default,
        documentation=says,
        choices=choices,
        broker_name=broker_name,
    )


def _boolean(name: str, broker_name: str | None, says: str) -> Setting:
    return Setting(name=name, kind="boolean", default="false", documentation=says, broker_name=broker_name)


def _never(name: str, says: str, remedy: str) -> Setting:
    """What can only be off, which is Kafka's default."""
    return Setting(
        name=name, kind="boolean", default="false", documentation=says, choices=("false",), remedy=remedy
    )


def _replicas(name: str) -> Setting:
    says = "Which copies are throttled while they are moved. No copies are, so this has no effect."
    return Setting(name=name, kind="replicas", default="", documentation=says)


_ALL: Final = (
    Setting(
        name="cleanup.policy",
        kind="list",
        default="delete",
        choices=("compact", "delete"),
        broker_name="log.cleanup.policy",
        documentation="Whether old records are deleted, compacted to the newest of each key, or both;"
        " empty: neither.",
    ),
    _choice(
        "compression.type",
        ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "producer",
        "compression.type",
        "The codec of batches that are written anew, by compaction or for clients of HTTP. What Kafka clients"
        " send stays as it is.",
    ),
    Setting(
        name="compression.gzip.level",
        kind="int",
        default="-1",
        lowest=1,
        highest=9,
        besides=-1,
        broker_name="compression.gzip.level",
        documentation="Has no effect: batches that are written anew get the codec's usual level.",
    ),
    _int(
        "compression.lz4.level",
        9,
        "compression.lz4.level",
        "Has no effect: batches that are written anew get the codec's usual level.",
        lowest=1,
        highest=17,
    ),
    _int(
        "compression.zstd.level",
        3,
        "compression.zstd.level",
        "Has no effect: batches that are written anew get the codec's usual level.",
        lowest=-131072,
        highest=22,
    ),
    _long(
        "delete.retention.ms",
        _DAY_MS,
        "log.cleaner.delete.retention.ms",
        "How long a tombstone is kept once compaction has removed all that it deletes.",
        0,
    ),
    _long(
        "file.delete.delay.ms",
        60_000,
        "log.segment.delete.delay.ms",
        "How long a deleted segment stays on an agent's disk. Objects have a grace period of their own.",
        0,
    ),
    _long(
        "flush.messages",
        _LONG_MAX,
        "log.flush.interval.messages",
        "With storage.mode=local: after how many records they are forced to disk.",
        1,
    ),
    _long(
        "flush.ms",
        _LONG_MAX,
        "log.flush.interval.ms",
        "With storage.mode=local: after how long records are forced to disk.",
        0,
    ),
    _replicas("follower.replication.throttled.replicas"),
    _int(
        "index.interval.bytes",
        4096,
        "log.index.interval.bytes",
        "How many bytes of a segment on disk lie between two entries of its index.",
        lowest=0,
    ),
    _replicas("leader.replication.throttled.replicas"),
    _long(
        "local.retention.bytes",
        -2,
        "log.local.retention.bytes",
        "With storage.mode=object: how much of a partition an agent's disk keeps as a copy of the tail;"
        " -2: as retention.bytes.",
        -2,
    ),
    _long(
        "local.retention.ms",
        -2,
        "log.local.retention.ms",
        "With storage.mode=object: for how long an agent's disk keeps a copy of the tail;"
        " -2: as retention.ms.",
        -2,
    ),
    _long(
        "max.compaction.lag.ms",
        _LONG_MAX,
        "log.cleaner.max.compaction.lag.ms",
        "How long a record may stay uncompacted, however little there is to gain.",
        1,
    ),
    _int(
        "max.message.bytes",
        1_048_588,
        "message.max.bytes",
        "The largest record batch that is taken, as it comes (compressed).",
        lowest=0,
    ),
    _long(
        "message.timestamp.after.max.ms",
        3_600_000,
        "log.message.timestamp.after.max.ms",
        "How far in the future a producer's timestamp may lie.",
        0,
    ),
    _long(
        "message.timestamp.before.max.ms",
        _LONG_MAX,
        "log.message.timestamp.before.max.ms",
        "How far in the past a producer's timestamp may lie.",
        0,
    ),
    _choice(
        "message.timestamp.type",
        ("CreateTime", "LogAppendTime"),
        "CreateTime",
        "log.message.timestamp.type",
        "Whether records keep the producer's timestamp, or get the time of their arrival.",
    ),
    _number(
        "double",
        "min.cleanable.dirty.ratio",
        0.5,
        "log.cleaner.min.cleanable.ratio",
        "The share of a compacted partition that is not compacted yet, from which it is worth a job.",
        lowest=0,
        highest=1,
    ),
    _long(
        "min.compaction.lag.ms",
        0,
        "log.cleaner.min.compaction.lag.ms",
        "How long a record stays uncompacted at least.",
        0,
    ),
    _int(
        "min.insync.replicas",
        1,
        "min.insync.replicas",
        "Has no effect: a record is acknowledged when the object store has it, which keeps the copies.",
        lowest=1,
    ),
    _boolean(
        "preallocate",
        "log.preallocate",
        "Whether a new segment on an agent's disk gets its full size at once.",
    ),
    _never(
        "remote.log.copy.disable",
        "Whether nothing more goes to remote storage. It cannot be turned on.",
        "give false: storage.mode says, when a topic is created, where its records are kept",
    ),
    _never(
        "remote.log.delete.on.disable",
        "Whether turning remote storage off deletes what is there. It cannot be turned on.",
        "give false: retention and DeleteRecords delete records, wherever they are",
    ),
    _boolean(
        "remote.storage.enable",
        None,
        "Whether records go to remote storage. They do with storage.mode=object, whatever this is; with"
        " storage.mode=local they do not, and this cannot be true.",
    ),
    _long(
        "retention.bytes",
        -1,
        "log.retention.bytes",
        "How many bytes of a partition are kept where cleanup.policy has delete; -1: any number.",
    ),
    _long(
        "retention.ms",
        7 * _DAY_MS,
        "log.retention.ms",
        "How long records are kept where cleanup.policy has delete; -1: for ever.",
        -1,
    ),
    _int(
        "segment.bytes",
        2**30,
        "log.segment.bytes",
        "The size of the segments on an agent's disk.",
        lowest=2**20,
    ),
    _int(
        "segment.index.bytes",
        10 * 2**20,
        "log.index.size.max.bytes",
        "The largest index of a segment on an agent's disk.",
        lowest=4,
    ),
    _long(
        "segment.jitter.ms",
        0,
        "log.roll.jitter.ms",
        "By how much at most segments are rolled earlier, so that not all are at once.",
        0,
    ),
    _long(
        "segment.ms",
        7 * _DAY_MS,
        "log.roll.ms",
        "After how long a segment on an agent's disk is rolled though it is not full.",
        1,
    ),
    _choice(
        "storage.mode",
        ("object", "local"),
        "object",
        None,
        "Where the topic lives: in the object store, or on agents' own disks. It cannot be changed later.",
    ),
    _boolean(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        "Has no effect: no leader lacks what was acknowledged.",
    ),
)

SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({each.name: each for each in _ALL})
