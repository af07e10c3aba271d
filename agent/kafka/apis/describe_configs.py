"""DescribeConfigs: the settings of topics and of this broker.

Versions 1 to 4. Topics have Kafka's settings and `storage.mode`. A broker shows what corresponds to Kafka's
settings, read-only: an agent takes its settings when it starts. Other resources are refused. Synonyms are
the topic's own value and the default; documentation is left out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from agent.kafka.resources import ResourceType
from bedrock.errors import SiltstoneError
from catalog.topic_config import SETTINGS, TopicConfig

if TYPE_CHECKING:
    from agent.kafka.api import Context

_TOPIC_SOURCE, _STATIC_BROKER_SOURCE, _DEFAULT_SOURCE = 1, 4, 5
_STRING = 2
_TYPES = {"boolean": 1, "string": _STRING, "int": 3, "long": 5, "double": 6, "list": 7}


async def handle(request: Struct, context: Context) -> Struct:
    """Describe each resource, or say why not."""
    results = []
    for wanted in request.resources:
        answer = Struct(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        try:
            answer.configs = await _describe(wanted, context)
        except SiltstoneError as error:
            answer.error_code, answer.error_message = code_of(error), message_of(error)
        results.append(answer)
    return Struct(results=results)


def config_source(config: TopicConfig, name: str) -> int:
    """Kafka's number for where a topic's setting comes from."""
    return _DEFAULT_SOURCE if config.is_default(name) else _TOPIC_SOURCE


async def _describe(wanted: Struct, context: Context) -> list[Struct]:
    asked = wanted.configuration_keys
    if wanted.resource_type == ResourceType.TOPIC:
        get = partial(context.services.catalog.topics.get, wanted.resource_name)
        topic = await context.services.pools.catalog.run(get)
        names = [name for name in SETTINGS if not asked or name in asked]
        return [_topic_setting(topic.config, name) for name in names]
    if wanted.resource_type == ResourceType.BROKER:
        own = context.services.brokers.own.node_id
        if wanted.resource_name not in {"", str(own)}:
            raise KafkaError(
                ErrorCode.invalid_request, f"broker {own} was asked about broker {wanted.resource_name}"
            )
        settings = _broker_settings(context)
        return [_broker_setting(name, settings[name]) for name in settings if not asked or name in asked]
    raise KafkaError(
        ErrorCode.invalid_request, f"resources of type {wanted.resource_type} have no settings here"
    )


def _topic_setting(config: TopicConfig, name: str) -> Struct:
    default = Struct(name=name, value=SETTINGS[name].default, source=_DEFAULT_SOURCE)
    own = Struct(name=name, value=config.text(name), source=_TOPIC_SOURCE)
    return Struct(
        name=name,
        value=config.text(name),
        config_source=config_source(config, name),
        synonyms=[default] if config.is_default(name) else [own, default],
        config_type=_TYPES[SETTINGS[name].kind],
    )


def _broker_settings(context: Context) -> dict[str, str]:
    services = context.services
    own, settings = services.brokers.own, services.settings
    groups = settings.groups
    return {
        "advertised.listeners": f"PLAINTEXT://{own.host}:{own.port}",
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "broker.id": str(own.node_id),
        "broker.rack": own.rack or "",
        "connections.max.idle.ms": str(settings.kafka_idle_ms),
        "default.replication.factor": "1",
        "fetch.max.bytes": str(settings.max_fetch_bytes),
        "group.consumer.heartbeat.interval.ms": str(groups.consumer_heartbeat_interval_ms),
        "group.consumer.max.size": str(groups.consumer_max_size),
        "group.consumer.session.timeout.ms": str(groups.consumer_session_timeout_ms),
        "group.initial.rebalance.delay.ms": str(groups.initial_rebalance_delay_ms),
        "group.max.session.timeout.ms": str(groups.max_session_timeout_ms),
        "group.max.size": str(groups.max_group_size),
        "group.min.session.timeout.ms": str(groups.min_session_timeout_ms),
        "max.incremental.fetch.session.cache.slots": str(settings.max_fetch_sessions),
        "num.partitions": str(settings.default_partitions),
        "offset.metadata.max.bytes": str(groups.offset_metadata_max_bytes),
        "offsets.retention.check.interval.ms": str(groups.offsets_retention_check_interval_ms),
        "offsets.retention.minutes": str(groups.offsets_retention_minutes),
        "socket.request.max.bytes": str(settings.max_request_bytes),
    }


def _broker_setting(name: str, value: str) -> Struct:
    return Struct(
        name=name, value=value, read_only=True, config_source=_STATIC_BROKER_SOURCE, config_type=_STRING
    )


API = Api(name="describe_configs", lowest=1, highest=4, handle=handle)
