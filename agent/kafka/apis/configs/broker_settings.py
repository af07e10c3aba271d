"""An agent's settings under their names in Kafka's brokers.

They include the defaults of topic and group configurations (Kafka's ServerTopicConfigSynonyms). They are
read-only, except for those in `catalog.config.broker_definitions`. A change of any other setting would have
no effect, so it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from agent.group_settings import GroupSettings
from agent.kafka.errors import ErrorCode, KafkaError
from agent.local_tier_settings import LocalTierSettings
from agent.settings import AgentSettings
from catalog.config.broker_definitions import BROKER_SETTINGS
from catalog.config.definitions import TOPIC_SETTINGS
from core.addresses import join_address
from core.settings import description_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.kafka.services import KafkaServices
    from catalog.config.values import BrokerConfig

DYNAMIC_SOURCE, _DYNAMIC_DEFAULT_SOURCE, _STATIC_SOURCE, DEFAULT_SOURCE = 2, 3, 4, 5
_MAX_NAMED = 10  # settings in an error message
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
    "controller.quota.window.num": "controller_quota_window_num",
    "controller.quota.window.size.seconds": "controller_quota_window_size_seconds",
    "max.connection.creation.rate": "kafka_max_connection_creation_rate",
    "max.connections": "kafka_max_connections",
    "max.connections.per.ip": "kafka_max_connections_per_ip",
    "num.partitions": "default_partitions",
    "quota.window.num": "quota_window_num",
    "quota.window.size.seconds": "quota_window_size_seconds",
    "socket.request.max.bytes": "max_request_bytes",
    "transaction.max.timeout.ms": "transaction_max_timeout_ms",
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
_OF_TOPICS = {each.broker_name: each.name for each in TOPIC_SETTINGS.values() if each.broker_name is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetting:
    """One setting: its value as text, and `kind`, the lower-case name of its Kafka type.

    `changed` has the values that clients have set and their sources, in the order of precedence.
    """

    name: str
    kind: str
    value: str | None
    is_default: bool
    documentation: str
    changed: tuple[tuple[str, int], ...] = ()

    @property
    def values(self) -> tuple[tuple[str | None, int], ...]:
        """All values and their sources (Kafka's ConfigSource), in the order of precedence."""
        return (*self.changed, (self.value, DEFAULT_SOURCE if self.is_default else _STATIC_SOURCE))


def broker_settings(
    services: KafkaServices, own: BrokerConfig, of_all: BrokerConfig
) -> dict[str, BrokerSetting]:
    """Return all settings that correspond to Kafka's, and those that clients have set, by name."""
    found = _readable(services)
    for name in {*own.as_strings(), *of_all.as_strings()} & BROKER_SETTINGS.keys():
        known = found.get(name) or _changeable(name)
        changed = [
            (config.text(name), source)
            for config, source in ((own, DYNAMIC_SOURCE), (of_all, _DYNAMIC_DEFAULT_SOURCE))
            if not config.is_default(name)
        ]
        found[name] = replace(known, changed=tuple(changed))
    return dict(sorted(found.items()))


def default_settings(of_all: BrokerConfig) -> list[BrokerSetting]:
    """Return the settings that clients have set for all brokers."""
    return [
        replace(_changeable(name), changed=((text, _DYNAMIC_DEFAULT_SOURCE),))
        for name, text in of_all.explicit
        if name in BROKER_SETTINGS
    ]


def require_changeable(names: Collection[str]) -> None:
    """Raise INVALID_REQUEST with Kafka's message if any of the settings cannot be changed."""
    refused = sorted(set(names) - BROKER_SETTINGS.keys())
    if refused:
        listed = ", ".join(refused[:_MAX_NAMED])
        reasons = "; ".join(map(_how_to_change, refused[:_MAX_NAMED]))
        raise KafkaError(
            ErrorCode.invalid_request, f"Cannot update these configs dynamically: [{listed}]: {reasons}"
        )


def _how_to_change(name: str) -> str:
    field = _AGENT.get(name) or (name.replace(".", "_") if name in {*_LOCAL_TIER, *_GROUPS} else None)
    if field is not None:
        return (
            f"{name} is the agent's setting {field}: change it in the agent's configuration file, environment"
            " or command line, and restart the agent"
        )
    if name in _OF_TOPICS:
        return f"the default {name} is fixed: set {_OF_TOPICS[name]} on topics"
    return (
        f"{name} is not a setting that a running agent can change: an agent reads its settings when it starts"
    )


def _changeable(name: str) -> BrokerSetting:
    setting = BROKER_SETTINGS[name]
    return BrokerSetting(
        name=name,
        kind=setting.kind,
        value=setting.default,
        is_default=True,
        documentation=setting.documentation,
    )


def _readable(services: KafkaServices) -> dict[str, BrokerSetting]:
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
    return {each.name: each for each in found}


def _own(services: KafkaServices) -> list[BrokerSetting]:
    own = services.brokers.own
    return [
        BrokerSetting(
            name="advertised.listeners",
            kind="list",
            value=",".join(
                f"{each.listener}://{join_address(each.host, each.port)}" for each in own.endpoints
            ),
            is_default=False,
            documentation="The addresses for clients to connect to, by listener.",
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
