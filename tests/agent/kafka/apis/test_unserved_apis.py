"""Features that an agent lacks: every version of their APIs has the response of Kafka without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kafka.api_registry import APIS
from agent.kafka.apis.unserved import UNSERVED_APIS
from agent.kafka.codec import Struct
from agent.kafka.codec.schema import schema_of
from agent.kafka.errors import ErrorCode
from tests.agent.kafka.wire import Wire, filled_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.kafka.brokers import BrokerThread

_ACL = {"resource_type": 2, "resource_name": "granite", "principal": "User:a", "host": "*", "operation": 2}
_ACL_FILTER = {"resource_type_filter": 2, "pattern_type_filter": 1, "operation": 2, "permission_type": 3}
_BY_NAME = {api.name: api for api in APIS}


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as opened:
        yield opened


def responses(wire: Wire, name: str, request: Struct) -> list[tuple[int, Struct]]:
    """Return each version of the API and its response to `request`."""
    api = _BY_NAME[name]
    return [
        (version, wire.ask(name, version, request)) for version in range(api.min_version, api.max_version + 1)
    ]


def test_consoles_find_no_reassignments(wire: Wire) -> None:
    for _, response in responses(wire, "list_partition_reassignments", Struct(timeout=1000, topics=None)):
        assert (response.error_code, response.topics) == (ErrorCode.none, [])


def test_access_control_lists_are_disabled(wire: Wire) -> None:
    for _, response in responses(wire, "describe_acls", Struct(**_ACL_FILTER)):
        assert response.error_code == ErrorCode.security_disabled
    for _, response in responses(wire, "create_acls", Struct(creations=[Struct(**_ACL, permission_type=3)])):
        assert [each.error_code for each in response.results] == [ErrorCode.security_disabled]
    for _, response in responses(wire, "delete_acls", Struct(filters=[Struct(**_ACL_FILTER)] * 2)):
        assert [each.error_code for each in response.filter_results] == [ErrorCode.security_disabled] * 2


_UNSERVED = [(api.name, version) for api in UNSERVED_APIS for version in (api.min_version, api.max_version)]


@pytest.mark.parametrize(("name", "version"), sorted(set(_UNSERVED)))
def test_a_client_that_skips_api_versions_learns_which_api_is_not_served(
    wire: Wire, name: str, version: int
) -> None:
    """The connection stays open for its other requests."""
    request = filled_request(schema_of(name, version, "request"), "a")
    for _ in range(2):
        assert wire.ask(name, version, request).error_code == ErrorCode.unsupported_version


def test_apis_that_are_not_served_are_not_advertised(wire: Wire) -> None:
    advertised = {each.api_key for each in wire.ask("api_versions", 0, Struct()).api_keys}
    assert advertised.isdisjoint({api.key for api in UNSERVED_APIS})
