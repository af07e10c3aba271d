"""Responses while the catalog is unavailable: retriable errors, and no wrong or incomplete data."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch
from uuid import UUID

import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.database.pool import Database
from catalog.errors import CatalogUnavailableError
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.agent.kafka.brokers import BrokerThread

_COORDINATOR, _RETRY = ErrorCode.coordinator_not_available, ErrorCode.request_timed_out
_LOADING = ErrorCode.coordinator_load_in_progress


@pytest.fixture
def wire(start_broker: Callable[..., BrokerThread]) -> Iterator[Wire]:
    """Connect to an agent with empty caches whose catalog is unavailable."""
    broker = start_broker()
    broker.create_topic("granite")
    unavailable = CatalogUnavailableError(
        "the catalog is unavailable", remedy="wait", retry_after_seconds=1.0
    )
    with (
        Wire(broker.host_and_port) as wire,
        patch.object(Database, "read", side_effect=unavailable),
        patch.object(Database, "transact", side_effect=unavailable),
    ):
        yield wire


def _parts(**fields: object) -> list[Struct]:
    """Return two topics with one partition each, for a request."""
    return [Struct(name=name, partitions=[Struct(**fields)]) for name in ("granite", "marble")]


def _partition_codes(response: Struct) -> list[int]:
    return [part.error_code for topic in response.topics for part in topic.partitions]


def test_group_requests_get_coordinator_not_available(wire: Wire) -> None:
    """Clients then look up the coordinator again, and retry. Look-ups of offsets are retried as they are."""
    commit = _parts(partition_index=0, committed_offset=1, committed_metadata="")
    stamp = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    assert (
        _partition_codes(wire.ask("offset_commit", 9, Struct(**stamp, topics=commit))) == [_COORDINATOR] * 2
    )
    by_id = [Struct(topic_id=UUID(int=7), partitions=commit[0].partitions)]
    assert _partition_codes(wire.ask("offset_commit", 10, Struct(**stamp, topics=by_id))) == [_COORDINATOR]
    named = [Struct(name=name, partition_indexes=[0]) for name in ("granite", "marble")]
    for topics in (named, named[:1], None):
        old = wire.ask("offset_fetch", 7, Struct(group_id="g", topics=topics))
        assert old.error_code == _LOADING
        groups = [Struct(group_id=group_id, topics=topics) for group_id in ("g", "h", "\0")]
        new = wire.ask("offset_fetch", 9, Struct(groups=groups)).groups
        assert [each.error_code for each in new] == [_LOADING] * 2 + [ErrorCode.invalid_group_id]
    first = wire.ask("offset_fetch", 1, Struct(group_id="g", topics=named))
    assert _partition_codes(first) == [_LOADING] * 2
    deleted = wire.ask("offset_delete", 0, Struct(group_id="g", topics=_parts(partition_index=0)))
    assert deleted.error_code == _COORDINATOR


@pytest.mark.parametrize("version", [0, 4, 5])
def test_idempotent_producers_wait_for_their_ids(wire: Wire, version: int) -> None:
    """Java clients before 3.5 and aiokafka end with REQUEST_TIMED_OUT (KAFKA-14417)."""
    request = Struct(transactional_id=None, transaction_timeout=60_000)
    assert wire.ask("init_producer_id", version, request).error_code == _LOADING
    request = Struct(transactional_id="masons", transaction_timeout=60_000)
    assert wire.ask("init_producer_id", version, request).error_code == _COORDINATOR


def test_requests_for_partitions_get_a_retriable_error(wire: Wire) -> None:
    part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    found = wire.ask("list_offsets", 7, Struct(replica_id=-1, topics=_parts(**part)))
    assert _partition_codes(found) == [_RETRY] * 2
    found = wire.ask("delete_records", 2, Struct(topics=_parts(partition_index=0, offset=0), timeout=1))
    assert _partition_codes(found) == [_RETRY] * 2
    producers = [Struct(name=name, partition_indexes=[0]) for name in ("granite", "marble")]
    assert _partition_codes(wire.ask("describe_producers", 0, Struct(topics=producers))) == [_RETRY] * 2
    described = wire.ask(
        "describe_topic_partitions", 0, Struct(topics=[Struct(name="granite"), Struct(name="marble")])
    )
    assert [each.error_code for each in described.topics] == [ErrorCode.leader_not_available] * 2


def test_changes_of_topics_get_a_retriable_error(wire: Wire) -> None:
    names = ["granite", "marble"]
    wanted = [
        Struct(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    for dry in (True, False):
        created = wire.ask("create_topics", 7, Struct(topics=wanted, timeout=0, validate_only=dry)).topics
        assert [each.error_code for each in created] == [_RETRY] * 2
        more = [Struct(name=name, count=2, assignments=None) for name in names]
        extended = wire.ask("create_partitions", 3, Struct(topics=more, timeout=0, validate_only=dry)).results
        assert [each.error_code for each in extended] == [_RETRY] * 2
    topics = [Struct(name="granite", topic_id=None), Struct(name=None, topic_id=UUID(int=7))]
    deleted = wire.ask("delete_topics", 6, Struct(topics=topics, timeout=0)).responses
    assert [each.error_code for each in deleted] == [_RETRY] * 2
    request = [
        Struct(resource_type=kind, resource_name=f"g{number}", configuration_keys=None)
        for kind, count in ((2, 1), (32, 1), (2, 20), (32, 20))
        for number in range(count)
    ]
    for some in (request[:2], request):
        shown = wire.ask("describe_configs", 4, Struct(resources=some)).results
        assert [each.error_code for each in shown] == [_RETRY] * len(some)


@pytest.mark.parametrize("version", [1, 12, 13])
def test_no_incomplete_list_is_returned(wire: Wire, version: int) -> None:
    """A request for all topics or all sizes gets a response that clients do not take for a complete list."""
    everything = wire.ask("metadata", version, Struct(topics=None))
    assert (everything.brokers, everything.topics) == ([], [])
    request = Struct(topics=None)
    (old,) = wire.ask("describe_log_dirs", 1, request).results
    assert (old.error_code, old.topics) == (_RETRY, [])
    new = wire.ask("describe_log_dirs", 4, request)
    assert (new.error_code, new.results) == (_RETRY, [])
