"""What clients are told while the catalog does not answer: to ask again, and nothing that is not so."""

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

_COORDINATOR, _LATER = ErrorCode.coordinator_not_available, ErrorCode.request_timed_out


@pytest.fixture
def wire(start_broker: Callable[..., BrokerThread]) -> Iterator[Wire]:
    """A client of an agent that has looked at nothing, and whose catalog does not answer any more."""
    broker = start_broker()
    broker.create_topic("granite")
    away = CatalogUnavailableError("it is away", remedy="wait", retry_after_seconds=1.0)
    with (
        Wire(broker.host_and_port) as opened,
        patch.object(Database, "read", side_effect=away),
        patch.object(Database, "transact", side_effect=away),
    ):
        yield opened


def _parts(**fields: object) -> list[Struct]:
    """Two topics with a partition each, as requests name them."""
    return [Struct(name=name, partitions=[Struct(**fields)]) for name in ("granite", "marble")]


def _of_partitions(answer: Struct) -> list[int]:
    return [part.error_code for topic in answer.topics for part in topic.partitions]


def test_members_are_sent_to_look_for_their_coordinator_again(wire: Wire) -> None:
    """As any client does by itself, whatever it asked."""
    commit = _parts(partition_index=0, committed_offset=1, committed_metadata="")
    stamp = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    assert _of_partitions(wire.ask("offset_commit", 9, Struct(**stamp, topics=commit))) == [_COORDINATOR] * 2
    by_id = [Struct(topic_id=UUID(int=7), partitions=commit[0].partitions)]
    assert _of_partitions(wire.ask("offset_commit", 10, Struct(**stamp, topics=by_id))) == [_COORDINATOR]
    named = [Struct(name=name, partition_indexes=[0]) for name in ("granite", "marble")]
    for topics in (named, named[:1], None):
        early = wire.ask("offset_fetch", 7, Struct(group_id="g", topics=topics))
        assert early.error_code == _COORDINATOR
        groups = [Struct(group_id=group_id, topics=topics) for group_id in ("g", "h", "\0")]
        late = wire.ask("offset_fetch", 9, Struct(groups=groups)).groups
        assert [each.error_code for each in late] == [_COORDINATOR] * 2 + [ErrorCode.invalid_group_id]
    first = wire.ask("offset_fetch", 1, Struct(group_id="g", topics=named))
    assert _of_partitions(first) == [_COORDINATOR] * 2
    deleted = wire.ask("offset_delete", 0, Struct(group_id="g", topics=_parts(partition_index=0)))
    assert deleted.error_code == _COORDINATOR


def test_who_asks_for_partitions_asks_again(wire: Wire) -> None:
    part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    found = wire.ask("list_offsets", 7, Struct(replica_id=-1, topics=_parts(**part)))
    assert _of_partitions(found) == [_LATER] * 2
    found = wire.ask("delete_records", 2, Struct(topics=_parts(partition_index=0, offset=0), timeout=1))
    assert _of_partitions(found) == [_LATER] * 2
    producers = [Struct(name=name, partition_indexes=[0]) for name in ("granite", "marble")]
    assert _of_partitions(wire.ask("describe_producers", 0, Struct(topics=producers))) == [_LATER] * 2
    described = wire.ask(
        "describe_topic_partitions", 0, Struct(topics=[Struct(name="granite"), Struct(name="marble")])
    )
    assert [each.error_code for each in described.topics] == [ErrorCode.leader_not_available] * 2


def test_who_changes_topics_asks_again(wire: Wire) -> None:
    names = ["granite", "marble"]
    wanted = [
        Struct(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    for dry in (True, False):
        made = wire.ask("create_topics", 7, Struct(topics=wanted, timeout=0, validate_only=dry)).topics
        assert [each.error_code for each in made] == [_LATER] * 2
        more = [Struct(name=name, count=2, assignments=None) for name in names]
        grown = wire.ask("create_partitions", 3, Struct(topics=more, timeout=0, validate_only=dry)).results
        assert [each.error_code for each in grown] == [_LATER] * 2
    topics = [Struct(name="granite", topic_id=None), Struct(name=None, topic_id=UUID(int=7))]
    gone = wire.ask("delete_topics", 6, Struct(topics=topics, timeout=0)).responses
    assert [each.error_code for each in gone] == [_LATER] * 2
    asked = [
        Struct(resource_type=kind, resource_name=f"g{number}", configuration_keys=None)
        for kind, count in ((2, 1), (32, 1), (2, 20), (32, 20))
        for number in range(count)
    ]
    for some in (asked[:2], asked):
        shown = wire.ask("describe_configs", 4, Struct(resources=some)).results
        assert [each.error_code for each in shown] == [_LATER] * len(some)


@pytest.mark.parametrize("version", [1, 12, 13])
def test_no_list_is_shorter_than_it_was(wire: Wire, version: int) -> None:
    """Who asks for all topics, or for all sizes, gets what cannot be taken for an answer."""
    everything = wire.ask("metadata", version, Struct(topics=None))
    assert (everything.brokers, everything.topics) == ([], [])
    asked = Struct(topics=None)
    (early,) = wire.ask("describe_log_dirs", 1, asked).results
    assert (early.error_code, early.topics) == (_LATER, [])
    late = wire.ask("describe_log_dirs", 4, asked)
    assert (late.error_code, late.results) == (_LATER, [])
