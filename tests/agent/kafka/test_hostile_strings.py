"""Strings that PostgreSQL cannot store, in every field of every request, get Kafka's errors."""

from __future__ import annotations

import random
import string
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

from agent.kafka.api_registry import APIS
from agent.kafka.apis.configs.resources import ResourceType
from agent.kafka.apis.unserved import UNSERVED_APIS
from agent.kafka.codec import Struct
from agent.kafka.codec.schema import schema_of
from agent.kafka.errors import ErrorCode
from catalog.config.definitions import TOPIC_SETTINGS
from tests.agent.groups.classic_client import encode_owned_subscription
from tests.agent.kafka.wire import Wire, filled_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.kafka.brokers import BrokerThread

WITH_NUL = "a\0b"
# Longer than an index entry, and incompressible.
TOO_LONG = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=6000))
_BOTH = pytest.mark.parametrize("text", [WITH_NUL, TOO_LONG], ids=["nul", "long"])


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port, client_id=WITH_NUL) as connection:
        yield connection


def _errors(response: object) -> Iterator[tuple[int, str]]:
    """Return every error code in a response, with its message."""
    if isinstance(response, Struct):
        if "error_code" in vars(response):
            yield response.error_code, vars(response).get("error_message") or ""
        for value in vars(response).values():
            yield from _errors(value)
    elif isinstance(response, list | tuple):
        for each in response:
            yield from _errors(each)


@_BOTH
def test_no_string_causes_a_server_error(
    broker: BrokerThread, wire: Wire, catalog_url: str, text: str
) -> None:
    """Every request gets a response, without UNKNOWN_SERVER_ERROR and without a path of the server."""
    broker.create_topic("granite")
    directory = str(conninfo_to_dict(catalog_url)["host"])
    for api in (*APIS, *UNSERVED_APIS):
        for version in {api.min_version, api.max_version}:
            schema = schema_of(api.name, version, "request")
            for kind in (ResourceType.TOPIC, ResourceType.GROUP):
                request = filled_request(schema, text, resource_type=kind, key_type=0)
                errors = list(_errors(wire.ask(api.name, version, request)))
                for code, message in errors:
                    assert code != ErrorCode.unknown_server_error, (api.name, version)
                    assert directory not in message


@_BOTH
def test_group_requests_with_such_a_name_get_invalid_group_id(wire: Wire, text: str) -> None:
    """Requests of members, for offsets and of administrators."""
    config = Struct(name="consumer.session.timeout.ms", config_operation=0, value="50000")
    resource = Struct(resource_type=ResourceType.GROUP, resource_name=text, configs=[config])
    responses = []
    for validate_only in (True, False):
        request = Struct(resources=[resource], validate_only=validate_only)
        responses += wire.ask("incremental_alter_configs", 1, request).responses
    described = Struct(resource_type=ResourceType.GROUP, resource_name=text, configuration_keys=None)
    responses += wire.ask("describe_configs", 4, Struct(resources=[described])).results
    responses += wire.ask("offset_fetch", 8, Struct(groups=[Struct(group_id=text, topics=None)])).groups
    responses += wire.ask("delete_groups", 2, Struct(groups_names=[text])).results
    responses += wire.ask("describe_groups", 5, Struct(groups=[text])).groups
    responses.append(wire.ask("offset_fetch", 7, Struct(group_id=text, topics=None)))
    responses.append(wire.ask("heartbeat", 4, Struct(group_id=text, generation_id=1, member_id="m")))
    assert [each.error_code for each in responses] == [ErrorCode.invalid_group_id] * len(responses)


def test_topic_requests_with_such_a_name_find_no_topic(wire: Wire) -> None:
    missing, invalid = ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception
    named = [Struct(name=WITH_NUL, topic_id=None)]
    deleted = wire.ask("delete_topics", 6, Struct(topics=named, timeout=1000)).responses
    assert [each.error_code for each in deleted] == [missing]
    described = wire.ask("metadata", 12, Struct(topics=named)).topics
    assert [each.error_code for each in described] == [invalid]


def test_no_setting_accepts_such_a_value(broker: BrokerThread, wire: Wire) -> None:
    broker.create_topic("granite")
    for setting in TOPIC_SETTINGS:
        config = Struct(name=setting, config_operation=0, value=WITH_NUL)
        resource = Struct(resource_type=ResourceType.TOPIC, resource_name="granite", configs=[config])
        (response,) = wire.ask("incremental_alter_configs", 1, Struct(resources=[resource])).responses
        assert response.error_code == ErrorCode.invalid_config


def test_members_may_subscribe_to_such_a_name(broker: BrokerThread, wire: Wire) -> None:
    """As in Kafka, it counts as a topic that does not exist yet. In both group protocols."""
    broker.create_topic("granite")
    request = Struct(
        group_id="new", member_id="m", rebalance_timeout=60_000, subscribed_topic_names=["granite", WITH_NUL]
    )
    request.topic_partitions = []
    response = wire.ask("consumer_group_heartbeat", 1, request)
    assert response.error_code == ErrorCode.none
    assert sum(len(each.partitions) for each in response.assignment.topic_partitions) == 1
    wanted = Struct(name="range", metadata=encode_owned_subscription(frozenset({"granite", WITH_NUL})))
    request = Struct(
        group_id="old",
        session_timeout=45_000,
        rebalance_timeout=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[wanted],
    )
    joined = wire.ask("join_group", 3, request)
    assert joined.error_code == ErrorCode.none
    share = Struct(member_id=joined.member_id, assignment=b"all")
    synced = Struct(
        group_id="old", generation_id=joined.generation_id, member_id=joined.member_id, assignments=[share]
    )
    assert wire.ask("sync_group", 3, synced).assignment == b"all"


def test_offset_metadata_may_be_any_text(broker: BrokerThread, wire: Wire) -> None:
    broker.create_topic("granite")
    partition = Struct(partition_index=0, committed_offset=7, committed_metadata=WITH_NUL)
    request = Struct(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[Struct(name="granite", partitions=[partition])],
    )
    (topic,) = wire.ask("offset_commit", 8, request).topics
    assert topic.partitions[0].error_code == ErrorCode.none
    request = Struct(group_id="g", topics=[Struct(name="granite", partition_indexes=[0])])
    (topic,) = wire.ask("offset_fetch", 7, request).topics
    assert topic.partitions[0].metadata == WITH_NUL
