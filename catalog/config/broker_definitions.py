"""Definitions of the broker settings that clients can change: Kafka's dynamic ones without a meaning here.

Tools such as `kafka-configs` and Cruise Control send them. They are accepted, validated and stored. One has
a meaning: the rate of moves between log directories, which agents obey while they move logs. Every other
setting of a broker is read-only: Kafka's static ones, and those that would have to change what an agent does
while it runs.

Source (Kafka 4.3): org.apache.kafka.server.config.DynamicBrokerConfig and its ConfigDef.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from catalog.config.schema import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

MOVE_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
_LONG_MAX: Final = str(2**63 - 1)
_THREADS: Final = "Has no effect: an agent sizes its threads itself."
_REPLICATION: Final = "Has no effect: agents do not replicate partitions to each other."
_REMOTE: Final = "Has no effect: agents have no remote log manager."
_LEVEL: Final = "Has no effect: rewritten batches use the codec's default level."
_SHARE: Final = "Has no effect: agents have no groups of this kind."


def _number(
    name: str,
    kind: str,
    default: str,
    minimum: int,
    documentation: str,
    *,
    maximum: int | None = None,
    special_value: int | None = None,
) -> Setting:
    return Setting(
        name=name,
        resource="broker",
        kind=kind,
        default=default,
        minimum=minimum,
        maximum=maximum,
        special_value=special_value,
        documentation=documentation,
    )


def _boolean(name: str, default: str, documentation: str) -> Setting:
    return Setting(name=name, resource="broker", kind="boolean", default=default, documentation=documentation)


_BROKER: Final = (
    _number("background.threads", "int", "10", 1, _THREADS),
    _number("compression.gzip.level", "int", "-1", 1, _LEVEL, maximum=9, special_value=-1),
    _number("compression.lz4.level", "int", "9", 1, _LEVEL, maximum=17),
    _number("compression.zstd.level", "int", "3", -131072, _LEVEL, maximum=22),
    _boolean("follower.fetch.last.tiered.offset.enable", "false", _REPLICATION),
    _number("follower.replication.throttled.rate", "long", _LONG_MAX, 0, _REPLICATION),
    _number(
        "group.coordinator.cached.buffer.max.bytes",
        "int",
        "1048588",
        524_288,
        "Has no effect: coordinators write to the catalog and keep no append buffer.",
    ),
    _number("group.share.assignment.interval.ms", "int", "1000", 0, _SHARE),
    _number("group.streams.assignment.interval.ms", "int", "1000", 0, _SHARE),
    _number("leader.replication.throttled.rate", "long", _LONG_MAX, 0, _REPLICATION),
    _number(
        "min.insync.replicas",
        "int",
        "1",
        1,
        "Has no effect: a record is acknowledged once the object store has it, and the store replicates it.",
    ),
    _number("num.io.threads", "int", "8", 1, _THREADS),
    _number("num.network.threads", "int", "3", 1, _THREADS),
    _number("num.replica.fetchers", "int", "1", 1, _REPLICATION),
    _number("remote.fetch.max.wait.ms", "int", "500", 1, _REMOTE),
    _number("remote.list.offsets.request.timeout.ms", "long", "30000", 1, _REMOTE),
    _number("remote.log.index.file.cache.total.size.bytes", "long", str(2**30), 1, _REMOTE),
    _number("remote.log.manager.copier.thread.pool.size", "int", "10", 1, _REMOTE),
    _number("remote.log.manager.copy.max.bytes.per.second", "long", _LONG_MAX, 1, _REMOTE),
    _number("remote.log.manager.expiration.thread.pool.size", "int", "10", 1, _REMOTE),
    _number("remote.log.manager.fetch.max.bytes.per.second", "long", _LONG_MAX, 1, _REMOTE),
    _number("remote.log.manager.follower.thread.pool.size", "int", "2", 1, _REMOTE),
    _number("remote.log.reader.threads", "int", "10", 1, _REMOTE),
    _number(
        MOVE_RATE,
        "long",
        _LONG_MAX,
        0,
        "Maximum rate of all moves of logs between the log directories of an agent, in bytes per second.",
    ),
    _number("share.coordinator.cached.buffer.max.bytes", "int", "1048588", 524_288, _SHARE),
    _boolean(
        "transaction.partition.verification.enable", "true", "Has no effect: there are no transactions."
    ),
    _boolean(
        "unclean.leader.election.enable", "false", "Has no effect: every leader has all acknowledged records."
    ),
)

BROKER_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({each.name: each for each in _BROKER})
