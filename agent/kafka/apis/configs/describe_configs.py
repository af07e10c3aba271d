"""DescribeConfigs: describes the settings of topics, of consumer groups and of this broker.

Versions 1 to 4. Version 1 added synonyms, version 3 types and documentation, version 4 is the first flexible
one.

- Topics have all of Kafka's settings, and `storage.mode`.
- Groups have the settings of the consumer protocol.
- This broker shows its settings under Kafka's names, and the values that clients have set. All others are
  read-only: an agent reads them when it starts.
- The default of all brokers (an empty name) has the values that clients have set for all brokers.
- Client metrics and loggers have no settings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.configs.broker_settings import (
    DEFAULT_SOURCE,
    BrokerSetting,
    broker_settings,
    default_settings,
)
from agent.kafka.apis.configs.resources import (
    ResourceType,
    require_group_name,
    require_own_broker,
    require_resource_name,
    require_right,
    resource_type_of,
)
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of, to_kafka_error
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import (
    DESCRIBE_CLUSTER_CONFIGS,
    DESCRIBE_GROUP_CONFIGS,
    DESCRIBE_TOPIC_CONFIGS,
)
from catalog.config.broker_definitions import BROKER_SETTINGS
from catalog.config.repository import ALL_BROKERS
from catalog.config.values import BrokerConfig, GroupConfig
from catalog.topics.names import check_topic_name
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.kafka.api_definition import RequestContext
    from catalog.config.schema import Setting
    from catalog.config.values import ResourceConfig, TopicConfig
    from catalog.model import Topic

_TOPIC_SOURCE, _GROUP_SOURCE = 1, 8
# Up to this number, groups are looked up one by one; beyond it, all groups with settings are read at once.
_MAX_SINGLE_LOOK_UPS = 8
# Rendered configurations in the cache of one request. Few configurations of a cluster differ.
_MAX_RENDERED = 256
_RENDERING_COST = 40  # items of the usual work on the event loop
# The response has up to 5 KB for each item.
_MAX_ITEMS = 10_000
_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7, "replicas": 7}


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe each resource, or report why not."""
    results = []
    found = await _look_up(request, context)
    rendered = _RenderedSettings(request, broker_settings(context.services, found.own, found.of_all_brokers))
    yielding = CooperativeYield()
    for wanted in request.resources:
        result = Struct(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        results.append(result)
        await yielding.step(_RENDERING_COST)
        try:
            require_right(
                context,
                resource_type_of(wanted.resource_type),
                wanted.resource_name,
                on_topic=DESCRIBE_TOPIC_CONFIGS,
                on_group=DESCRIBE_GROUP_CONFIGS,
                else_=DESCRIBE_CLUSTER_CONFIGS,
            )
            settings = await _describe(wanted, context, found, rendered)
            result.configs = [each for each in settings if _is_requested(each, wanted)]
        except SiltstoneError as error:
            result.error_code, result.error_message = code_of(error), message_of(error)
    return Struct(results=results)


@dataclass(slots=True)
class _Resources:
    """The requested topics, all groups with settings if many are requested, and errors by resource type.

    `own` and `of_all_brokers` are what clients have set for this broker and for all. Topics inherit it.
    """

    topics: Mapping[str, Topic] = field(default_factory=dict)
    own: BrokerConfig = field(default_factory=BrokerConfig)
    of_all_brokers: BrokerConfig = field(default_factory=BrokerConfig)
    groups: Mapping[str, GroupConfig] | None = None
    failures: dict[int, KafkaError] = field(default_factory=dict)


class _RenderedSettings:
    """Settings in the form that a request wants, rendered once for all resources with equal settings."""

    def __init__(self, request: Struct, of_broker: Mapping[str, BrokerSetting]) -> None:
        self._request = request
        self._of_broker = of_broker
        self._known: dict[ResourceConfig, list[Struct]] = {}

    def of(self, config: ResourceConfig, own_source: int) -> list[Struct]:
        """Return the settings of a topic or a group, and the source of each."""
        known = self._known.get(config)
        if known is None:
            if len(self._known) >= _MAX_RENDERED:
                self._known.clear()
            found = _settings(config, own_source, self._of_broker)
            known = self._known[config] = [self._strip(each) for each in found]
        return known

    def of_broker(self) -> list[Struct]:
        """Return the settings of this broker."""
        return [self._strip(_broker_setting(each)) for each in self._of_broker.values()]

    def of_all_brokers(self, config: BrokerConfig) -> list[Struct]:
        """Return the settings of the default of all brokers."""
        return [self._strip(_broker_setting(each)) for each in default_settings(config)]

    def _strip(self, found: Struct) -> Struct:
        """Remove the fields that the request does not want."""
        if not self._request.include_synonyms:
            found.synonyms = []
        if not self._request.include_documentation:
            found.documentation = None
        return found


def config_source(config: TopicConfig, name: str) -> int:
    """Return Kafka's ConfigSource of a topic's setting."""
    return DEFAULT_SOURCE if config.is_default(name) else _TOPIC_SOURCE


def _is_requested(found: Struct, wanted: Struct) -> bool:
    names = wanted.configuration_keys
    return not names or found.name in names


async def _look_up(request: Struct, context: RequestContext) -> _Resources:
    """Read the requested topics, and all groups if many are requested, with one query for each type."""
    catalog, run = context.services.catalog, context.services.pools.catalog.run
    kinds = Counter(wanted.resource_type for wanted in request.resources)
    found = _Resources()
    if kinds[ResourceType.TOPIC]:
        names = {each.resource_name for each in request.resources if each.resource_type == ResourceType.TOPIC}
        try:
            found.topics = {
                each.name: each for each in await run(partial(catalog.topics.by_names, list(names)))
            }
        except SiltstoneError as error:
            found.failures[ResourceType.TOPIC] = to_kafka_error(error)
    if kinds[ResourceType.BROKER] or kinds[ResourceType.TOPIC]:
        await _look_up_brokers(found, context)
    if kinds[ResourceType.GROUP] > _MAX_SINGLE_LOOK_UPS:
        try:
            found.groups = await run(catalog.group_configs.list)
        except SiltstoneError as error:
            found.failures[ResourceType.GROUP] = to_kafka_error(error)
    return found


async def _look_up_brokers(found: _Resources, context: RequestContext) -> None:
    services = context.services
    own = str(services.brokers.own.node_id)
    find = partial(services.catalog.broker_configs.find, [own, ALL_BROKERS])
    try:
        configs = await services.pools.catalog.run(find)
    except SiltstoneError as error:
        for kind in (ResourceType.BROKER, ResourceType.TOPIC):
            found.failures.setdefault(kind, to_kafka_error(error))
    else:
        found.own, found.of_all_brokers = configs[own], configs[ALL_BROKERS]


async def _describe(
    wanted: Struct, context: RequestContext, found: _Resources, rendered: _RenderedSettings
) -> Iterable[Struct]:
    kind, name = resource_type_of(wanted.resource_type), wanted.resource_name
    services = context.services
    if kind in found.failures:
        raise found.failures[kind]
    if kind is ResourceType.TOPIC:
        check_topic_name(name)
        if name not in found.topics:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return rendered.of(found.topics[name].config, _TOPIC_SOURCE)
    if kind is ResourceType.GROUP:
        require_group_name(name)
        if found.groups is None:
            config = await services.pools.catalog.run(partial(services.catalog.group_configs.get, name))
        else:
            config = found.groups.get(name, GroupConfig())
        return rendered.of(config, _GROUP_SOURCE)
    if kind is ResourceType.CLIENT_METRICS:
        require_resource_name(name)
        return []
    if kind is ResourceType.BROKER and not name:
        return rendered.of_all_brokers(found.of_all_brokers)
    require_own_broker(name, context)
    if kind is ResourceType.BROKER_LOGGER:
        return []
    return rendered.of_broker()


def _settings(
    config: ResourceConfig, own_source: int, of_broker: Mapping[str, BrokerSetting]
) -> Iterable[Struct]:
    for setting in config.schema.values():
        synonyms = _inherited(setting, of_broker)
        if not config.is_default(setting.name):
            own = Struct(name=setting.name, value=config.text(setting.name), source=own_source)
            synonyms.insert(0, own)
        yield Struct(
            name=setting.name,
            value=synonyms[0].value,
            config_source=synonyms[0].source,
            synonyms=synonyms,
            config_type=_TYPES[setting.kind],
            documentation=setting.documentation,
        )


def _inherited(setting: Setting, of_broker: Mapping[str, BrokerSetting]) -> list[Struct]:
    """Return the values of a setting that the resource does not set: the broker's, or the default."""
    known = of_broker.get(setting.broker_name or "")
    if known is None:
        return [
            Struct(name=setting.broker_name or setting.name, value=setting.default, source=DEFAULT_SOURCE)
        ]
    return _values(known)


def _values(setting: BrokerSetting) -> list[Struct]:
    return [Struct(name=setting.name, value=value, source=source) for value, source in setting.values]


def _broker_setting(setting: BrokerSetting) -> Struct:
    synonyms = _values(setting)
    return Struct(
        name=setting.name,
        value=synonyms[0].value,
        read_only=setting.name not in BROKER_SETTINGS,
        config_source=synonyms[0].source,
        synonyms=synonyms,
        config_type=_TYPES[setting.kind],
        documentation=setting.documentation,
    )


API = Api(name="describe_configs", min_version=1, max_version=4, handle=handle, max_items=_MAX_ITEMS)
