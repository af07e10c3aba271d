"""An agent's settings under their names in Kafka's brokers, read-only.

They include the defaults of topic and group configurations (Kafka's ServerTopicConfigSynonyms).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from agent.group_settings import GroupSettings
from agent.local_tier_settings import LocalTierSettings
from agent.settings import AgentSettings
from catalog.config.definitions import TOPIC_SETTINGS
from core.settings import description_of

if TYPE_CHECKING:
    from agent.kafka.services import KafkaServices

_DEFAULTS = AgentSettings()
_DEFAULT_GROUPS = GroupSettings()
_DEFAULT_LOCAL_TIER = LocalTierSettings()
_Section = TypeVar("_Section", AgentSettings, GroupSettings, LocalTierSettings)

# Our fields by Kafka's names.
_AGENT = {
    "auto.create.topics.enable": "auto_create_topics",
    "connections.max.idle.ms": "kafka_idle_ms",
    "fetch.max.bytes": "max_fetch_bytes",
    "max.incremental.fetch.session.cache.slots": "max_fetch_sessions",
    "max.connections": "kafka_max_connections",
    "max.connections.per.ip": "kafka_max_connections_per_ip",
    "num.partitions": "default_partitions",
    "socket.request.max.bytes": "max_request_bytes",
}
# Fields of LocalTierSettings have these names with underscores.
_LOCAL_TIER = (
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.threads",
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.scheduler.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
    "log.retention.check.interval.ms",
    "num.recovery.threads.per.data.dir",
    "replica.high.watermark.checkpoint.interval.ms",
)
_DOUBLE = {"log.cleaner.io.max.bytes.per.second"}
_LONG = frozenset(
    {
        "connections.max.idle.ms",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.flush.scheduler.interval.ms",
        "log.retention.check.interval.ms",
        "offsets.retention.check.interval.ms",
        "replica.high.watermark.checkpoint.interval.ms",
    }
)
# Fields of GroupSettings have these names with underscores.
_GROUPS = (
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.heartbeat.interval.ms",
    "group.consumer.max.session.timeout.ms",
    "group.consumer.max.size",
    "group.consumer.migration.policy",
    "group.consumer.min.heartbeat.interval.ms",
    "group.consumer.min.session.timeout.ms",
    "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "offset.metadata.max.bytes",
    "offsets.retention.check.interval.ms",
    "offsets.retention.minutes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetting:
    """One setting: its value as text, and `kind`, the lower-case name of its Kafka type."""

    name: str
    kind: str
    value: str | None
    is_default: bool
    documentation: str


def broker_settings(services: KafkaServices) -> dict[str, BrokerSetting]:
    """Return all settings that correspond to Kafka's, by name."""
    settings = services.settings
    found = [*_own(services)]
    found += [_typed(name, settings, _DEFAULTS, field) for name, field in _AGENT.items()]
    found += [_typed(name, settings.groups, _DEFAULT_GROUPS, name.replace(".", "_")) for name in _GROUPS]
    found += [
        _typed(name, settings.local_tier, _DEFAULT_LOCAL_TIER, name.replace(".", "_")) for name in _LOCAL_TIER
    ]
    found += [
        BrokerSetting(
            name=each.broker_name,
            kind=each.kind,
            value=each.default,
            is_default=True,
            documentation=f"The default of the topic configuration {each.name}. {each.documentation}",
        )
        for each in TOPIC_SETTINGS.values()
        if each.broker_name is not None
    ]
    return {each.name: each for each in sorted(found, key=lambda setting: setting.name)}


def _own(services: KafkaServices) -> list[BrokerSetting]:
    own = services.brokers.own
    return [
        BrokerSetting(
            name="advertised.listeners",
            kind="list",
            value=f"PLAINTEXT://{own.host}:{own.port}",
            is_default=False,
            documentation="The address for clients to connect to.",
        ),
        BrokerSetting(
            name="broker.rack",
            kind="string",
            value=own.rack,
            is_default=own.rack is None,
            documentation="The zone of this agent.",
        ),
        *(
            BrokerSetting(
                name=name,
                kind="int",
                value=str(own.node_id),
                is_default=False,
                documentation="The node id of this agent.",
            )
            for name in ("broker.id", "node.id")
        ),
        BrokerSetting(
            name="default.replication.factor",
            kind="int",
            value="1",
            is_default=True,
            documentation="Always 1: the object store replicates the data.",
        ),
    ]


def _typed(name: str, settings: _Section, defaults: _Section, field: str) -> BrokerSetting:
    value = getattr(settings, field)
    kind = "string"
    if isinstance(value, bool):
        kind = "boolean"
    elif isinstance(value, int):
        kind = "long" if name in _LONG else "double" if name in _DOUBLE else "int"
    return BrokerSetting(
        name=name,
        kind=kind,
        value=str(value).lower() if kind == "boolean" else str(value),
        is_default=value == getattr(defaults, field),
        documentation=description_of(type(settings), field),
    )
