"""What consumers of the classic protocol say, against kio's own schemas of it."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from agent.groups.classic.embedded_protocol import (
    Subscription,
    read_assignment,
    read_subscription,
    subscribed_topics,
    write_assignment,
)
from agent.groups.classic.messages import MemberProtocol
from tests.agent.groups.stage import subscription

_VERSIONS = st.integers(0, 3)
_NAMES = st.text(min_size=1, max_size=5)
_PARTITIONS = st.dictionaries(_NAMES, st.frozensets(st.integers(0, 9), max_size=3), max_size=3)


def _kio(version: int, kind: str) -> Any:  # noqa: ANN401  # generated, a module for each version
    return import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")


def _flat(partitions: dict[str, frozenset[int]]) -> set[tuple[str, int]]:
    return {(topic, number) for topic, numbers in partitions.items() for number in numbers}


@given(_VERSIONS, st.frozensets(_NAMES), _PARTITIONS, st.none() | st.binary(max_size=4), st.none() | _NAMES)
def test_subscriptions_of_every_version_are_read(
    version: int,
    topics: frozenset[str],
    owned: dict[str, frozenset[int]],
    data: bytes | None,
    rack_id: str | None,
) -> None:
    module = _kio(version, "subscription")
    fields: dict[str, Any] = {"topics": tuple(topics), "user_data": data}
    if version >= 1:
        fields["owned_partitions"] = tuple(
            module.TopicPartition(topic=topic, partitions=tuple(numbers)) for topic, numbers in owned.items()
        )
    if version >= 3:
        fields["rack_id"] = rack_id
    with io.BytesIO(version.to_bytes(2)) as buffer:
        buffer.seek(2)
        entity_writer(module.ConsumerProtocolSubscription)(
            buffer, module.ConsumerProtocolSubscription(**fields)
        )
        metadata = buffer.getvalue()
    said = read_subscription([MemberProtocol("range", metadata)])
    assert said is not None
    assert (said.version, said.topics) == (version, topics)
    assert said.owned == (_flat(owned) if version >= 1 else set())
    assert said.rack_id == (rack_id if version >= 3 else None)
    assert subscribed_topics([metadata]) == topics


@pytest.mark.parametrize("version", range(4))
def test_a_subscription_may_end_before_the_fields_of_its_version(version: int) -> None:
    """As that of @platformatic/kafka does: such a member owns nothing."""
    said = read_subscription([MemberProtocol("roundrobin", version.to_bytes(2) + subscription("t")[2:])])
    assert said == Subscription(version, frozenset({"t"}))


@given(_VERSIONS, _PARTITIONS)
def test_assignments_are_written_as_clients_read_them(
    version: int, partitions: dict[str, frozenset[int]]
) -> None:
    written = write_assignment(version, _flat(partitions))
    assert int.from_bytes(written[:2]) == version
    read, size = entity_reader(_kio(version, "assignment").ConsumerProtocolAssignment)(written[2:], 0)
    assert size == len(written) - 2
    seen = {(each.topic, number) for each in read.assigned_partitions for number in each.partitions}
    assert seen == _flat(partitions)
    assert read_assignment(written) == frozenset(seen)


@given(st.binary(max_size=40))
def test_noise_is_read_as_nothing_or_as_something(noise: bytes) -> None:
    """It is never an error of another kind."""
    read_assignment(noise)
    read_subscription([MemberProtocol("range", noise)])
    subscribed_topics([noise])
