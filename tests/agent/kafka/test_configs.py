"""Settings of topics, groups and brokers, as clients ask for them and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kafka.codec import Struct
from agent.kafka.config.resources import ResourceType
from agent.kafka.errors import ErrorCode
from catalog.config.definitions import GROUP_SETTINGS, TOPIC_SETTINGS
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.agent.kafka.brokers import BrokerThread

_TOPIC, _STATIC, _DEFAULT, _GROUP = 1, 4, 5, 8
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_UNKNOWN_TYPE = 64


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as opened:
        yield opened


def described(
    wire: Wire, kind: int, name: str, *keys: str, version: int = 4, everything: bool = True
) -> Struct:
    """What DescribeConfigs says of one resource."""
    wanted = Struct(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    request = Struct(
        resources=[wanted], include_synonyms=everything, include_documentation=everything and version >= 3
    )
    result: Struct
    (result,) = wire.ask("describe_configs", version, request).results
    return result


def altered(
    wire: Wire, kind: int, name: str, *entries: tuple[int, str, str | None], dry: bool = False
) -> int:
    """What IncrementalAlterConfigs says to changes of one resource."""
    configs = [Struct(name=key, config_operation=how, value=value) for how, key, value in entries]
    wanted = Struct(resource_type=kind, resource_name=name, configs=configs)
    request = Struct(resources=[wanted], validate_only=dry)
    (answer,) = wire.ask("incremental_alter_configs", 1, request).responses
    return int(answer.error_code)


def replaced(wire: Wire, kind: int, name: str, **values: str | None) -> int:
    """What AlterConfigs says to new settings of one resource."""
    configs = [Struct(name=key.replace("_", "."), value=value) for key, value in values.items()]
    wanted = Struct(resource_type=kind, resource_name=name, configs=configs)
    (answer,) = wire.ask("alter_configs", 2, Struct(resources=[wanted], validate_only=False)).responses
    return int(answer.error_code)


def values(result: Struct) -> dict[str, str]:
    return {each.name: each.value for each in result.configs}


def explicit(result: Struct) -> dict[str, str]:
    """What is not inherited."""
    return {each.name: each.value for each in result.configs if each.config_source in {_TOPIC, _GROUP}}


def test_a_topic_shows_where_each_setting_comes_from(broker: BrokerThread, wire: Wire) -> None:
    """Its own value first, then the broker's under the broker's name; with words, for those who ask."""
    broker.create_topic("granite", segment_ms="5")
    shown = {each.name: each for each in described(wire, ResourceType.TOPIC, "granite").configs}
    assert shown.keys() == TOPIC_SETTINGS.keys()
    own = shown["segment.ms"]
    assert (own.value, own.config_source, own.config_type, own.read_only) == ("5", _TOPIC, 5, False)
    assert [(each.name, each.value, each.source) for each in own.synonyms] == [
        ("segment.ms", "5", _TOPIC),
        ("log.roll.ms", str(7 * 86_400_000), _DEFAULT),
    ]
    inherited = shown["remote.storage.enable"]
    assert (inherited.value, inherited.config_source, inherited.config_type) == ("false", _DEFAULT, 1)
    assert all(each.documentation and not each.is_sensitive for each in shown.values())
    for each in described(wire, ResourceType.TOPIC, "granite", everything=False).configs:
        assert (each.synonyms, each.documentation) == ([], None)


def test_every_version_shows_a_topics_settings(broker: BrokerThread, wire: Wire) -> None:
    broker.create_topic("granite", retention_ms="5")
    for version in range(1, 5):
        asked = described(wire, ResourceType.TOPIC, "granite", "retention.ms", "colour", version=version)
        assert values(asked) == {"retention.ms": "5"}


def test_many_topics_are_described_by_one_look_at_the_catalog(broker: BrokerThread, wire: Wire) -> None:
    """Also one among them that is not there."""
    names = [f"granite-{number}" for number in range(20)]
    for name in names:
        broker.create_topic(name, retention_ms="5")
    wanted = [
        Struct(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=["retention.ms"])
        for name in [*names, "marble", "granite-0"]
    ]

    before = broker.catalog_calls()
    results = wire.ask("describe_configs", 4, Struct(resources=wanted)).results
    asked = broker.catalog_calls() - before
    assert (asked["topics.by_names"], asked["topics.list"], asked["topics.get"]) == (1, 0, 0)
    assert [values(each) for each in results] == [{"retention.ms": "5"}] * 20 + [{}, {"retention.ms": "5"}]
    assert results[20].error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (ResourceType.TOPIC, "marble", ErrorCode.unknown_topic_or_partition),
        (ResourceType.TOPIC, "not/a name", ErrorCode.invalid_topic_exception),
        (ResourceType.GROUP, "", ErrorCode.invalid_request),
        (ResourceType.BROKER, "4711", ErrorCode.invalid_request),
        (ResourceType.BROKER, "first", ErrorCode.invalid_request),
        (ResourceType.BROKER_LOGGER, "", ErrorCode.invalid_request),
        (ResourceType.CLIENT_METRICS, "", ErrorCode.invalid_request),
        (_UNKNOWN_TYPE, "x", ErrorCode.invalid_request),
    ],
)
def test_what_has_no_settings_is_answered_as_by_kafka(
    wire: Wire, kind: int, name: str, expected: ErrorCode
) -> None:
    assert described(wire, kind, name).error_code == expected


def test_a_broker_shows_types_and_what_differs_from_its_defaults(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Under the name of all brokers there is nothing: agents take their settings when they start."""
    broker = start_broker(default_partitions=7)
    with Wire(broker.host_and_port) as wire:
        own = str(wire.ask("metadata", 12, Struct(topics=[])).controller_id)
        shown = {each.name: each for each in described(wire, ResourceType.BROKER, own).configs}
        partitions, created = shown["num.partitions"], shown["auto.create.topics.enable"]
        assert (partitions.value, partitions.config_type, partitions.config_source) == ("7", 3, _STATIC)
        assert (created.value, created.config_type, created.config_source) == ("false", 1, _DEFAULT)
        assert shown["log.retention.ms"].value == TOPIC_SETTINGS["retention.ms"].default
        assert all(each.read_only and each.documentation for each in shown.values())
        for kind, name in ((ResourceType.BROKER, ""), (ResourceType.BROKER_LOGGER, own)):
            nothing = described(wire, kind, name)
            assert (nothing.error_code, nothing.configs) == (ErrorCode.none, [])


def test_a_groups_settings_are_changed_and_shown(wire: Wire) -> None:
    assert described(wire, ResourceType.GROUP, "masons", SESSION).configs[0].config_source == _DEFAULT
    assert altered(wire, ResourceType.GROUP, "masons", (_SET, SESSION, "50000")) == ErrorCode.none
    shown = described(wire, ResourceType.GROUP, "masons")
    assert values(shown).keys() == GROUP_SETTINGS.keys()
    assert explicit(shown) == {SESSION: "50000"}
    (session,) = (each for each in shown.configs if each.name == SESSION)
    assert [(each.name, each.source) for each in session.synonyms] == [
        (SESSION, _GROUP),
        ("group.consumer.session.timeout.ms", _DEFAULT),
    ]
    assert replaced(wire, ResourceType.GROUP, "masons", consumer_heartbeat_interval_ms="6000") == 0
    assert explicit(described(wire, ResourceType.GROUP, "masons")) == {HEARTBEAT: "6000"}
    assert altered(wire, ResourceType.GROUP, "masons", (_DELETE, HEARTBEAT, None)) == ErrorCode.none
    assert explicit(described(wire, ResourceType.GROUP, "masons")) == {}


@pytest.mark.parametrize(
    ("name", "entry", "expected"),
    [
        ("", (_SET, SESSION, "50000"), ErrorCode.invalid_request),
        ("masons", (_SET, SESSION, "50"), ErrorCode.invalid_config),
        ("masons", (_SET, SESSION, "long"), ErrorCode.invalid_config),
        ("masons", (_SET, SESSION, None), ErrorCode.invalid_request),
        ("masons", (_APPEND, SESSION, "50000"), ErrorCode.invalid_config),
        ("masons", (_SET, "share.session.timeout.ms", "50000"), ErrorCode.invalid_config),
        ("masons", (9, SESSION, "50000"), ErrorCode.invalid_request),
    ],
)
def test_settings_that_a_group_cannot_have_are_refused(
    wire: Wire, name: str, entry: tuple[int, str, str | None], expected: ErrorCode
) -> None:
    for dry in (True, False):
        assert altered(wire, ResourceType.GROUP, name, entry, dry=dry) == expected
    assert explicit(described(wire, ResourceType.GROUP, "masons")) == {}


def test_a_member_is_told_the_interval_of_its_group(broker: BrokerThread, wire: Wire) -> None:
    """Whoever leaves is told none."""
    broker.create_topic("granite")
    altered(wire, ResourceType.GROUP, "masons", (_SET, HEARTBEAT, "7000"))
    joins = {"member_id": "m", "rebalance_timeout": 30_000, "subscribed_topic_names": ["granite"]}
    asked = Struct(group_id="masons", member_epoch=0, topic_partitions=[], **joins)
    assert wire.ask("consumer_group_heartbeat", 1, asked).heartbeat_interval == 7000
    leaves = Struct(group_id="masons", member_id="m", member_epoch=-1)
    assert wire.ask("consumer_group_heartbeat", 1, leaves).heartbeat_interval == 0


def test_changes_can_be_tried_without_effect(broker: BrokerThread, wire: Wire) -> None:
    broker.create_topic("granite")
    for kind, name, key in (
        (ResourceType.TOPIC, "granite", "retention.ms"),
        (ResourceType.GROUP, "masons", SESSION),
    ):
        assert altered(wire, kind, name, (_SET, key, "50000"), dry=True) == ErrorCode.none
        assert explicit(described(wire, kind, name)) == {}


def test_lists_are_appended_to_and_taken_from(broker: BrokerThread, wire: Wire) -> None:
    """Items that are there keep their place; what nobody could have set may be deleted, as in Kafka."""
    broker.create_topic("granite")
    key = "leader.replication.throttled.replicas"
    assert altered(wire, ResourceType.TOPIC, "granite", (_SET, key, "0:1,1:1")) == ErrorCode.none
    assert altered(wire, ResourceType.TOPIC, "granite", (_APPEND, key, "0:1,2:1")) == ErrorCode.none
    assert explicit(described(wire, ResourceType.TOPIC, "granite")) == {key: "0:1,1:1,2:1"}
    assert altered(wire, ResourceType.TOPIC, "granite", (_SUBTRACT, key, "1:1")) == ErrorCode.none
    assert explicit(described(wire, ResourceType.TOPIC, "granite")) == {key: "0:1,2:1"}
    gone = (_DELETE, "message.format.version", None)
    assert altered(wire, ResourceType.TOPIC, "granite", gone) == ErrorCode.none


def test_all_settings_of_a_topic_are_replaced_but_where_it_lives(broker: BrokerThread, wire: Wire) -> None:
    """Clients that replace all settings do not know of `storage.mode`, which cannot change."""
    broker.create_topic("granite", storage_mode="local", retention_ms="5")
    assert replaced(wire, ResourceType.TOPIC, "granite", segment_ms="6") == ErrorCode.none
    shown = explicit(described(wire, ResourceType.TOPIC, "granite"))
    assert shown == {"storage.mode": "local", "segment.ms": "6"}
    changed = altered(wire, ResourceType.TOPIC, "granite", (_SET, "storage.mode", "object"), dry=True)
    assert changed == ErrorCode.invalid_config
    assert replaced(wire, ResourceType.TOPIC, "granite", segment_ms=None) == ErrorCode.invalid_request


def test_what_cannot_be_changed_is_refused(wire: Wire) -> None:
    own = str(wire.ask("metadata", 12, Struct(topics=[])).controller_id)
    for kind, name in (
        (ResourceType.BROKER, own),
        (ResourceType.BROKER, ""),
        (ResourceType.BROKER, "4711"),
        (ResourceType.BROKER_LOGGER, own),
        (ResourceType.CLIENT_METRICS, "all"),
        (ResourceType.TOPIC, ""),
        (_UNKNOWN_TYPE, "x"),
    ):
        assert altered(wire, kind, name, (_SET, "a", "b")) == ErrorCode.invalid_request
        assert replaced(wire, kind, name, a="b") == ErrorCode.invalid_request
    unknown = altered(wire, ResourceType.TOPIC, "marble", (_SET, "segment.ms", "5"))
    assert unknown == ErrorCode.unknown_topic_or_partition


def test_a_request_that_names_a_resource_or_a_setting_twice_changes_neither(
    broker: BrokerThread, wire: Wire
) -> None:
    broker.create_topic("granite")
    for api, version, how in (
        ("incremental_alter_configs", 1, {"config_operation": _SET}),
        ("alter_configs", 2, {}),
    ):
        one = Struct(name="segment.ms", value="5", **how)
        wanted = Struct(resource_type=ResourceType.TOPIC, resource_name="granite", configs=[one])
        answers = wire.ask(api, version, Struct(resources=[wanted, wanted], validate_only=False)).responses
        assert [each.error_code for each in answers] == [ErrorCode.invalid_request] * 2
    twice = ((_SET, "segment.ms", "5"), (_DELETE, "segment.ms", None))
    assert altered(wire, ResourceType.TOPIC, "granite", *twice) == ErrorCode.invalid_request
    assert explicit(described(wire, ResourceType.TOPIC, "granite")) == {}


def test_resources_are_listed_by_their_type(broker: BrokerThread, wire: Wire) -> None:
    """Version 0 knows subscriptions to clients' metrics alone."""
    broker.create_topic("granite")
    altered(wire, ResourceType.GROUP, "masons", (_SET, SESSION, "50000"))
    own = str(wire.ask("metadata", 12, Struct(topics=[])).controller_id)

    def listed(*kinds: int, version: int = 1) -> list[tuple[int, str]]:
        answer = wire.ask("list_config_resources", version, Struct(resource_types=list(kinds)))
        assert answer.error_code == ErrorCode.none
        return [(each.resource_type, each.resource_name) for each in answer.config_resources]

    assert listed(ResourceType.GROUP) == [(ResourceType.GROUP, "masons")]
    assert listed() == [
        (ResourceType.TOPIC, "granite"),
        (ResourceType.BROKER, own),
        (ResourceType.BROKER_LOGGER, own),
        (ResourceType.GROUP, "masons"),
    ]
    assert listed(version=0) == []
    refused = wire.ask("list_config_resources", 1, Struct(resource_types=[_UNKNOWN_TYPE]))
    assert refused.error_code == ErrorCode.unsupported_version


def test_a_topic_whose_settings_lack_a_value_is_not_created(wire: Wire) -> None:
    wanted = Struct(
        name="granite",
        num_partitions=1,
        replication_factor=1,
        assignments=[],
        configs=[Struct(name="retention.ms", value=None)],
    )
    (answer,) = wire.ask("create_topics", 7, Struct(topics=[wanted], timeout=1000)).topics
    assert answer.error_code == ErrorCode.invalid_config
