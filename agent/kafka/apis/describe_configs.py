"""DescribeConfigs: the settings of topics, of consumer groups and of this broker.

Versions 1 to 4. Topics have Kafka's settings and `storage.mode`. A broker shows what corresponds to Kafka's
settings, read-only, and nothing under the name that stands for all brokers: an agent takes its settings when
it starts. Groups have the settings of the consumer protocol. There are no subscriptions to clients' metrics,
and no loggers that could be changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.config.broker_settings import BrokerSetting, broker_settings
from agent.kafka.config.resources import (
    ResourceType,
    require_group_name,
    require_name,
    require_own,
    resource_type_of,
)
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of, to_kafka_error
from agent.runtime.cooperative_yield import Turns
from catalog.config.group_config import GroupConfig
from catalog.topics.names import check_topic_name
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.kafka.api_definition import RequestContext
    from catalog.config.configured import Configured
    from catalog.config.setting import Setting
    from catalog.config.topic_config import TopicConfig
    from catalog.model import Topic

_TOPIC_SOURCE, _STATIC_BROKER_SOURCE, _DEFAULT_SOURCE, _GROUP_SOURCE = 1, 4, 5, 8
# More groups than these are looked up all at once.
_ONE_BY_ONE = 8
# What settings are made once for; a request comes upon few that differ.
_MAX_SHARED = 256
_SETTINGS_IN_ONE = 40
# An answer has up to 5 KB for each of them.
_MAX_ITEMS = 10_000
_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7, "replicas": 7}


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe each resource, or say why not."""
    results = []
    found = await _look_up(request, context)
    shown = _Shown(request, broker_settings(context.services))
    turns = Turns()
    for wanted in request.resources:
        answer = Struct(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        results.append(answer)
        await turns.did(_SETTINGS_IN_ONE)
        failure = found.failures.get(wanted.resource_type)
        if failure is not None:
            answer.error_code, answer.error_message = failure.code, failure.message
            continue
        try:
            settings = await _describe(wanted, context, found, shown)
            answer.configs = [each for each in settings if _is_asked(each, wanted)]
        except SiltstoneError as error:
            answer.error_code, answer.error_message = code_of(error), message_of(error)
    return Struct(results=results)


@dataclass(slots=True)
class _Found:
    """The topics that are named; all groups with settings, where many are asked for; what failed."""

    topics: Mapping[str, Topic] = field(default_factory=dict)
    groups: Mapping[str, GroupConfig] | None = None
    failures: dict[int, KafkaError] = field(default_factory=dict)


class _Shown:
    """Settings as a request wants to see them, made once for all resources that have the same."""

    def __init__(self, request: Struct, of_broker: Mapping[str, BrokerSetting]) -> None:
        self._request = request
        self._of_broker = of_broker
        self._known: dict[Configured, list[Struct]] = {}

    def of(self, config: Configured, own_source: int) -> list[Struct]:
        """Those of a topic or a group, and where each comes from."""
        known = self._known.get(config)
        if known is None:
            if len(self._known) >= _MAX_SHARED:
                self._known.clear()
            found = _settings(config, own_source, self._of_broker)
            known = self._known[config] = [self._as_asked(each) for each in found]
        return known

    def of_broker(self) -> list[Struct]:
        """Those of this broker."""
        return [self._as_asked(_broker_setting(each)) for each in self._of_broker.values()]

    def _as_asked(self, found: Struct) -> Struct:
        if not self._request.include_synonyms:
            found.synonyms = []
        if not self._request.include_documentation:
            found.documentation = None
        return found


def config_source(config: TopicConfig, name: str) -> int:
    """Kafka's number for where a topic's setting comes from."""
    return _DEFAULT_SOURCE if config.is_default(name) else _TOPIC_SOURCE


def _is_asked(found: Struct, wanted: Struct) -> bool:
    asked = wanted.configuration_keys
    return not asked or found.name in asked


async def _look_up(request: Struct, context: RequestContext) -> _Found:
    """What the request names, in one look-up for each kind; groups one by one where they are few."""
    catalog, run = context.services.catalog, context.services.pools.catalog.run
    kinds = Counter(wanted.resource_type for wanted in request.resources)
    found = _Found()
    if kinds[ResourceType.TOPIC]:
        names = {each.resource_name for each in request.resources if each.resource_type == ResourceType.TOPIC}
        try:
            found.topics = {each.name: each for each in await run(partial(catalog.topics.named, list(names)))}
        except SiltstoneError as error:
            found.failures[ResourceType.TOPIC] = to_kafka_error(error)
    if kinds[ResourceType.GROUP] > _ONE_BY_ONE:
        try:
            found.groups = await run(catalog.group_configs.list)
        except SiltstoneError as error:
            found.failures[ResourceType.GROUP] = to_kafka_error(error)
    return found


async def _describe(
    wanted: Struct, context: RequestContext, found: _Found, shown: _Shown
) -> Iterable[Struct]:
    kind, name = resource_type_of(wanted.resource_type), wanted.resource_name
    services = context.services
    if kind is ResourceType.TOPIC:
        check_topic_name(name)
        if name not in found.topics:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return shown.of(found.topics[name].config, _TOPIC_SOURCE)
    if kind is ResourceType.GROUP:
        require_group_name(name)
        if found.groups is None:
            config = await services.pools.catalog.run(partial(services.catalog.group_configs.get, name))
        else:
            config = found.groups.get(name, GroupConfig())
        return shown.of(config, _GROUP_SOURCE)
    if kind is ResourceType.CLIENT_METRICS:
        require_name(name)
        return []
    if kind is ResourceType.BROKER and not name:
        return []
    require_own(name, context)
    if kind is ResourceType.BROKER_LOGGER:
        return []
    return shown.of_broker()


def _settings(
    config: Configured, own_source: int, of_broker: Mapping[str, BrokerSetting]
) -> Iterable[Struct]:
    for setting in config.known.values():
        synonyms = [_inherited(setting, of_broker)]
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


def _inherited(setting: Setting, of_broker: Mapping[str, BrokerSetting]) -> Struct:
    """What a setting is when nobody set it: the broker's, where that has it, or its own default."""
    known = of_broker.get(setting.broker_name or "")
    if known is None:
        return Struct(name=setting.broker_name or setting.name, value=setting.default, source=_DEFAULT_SOURCE)
    return Struct(name=known.name, value=known.value, source=_source(known))


def _source(setting: BrokerSetting) -> int:
    return _DEFAULT_SOURCE if setting.is_default else _STATIC_BROKER_SOURCE


def _broker_setting(setting: BrokerSetting) -> Struct:
    own = Struct(name=setting.name, value=setting.value, source=_source(setting))
    return Struct(
        name=setting.name,
        value=setting.value,
        read_only=True,
        config_source=_source(setting),
        synonyms=[own],
        config_type=_TYPES[setting.kind],
        documentation=setting.documentation,
    )


API = Api(name="describe_configs", min_version=1, max_version=4, handle=handle, max_items=_MAX_ITEMS)
