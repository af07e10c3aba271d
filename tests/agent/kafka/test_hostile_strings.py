"""Strings that PostgreSQL cannot keep, wherever a client may send one: refused in Kafka's words."""

from __future__ import annotations

import random
import string
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

from agent.kafka.api_registry import APIS
from agent.kafka.codec import Struct
from agent.kafka.codec.schema import schema_of
from agent.kafka.config.resources import ResourceType
from agent.kafka.errors import ErrorCode
from catalog.config.definitions import TOPIC_SETTINGS
from tests.agent.groups.mixed_stage import subscription
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.kafka.codec.schema import StructSchema
    from tests.agent.kafka.brokers import BrokerThread

WITH_NUL = "a\0b"
# Longer than an entry of an index, and not to be compressed into one.
TOO_LONG = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=6000))
_BOTH = pytest.mark.parametrize("text", [WITH_NUL, TOO_LONG], ids=["nul", "long"])
# Without these, requests would be refused, or not answered, before their strings are looked at.
_NUMBERS = {
    "acks": -1,
    "session_timeout": 45_000,
    "rebalance_timeout": 60_000,
    "timeout": 1000,
    "num_partitions": 1,
    "replication_factor": 1,
    "generation_id_or_member_epoch": -1,
}


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port, client_id=WITH_NUL) as opened:
        yield opened


def _filled(schema: StructSchema, text: str, **chosen: object) -> Struct:
    """A request with `text` as every string, one element in every array, and `chosen` by name."""
    values: dict[str, object] = {}
    for field in schema.fields:
        value: object = field.default
        if field.struct is not None:
            value = _filled(field.struct, text, **chosen)
        elif field.kind == "string":
            value = text
        if field.is_array:
            value = [value if field.struct is not None or field.kind == "string" else 0]
        values[field.name] = chosen.get(field.name, _NUMBERS.get(field.name, value))
    return Struct(**values)


def _said(answer: object) -> Iterator[tuple[int, str]]:
    """Every code in an answer, with its words."""
    if isinstance(answer, Struct):
        if "error_code" in vars(answer):
            yield answer.error_code, vars(answer).get("error_message") or ""
        for value in vars(answer).values():
            yield from _said(value)
    elif isinstance(answer, list | tuple):
        for each in answer:
            yield from _said(each)


@_BOTH
def test_no_string_is_a_server_error(broker: BrokerThread, wire: Wire, catalog_url: str, text: str) -> None:
    """In any field of any request: there is an answer, it blames the request, and tells of no path here."""
    broker.create_topic("granite")
    directory = str(conninfo_to_dict(catalog_url)["host"])
    for api in APIS:
        for version in {api.min_version, api.max_version}:
            schema = schema_of(api.name, version, "request")
            for kind in (ResourceType.TOPIC, ResourceType.GROUP):
                request = _filled(schema, text, resource_type=kind, key_type=0)
                said = list(_said(wire.ask(api.name, version, request)))
                for code, words in said:
                    assert code != ErrorCode.unknown_server_error, (api.name, version)
                    assert directory not in words


@_BOTH
def test_a_group_cannot_have_such_a_name(wire: Wire, text: str) -> None:
    """Whoever asks: members, those who look for offsets, administrators."""
    config = Struct(name="consumer.session.timeout.ms", config_operation=0, value="50000")
    resource = Struct(resource_type=ResourceType.GROUP, resource_name=text, configs=[config])
    found = []
    for only_tried in (True, False):
        asked = Struct(resources=[resource], validate_only=only_tried)
        found += wire.ask("incremental_alter_configs", 1, asked).responses
    described = Struct(resource_type=ResourceType.GROUP, resource_name=text, configuration_keys=None)
    found += wire.ask("describe_configs", 4, Struct(resources=[described])).results
    found += wire.ask("offset_fetch", 8, Struct(groups=[Struct(group_id=text, topics=None)])).groups
    found += wire.ask("delete_groups", 2, Struct(groups_names=[text])).results
    found += wire.ask("describe_groups", 5, Struct(groups=[text])).groups
    found.append(wire.ask("offset_fetch", 7, Struct(group_id=text, topics=None)))
    found.append(wire.ask("heartbeat", 4, Struct(group_id=text, generation_id=1, member_id="m")))
    assert [each.error_code for each in found] == [ErrorCode.invalid_group_id] * len(found)


def test_there_is_no_topic_of_such_a_name(wire: Wire) -> None:
    missing, refused = ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception
    named = [Struct(name=WITH_NUL, topic_id=None)]
    deleted = wire.ask("delete_topics", 6, Struct(topics=named, timeout=1000)).responses
    assert [each.error_code for each in deleted] == [missing]
    described = wire.ask("metadata", 12, Struct(topics=named)).topics
    assert [each.error_code for each in described] == [refused]


def test_no_setting_takes_such_a_value(broker: BrokerThread, wire: Wire) -> None:
    broker.create_topic("granite")
    for setting in TOPIC_SETTINGS:
        config = Struct(name=setting, config_operation=0, value=WITH_NUL)
        resource = Struct(resource_type=ResourceType.TOPIC, resource_name="granite", configs=[config])
        (answer,) = wire.ask("incremental_alter_configs", 1, Struct(resources=[resource])).responses
        assert answer.error_code == ErrorCode.invalid_config


def test_members_may_name_what_is_no_topic(broker: BrokerThread, wire: Wire) -> None:
    """As in Kafka, it is a topic that is not there yet: the group has the others, in both protocols."""
    broker.create_topic("granite")
    asked = Struct(
        group_id="new", member_id="m", rebalance_timeout=60_000, subscribed_topic_names=["granite", WITH_NUL]
    )
    asked.topic_partitions = []
    answer = wire.ask("consumer_group_heartbeat", 1, asked)
    assert answer.error_code == ErrorCode.none
    assert sum(len(each.partitions) for each in answer.assignment.topic_partitions) == 1
    wanted = Struct(name="range", metadata=subscription(frozenset({"granite", WITH_NUL})))
    asked = Struct(
        group_id="old",
        session_timeout=45_000,
        rebalance_timeout=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[wanted],
    )
    joined = wire.ask("join_group", 3, asked)
    assert joined.error_code == ErrorCode.none
    share = Struct(member_id=joined.member_id, assignment=b"all")
    synced = Struct(
        group_id="old", generation_id=joined.generation_id, member_id=joined.member_id, assignments=[share]
    )
    assert wire.ask("sync_group", 3, synced).assignment == b"all"


def test_what_is_committed_with_an_offset_is_any_text(broker: BrokerThread, wire: Wire) -> None:
    broker.create_topic("granite")
    partition = Struct(partition_index=0, committed_offset=7, committed_metadata=WITH_NUL)
    asked = Struct(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[Struct(name="granite", partitions=[partition])],
    )
    (topic,) = wire.ask("offset_commit", 8, asked).topics
    assert topic.partitions[0].error_code == ErrorCode.none
    asked = Struct(group_id="g", topics=[Struct(name="granite", partition_indexes=[0])])
    (topic,) = wire.ask("offset_fetch", 7, asked).topics
    assert topic.partitions[0].metadata == WITH_NUL
