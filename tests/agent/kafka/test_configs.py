"""Configurations of topics, groups and brokers: clients describe and alter them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kafka.apis.configs.resources import ResourceType
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.config.broker_definitions import BROKER_SETTINGS
from catalog.config.definitions import GROUP_SETTINGS, TOPIC_SETTINGS
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.agent.kafka.brokers import BrokerThread

_TOPIC, _OWN_BROKER, _ALL_BROKERS, _STATIC, _DEFAULT, _GROUP = 1, 2, 3, 4, 5, 8
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_UNKNOWN_TYPE = 64


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as connection:
        yield connection


def describe(
    wire: Wire, kind: int, name: str, *keys: str, version: int = 4, everything: bool = True
) -> Struct:
    """Return the DescribeConfigs response for one resource."""
    wanted = Struct(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    request = Struct(
        resources=[wanted], include_synonyms=everything, include_documentation=everything and version >= 3
    )
    result: Struct
    (result,) = wire.ask("describe_configs", version, request).results
    return result


def alter(
    wire: Wire, kind: int, name: str, *entries: tuple[int, str, str | None], validate_only: bool = False
) -> int:
    """Return the error code of IncrementalAlterConfigs for one resource."""
    configs = [Struct(name=key, config_operation=operation, value=value) for operation, key, value in entries]
    wanted = Struct(resource_type=kind, resource_name=name, configs=configs)
    request = Struct(resources=[wanted], validate_only=validate_only)
    (response,) = wire.ask("incremental_alter_configs", 1, request).responses
    return int(response.error_code)


def replace(wire: Wire, kind: int, name: str, **values: str | None) -> int:
    """Return the error code of AlterConfigs for one resource."""
    configs = [Struct(name=key.replace("_", "."), value=value) for key, value in values.items()]
    wanted = Struct(resource_type=kind, resource_name=name, configs=configs)
    (response,) = wire.ask("alter_configs", 2, Struct(resources=[wanted], validate_only=False)).responses
    return int(response.error_code)


def values(result: Struct) -> dict[str, str]:
    return {each.name: each.value for each in result.configs}


def explicit(result: Struct) -> dict[str, str]:
    """Return the values that are not inherited."""
    return {each.name: each.value for each in result.configs if each.config_source in {_TOPIC, _GROUP}}


def test_a_topic_reports_the_source_of_each_setting(broker: BrokerThread, wire: Wire) -> None:
    """Its own value first, then the broker's by its broker name; documentation only on request."""
    broker.create_topic("granite", segment_ms="5")
    settings = {each.name: each for each in describe(wire, ResourceType.TOPIC, "granite").configs}
    assert settings.keys() == TOPIC_SETTINGS.keys()
    own = settings["segment.ms"]
    assert (own.value, own.config_source, own.config_type, own.read_only) == ("5", _TOPIC, 5, False)
    assert [(each.name, each.value, each.source) for each in own.synonyms] == [
        ("segment.ms", "5", _TOPIC),
        ("log.roll.ms", str(7 * 86_400_000), _DEFAULT),
    ]
    inherited = settings["remote.storage.enable"]
    assert (inherited.value, inherited.config_source, inherited.config_type) == ("false", _DEFAULT, 1)
    assert all(each.documentation and not each.is_sensitive for each in settings.values())
    for each in describe(wire, ResourceType.TOPIC, "granite", everything=False).configs:
        assert (each.synonyms, each.documentation) == ([], None)


def test_every_version_describes_a_topic(broker: BrokerThread, wire: Wire) -> None:
    broker.create_topic("granite", retention_ms="5")
    for version in range(1, 5):
        response = describe(wire, ResourceType.TOPIC, "granite", "retention.ms", "colour", version=version)
        assert values(response) == {"retention.ms": "5"}


def test_many_topics_are_described_with_one_catalog_call(broker: BrokerThread, wire: Wire) -> None:
    """Even if one of them does not exist."""
    names = [f"granite-{number}" for number in range(20)]
    for name in names:
        broker.create_topic(name, retention_ms="5")
    wanted = [
        Struct(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=["retention.ms"])
        for name in [*names, "marble", "granite-0"]
    ]

    before = broker.catalog_calls()
    results = wire.ask("describe_configs", 4, Struct(resources=wanted)).results
    calls = broker.catalog_calls() - before
    assert (calls["topics.by_names"], calls["topics.list"], calls["topics.get"]) == (1, 0, 0)
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
def test_an_invalid_resource_gets_kafkas_error(wire: Wire, kind: int, name: str, expected: ErrorCode) -> None:
    assert describe(wire, kind, name).error_code == expected


def test_a_broker_reports_types_and_sources_of_its_settings(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """All but those without a meaning here are read-only, because agents read theirs when they start."""
    broker = start_broker(default_partitions=7)
    with Wire(broker.host_and_port) as wire:
        own = str(wire.ask("metadata", 12, Struct(topics=[])).controller_id)
        settings = {each.name: each for each in describe(wire, ResourceType.BROKER, own).configs}
        partitions, created = settings["num.partitions"], settings["auto.create.topics.enable"]
        assert (partitions.value, partitions.config_type, partitions.config_source) == ("7", 3, _STATIC)
        assert (created.value, created.config_type, created.config_source) == ("true", 1, _DEFAULT)
        assert settings["log.retention.ms"].value == TOPIC_SETTINGS["retention.ms"].default
        assert all(each.documentation for each in settings.values())
        assert {name for name, each in settings.items() if not each.read_only} == (
            settings.keys() & BROKER_SETTINGS.keys()
        )
        for kind, name in ((ResourceType.BROKER, ""), (ResourceType.BROKER_LOGGER, own)):
            nothing = describe(wire, kind, name)
            assert (nothing.error_code, nothing.configs) == (ErrorCode.none, [])


def test_a_groups_settings_are_altered_and_described(wire: Wire) -> None:
    assert describe(wire, ResourceType.GROUP, "masons", SESSION).configs[0].config_source == _DEFAULT
    assert alter(wire, ResourceType.GROUP, "masons", (_SET, SESSION, "50000")) == ErrorCode.none
    settings = describe(wire, ResourceType.GROUP, "masons")
    assert values(settings).keys() == GROUP_SETTINGS.keys()
    assert explicit(settings) == {SESSION: "50000"}
    (session,) = (each for each in settings.configs if each.name == SESSION)
    assert [(each.name, each.source) for each in session.synonyms] == [
        (SESSION, _GROUP),
        ("group.consumer.session.timeout.ms", _DEFAULT),
    ]
    assert replace(wire, ResourceType.GROUP, "masons", consumer_heartbeat_interval_ms="6000") == 0
    assert explicit(describe(wire, ResourceType.GROUP, "masons")) == {HEARTBEAT: "6000"}
    assert alter(wire, ResourceType.GROUP, "masons", (_DELETE, HEARTBEAT, None)) == ErrorCode.none
    assert explicit(describe(wire, ResourceType.GROUP, "masons")) == {}


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
def test_invalid_settings_of_a_group_are_rejected(
    wire: Wire, name: str, entry: tuple[int, str, str | None], expected: ErrorCode
) -> None:
    for validate_only in (True, False):
        assert alter(wire, ResourceType.GROUP, name, entry, validate_only=validate_only) == expected
    assert explicit(describe(wire, ResourceType.GROUP, "masons")) == {}


def test_a_heartbeat_response_contains_the_interval_of_the_group(broker: BrokerThread, wire: Wire) -> None:
    """The response to a leaving member has no interval."""
    broker.create_topic("granite")
    alter(wire, ResourceType.GROUP, "masons", (_SET, HEARTBEAT, "7000"))
    joins = {"member_id": "m", "rebalance_timeout": 30_000, "subscribed_topic_names": ["granite"]}
    response = Struct(group_id="masons", member_epoch=0, topic_partitions=[], **joins)
    assert wire.ask("consumer_group_heartbeat", 1, response).heartbeat_interval == 7000
    leaves = Struct(group_id="masons", member_id="m", member_epoch=-1)
    assert wire.ask("consumer_group_heartbeat", 1, leaves).heartbeat_interval == 0


def test_validate_only_changes_nothing(broker: BrokerThread, wire: Wire) -> None:
    broker.create_topic("granite")
    for kind, name, key in (
        (ResourceType.TOPIC, "granite", "retention.ms"),
        (ResourceType.GROUP, "masons", SESSION),
    ):
        assert alter(wire, kind, name, (_SET, key, "50000"), validate_only=True) == ErrorCode.none
        assert explicit(describe(wire, kind, name)) == {}


def test_list_values_are_appended_and_subtracted(broker: BrokerThread, wire: Wire) -> None:
    """Existing items keep their position. As in Kafka, an unknown setting may be deleted."""
    broker.create_topic("granite")
    key = "leader.replication.throttled.replicas"
    assert alter(wire, ResourceType.TOPIC, "granite", (_SET, key, "0:1,1:1")) == ErrorCode.none
    assert alter(wire, ResourceType.TOPIC, "granite", (_APPEND, key, "0:1,2:1")) == ErrorCode.none
    assert explicit(describe(wire, ResourceType.TOPIC, "granite")) == {key: "0:1,1:1,2:1"}
    assert alter(wire, ResourceType.TOPIC, "granite", (_SUBTRACT, key, "1:1")) == ErrorCode.none
    assert explicit(describe(wire, ResourceType.TOPIC, "granite")) == {key: "0:1,2:1"}
    unknown_setting = (_DELETE, "message.format.version", None)
    assert alter(wire, ResourceType.TOPIC, "granite", unknown_setting) == ErrorCode.none


def test_alter_configs_replaces_all_settings_but_the_storage_mode(broker: BrokerThread, wire: Wire) -> None:
    """Clients that replace all settings do not know of `storage.mode`, which cannot change."""
    broker.create_topic("granite", storage_mode="local", retention_ms="5")
    assert replace(wire, ResourceType.TOPIC, "granite", segment_ms="6") == ErrorCode.none
    settings = explicit(describe(wire, ResourceType.TOPIC, "granite"))
    assert settings == {"storage.mode": "local", "segment.ms": "6"}
    changed = alter(wire, ResourceType.TOPIC, "granite", (_SET, "storage.mode", "object"), validate_only=True)
    assert changed == ErrorCode.invalid_config
    assert replace(wire, ResourceType.TOPIC, "granite", segment_ms=None) == ErrorCode.invalid_request


def test_changes_of_immutable_resources_are_rejected(wire: Wire) -> None:
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
        assert alter(wire, kind, name, (_SET, "a", "b")) == ErrorCode.invalid_request
        assert replace(wire, kind, name, a="b") == ErrorCode.invalid_request
    unknown = alter(wire, ResourceType.TOPIC, "marble", (_SET, "segment.ms", "5"))
    assert unknown == ErrorCode.unknown_topic_or_partition


def own_id(wire: Wire) -> str:
    return str(wire.ask("metadata", 12, Struct(topics=[])).controller_id)


def changed_by_clients(result: Struct) -> dict[str, tuple[str, int]]:
    return {
        each.name: (each.value, each.config_source)
        for each in result.configs
        if each.config_source in {_OWN_BROKER, _ALL_BROKERS}
    }


def test_broker_settings_without_a_meaning_are_stored_and_described(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """The value of a broker precedes that of all brokers. Topics inherit both."""
    broker = start_broker()
    broker.create_topic("granite")
    with Wire(broker.host_and_port) as wire:
        own = own_id(wire)
        rate, replicas = "leader.replication.throttled.rate", "min.insync.replicas"
        for kind, name, entry in (
            (ResourceType.BROKER, own, (_SET, rate, "1000")),
            (ResourceType.BROKER, "", (_SET, rate, "2000")),
            (ResourceType.BROKER, "", (_SET, replicas, "2")),
        ):
            assert alter(wire, kind, name, entry, validate_only=True) == ErrorCode.none
            assert changed_by_clients(describe(wire, kind, name)).get(entry[1]) != (entry[2], _OWN_BROKER)
            assert alter(wire, kind, name, entry) == ErrorCode.none

        shown = describe(wire, ResourceType.BROKER, own)
        assert changed_by_clients(shown) == {rate: ("1000", _OWN_BROKER), replicas: ("2", _ALL_BROKERS)}
        (throttle,) = (each for each in shown.configs if each.name == rate)
        assert not throttle.read_only
        assert [(each.value, each.source) for each in throttle.synonyms] == [
            ("1000", _OWN_BROKER),
            ("2000", _ALL_BROKERS),
            (str(2**63 - 1), _DEFAULT),
        ]
        of_all = {rate: ("2000", _ALL_BROKERS), replicas: ("2", _ALL_BROKERS)}
        assert changed_by_clients(describe(wire, ResourceType.BROKER, "")) == of_all
        of_topic = describe(wire, ResourceType.TOPIC, "granite", replicas).configs[0]
        assert (of_topic.value, of_topic.config_source) == ("2", _ALL_BROKERS)

        assert alter(wire, ResourceType.BROKER, own, (_DELETE, rate, None)) == ErrorCode.none
        assert changed_by_clients(describe(wire, ResourceType.BROKER, own)) == of_all
        assert replace(wire, ResourceType.BROKER, "", num_io_threads="16") == ErrorCode.none
        assert changed_by_clients(describe(wire, ResourceType.BROKER, own)) == {
            "num.io.threads": ("16", _ALL_BROKERS)
        }
        assert alter(wire, ResourceType.BROKER, "", (_DELETE, "num.io.threads", None)) == ErrorCode.none
        assert describe(wire, ResourceType.BROKER, "").configs == []


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ((_SET, "num.partitions", "3"), "the agent's setting default_partitions"),
        ((_SET, "log.cleaner.threads", "2"), "the agent's setting log_cleaner_threads"),
        ((_SET, "log.retention.ms", "1"), "set retention.ms on topics"),
        ((_SET, "broker.id", "3"), "reads its settings when it starts"),
        ((_SET, "listeners", "PLAINTEXT://:1"), "reads its settings when it starts"),
        ((_APPEND, "metric.reporters", "x"), "reads its settings when it starts"),
        ((_SET, "ssl.keystore.password", "secret"), "reads its settings when it starts"),
        ((_SET, "colour", "red"), "reads its settings when it starts"),
        ((_SET, "num.io.threads", "many"), "an integer of at least 1"),
        ((_SET, "leader.replication.throttled.rate", "-1"), "an integer of at least 0"),
    ],
)
def test_a_change_of_a_broker_that_would_have_no_effect_is_refused(
    wire: Wire, entry: tuple[int, str, str], reason: str
) -> None:
    """The error names the setting and how to change it. Nothing of the request is stored."""
    operation, name, value = entry
    valid = Struct(name="num.replica.fetchers", config_operation=_SET, value="2")
    changed = Struct(name=name, config_operation=operation, value=value)
    for resource in (own_id(wire), ""):
        wanted = Struct(resource_type=ResourceType.BROKER, resource_name=resource, configs=[valid, changed])
        request = Struct(resources=[wanted], validate_only=False)
        (response,) = wire.ask("incremental_alter_configs", 1, request).responses
        assert response.error_code == ErrorCode.invalid_request
        assert name in response.error_message
        assert reason in response.error_message
        assert "secret" not in response.error_message
        assert changed_by_clients(describe(wire, ResourceType.BROKER, resource)) == {}
        # As in Kafka, the deletion of a setting that cannot be set is not an error.
        assert alter(wire, ResourceType.BROKER, resource, (_DELETE, name, None)) == ErrorCode.none


def test_a_request_with_a_duplicate_resource_or_setting_changes_nothing(
    broker: BrokerThread, wire: Wire
) -> None:
    broker.create_topic("granite")
    for api, version, operation in (
        ("incremental_alter_configs", 1, {"config_operation": _SET}),
        ("alter_configs", 2, {}),
    ):
        one = Struct(name="segment.ms", value="5", **operation)
        wanted = Struct(resource_type=ResourceType.TOPIC, resource_name="granite", configs=[one])
        responses = wire.ask(api, version, Struct(resources=[wanted, wanted], validate_only=False)).responses
        assert [each.error_code for each in responses] == [ErrorCode.invalid_request] * 2
    twice = ((_SET, "segment.ms", "5"), (_DELETE, "segment.ms", None))
    assert alter(wire, ResourceType.TOPIC, "granite", *twice) == ErrorCode.invalid_request
    assert explicit(describe(wire, ResourceType.TOPIC, "granite")) == {}


def test_resources_are_listed_by_type(broker: BrokerThread, wire: Wire) -> None:
    """Version 0 lists only client metrics resources."""
    broker.create_topic("granite")
    alter(wire, ResourceType.GROUP, "masons", (_SET, SESSION, "50000"))
    own = str(wire.ask("metadata", 12, Struct(topics=[])).controller_id)

    def listed(*kinds: int, version: int = 1) -> list[tuple[int, str]]:
        response = wire.ask("list_config_resources", version, Struct(resource_types=list(kinds)))
        assert response.error_code == ErrorCode.none
        return [(each.resource_type, each.resource_name) for each in response.config_resources]

    assert listed(ResourceType.GROUP) == [(ResourceType.GROUP, "masons")]
    assert listed() == [
        (ResourceType.TOPIC, "granite"),
        (ResourceType.BROKER, own),
        (ResourceType.BROKER_LOGGER, own),
        (ResourceType.GROUP, "masons"),
    ]
    assert listed(version=0) == []
    rejected = wire.ask("list_config_resources", 1, Struct(resource_types=[_UNKNOWN_TYPE]))
    assert rejected.error_code == ErrorCode.unsupported_version


def test_a_topic_with_a_null_setting_is_not_created(wire: Wire) -> None:
    wanted = Struct(
        name="granite",
        num_partitions=1,
        replication_factor=1,
        assignments=[],
        configs=[Struct(name="retention.ms", value=None)],
    )
    (response,) = wire.ask("create_topics", 7, Struct(topics=[wanted], timeout=1000)).topics
    assert response.error_code == ErrorCode.invalid_config
