"""An agent's settings under the names that Kafka's brokers have for them, read-only.

Those that a topic's or a group's defaults come from are among them (Kafka's ServerTopicConfigSynonyms).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.groups.settings import GroupSettings
from agent.settings import AgentSettings
from catalog.config.topic_settings import SETTINGS

if TYPE_CHECKING:
    from agent.kafka.services import KafkaServices

_DEFAULTS = AgentSettings()
_DEFAULT_GROUPS = GroupSettings()

# By Kafka's name: ours, and what it says.
_AGENT = {
    "auto.create.topics.enable": ("auto_create_topics", "Whether topics that clients ask for are created."),
    "connections.max.idle.ms": ("kafka_idle_ms", "After how long an idle connection is closed."),
    "fetch.max.bytes": ("max_fetch_bytes", "The most that one Fetch is answered with."),
    "max.incremental.fetch.session.cache.slots": ("max_fetch_sessions", "How many fetch sessions are kept."),
    "max.connections": ("kafka_max_connections", "How many connections of clients there may be."),
    "max.connections.per.ip": ("kafka_max_connections_per_ip", "How many of them from one address."),
    "num.partitions": ("default_partitions", "How many partitions a topic has whose creator does not say."),
    "socket.request.max.bytes": ("max_request_bytes", "The largest request that is taken."),
}
_GROUPS = {
    "group.consumer.heartbeat.interval.ms": (
        "consumer_heartbeat_interval_ms",
        "How often members of consumer groups send heartbeats.",
    ),
    "group.consumer.max.heartbeat.interval.ms": (
        "consumer_max_heartbeat_interval_ms",
        "The longest consumer.heartbeat.interval.ms of a single group.",
    ),
    "group.consumer.max.session.timeout.ms": (
        "consumer_max_session_timeout_ms",
        "The longest consumer.session.timeout.ms of a single group.",
    ),
    "group.consumer.max.size": ("consumer_max_size", "How many members a consumer group may have."),
    "group.consumer.migration.policy": (
        "migration_policy",
        "Whether a group with members may go from one group protocol to the other.",
    ),
    "group.consumer.min.heartbeat.interval.ms": (
        "consumer_min_heartbeat_interval_ms",
        "The shortest consumer.heartbeat.interval.ms of a single group.",
    ),
    "group.consumer.min.session.timeout.ms": (
        "consumer_min_session_timeout_ms",
        "The shortest consumer.session.timeout.ms of a single group.",
    ),
    "group.consumer.session.timeout.ms": (
        "consumer_session_timeout_ms",
        "How long members of consumer groups may be silent.",
    ),
    "group.initial.rebalance.delay.ms": (
        "initial_rebalance_delay_ms",
        "How long the first rebalance of an empty classic group waits for more members.",
    ),
    "group.max.session.timeout.ms": ("max_session_timeout_ms", "The longest session of a classic member."),
    "group.max.size": ("max_group_size", "How many members a classic group may have."),
    "group.min.session.timeout.ms": ("min_session_timeout_ms", "The shortest session of a classic member."),
    "offset.metadata.max.bytes": ("offset_metadata_max_bytes", "How much text may be stored with an offset."),
    "offsets.retention.check.interval.ms": (
        "offsets_retention_check_interval_ms",
        "How often offsets are looked for that nobody needs.",
    ),
    "offsets.retention.minutes": (
        "offsets_retention_minutes",
        "How long offsets are kept that no member of their group needs.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetting:
    """One setting: its value as text, Kafka's type of it in small letters, and what it says."""

    name: str
    kind: str
    value: str | None
    is_default: bool
    documentation: str


def broker_settings(services: KafkaServices) -> dict[str, BrokerSetting]:
    """All settings that correspond to Kafka's, by their names."""
    settings = services.settings
    found = [*_own(services)]
    found += [_typed(name, settings, _DEFAULTS, *known) for name, known in _AGENT.items()]
    found += [_typed(name, settings.groups, _DEFAULT_GROUPS, *known) for name, known in _GROUPS.items()]
    found += [
        BrokerSetting(
            name=each.broker_name,
            kind=each.kind,
            value=each.default,
            is_default=True,
            documentation=f"What topics without a {each.name} have. {each.documentation}",
        )
        for each in SETTINGS.values()
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
            documentation="Where clients are told to connect to.",
        ),
        BrokerSetting(
            name="broker.rack",
            kind="string",
            value=own.rack,
            is_default=own.rack is None,
            documentation="The zone that this agent stands in.",
        ),
        *(
            BrokerSetting(
                name=name,
                kind="int",
                value=str(own.node_id),
                is_default=False,
                documentation="The number of this agent.",
            )
            for name in ("broker.id", "node.id")
        ),
        BrokerSetting(
            name="default.replication.factor",
            kind="int",
            value="1",
            is_default=True,
            documentation="The copies of a record are the object store's affair.",
        ),
    ]


def _typed(name: str, given: object, defaults: object, field: str, says: str) -> BrokerSetting:
    value = getattr(given, field)
    kind = "string"
    if isinstance(value, bool):
        kind = "boolean"
    elif isinstance(value, int):
        kind = "long" if name.endswith("idle.ms") or name == "offsets.retention.check.interval.ms" else "int"
    return BrokerSetting(
        name=name,
        kind=kind,
        value=str(value).lower() if kind == "boolean" else str(value),
        is_default=value == getattr(defaults, field),
        documentation=says,
    )
