"""The embedded consumer protocol, compared with kio's schemas of it."""

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
from tests.agent.groups.classic_harness import encode_subscription

_VERSIONS = st.integers(0, 3)
_NAMES = st.text(min_size=1, max_size=5)
_PARTITIONS = st.dictionaries(_NAMES, st.frozensets(st.integers(0, 9), max_size=3), max_size=3)


def _kio_module(version: int, kind: str) -> Any:  # noqa: ANN401  # generated, a module for each version
    return import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")


def _flat(partitions: dict[str, frozenset[int]]) -> set[tuple[str, int]]:
    return {(topic, index) for topic, indexes in partitions.items() for index in indexes}


@given(_VERSIONS, st.frozensets(_NAMES), _PARTITIONS, st.none() | st.binary(max_size=4), st.none() | _NAMES)
def test_subscriptions_of_every_version_are_parsed(
    version: int,
    topics: frozenset[str],
    owned: dict[str, frozenset[int]],
    data: bytes | None,
    rack_id: str | None,
) -> None:
    module = _kio_module(version, "subscription")
    fields: dict[str, Any] = {"topics": tuple(topics), "user_data": data}
    if version >= 1:
        fields["owned_partitions"] = tuple(
            module.TopicPartition(topic=topic, partitions=tuple(indexes)) for topic, indexes in owned.items()
        )
    if version >= 3:
        fields["rack_id"] = rack_id
    with io.BytesIO(version.to_bytes(2)) as buffer:
        buffer.seek(2)
        entity_writer(module.ConsumerProtocolSubscription)(
            buffer, module.ConsumerProtocolSubscription(**fields)
        )
        metadata = buffer.getvalue()
    parsed = read_subscription([MemberProtocol("range", metadata)])
    assert parsed is not None
    assert (parsed.version, parsed.topics) == (version, topics)
    assert parsed.owned == (_flat(owned) if version >= 1 else set())
    assert parsed.rack_id == (rack_id if version >= 3 else None)
    assert subscribed_topics([metadata]) == topics


@pytest.mark.parametrize("version", range(4))
def test_missing_fields_of_a_subscription_have_their_defaults(version: int) -> None:
    """@platformatic/kafka sends version 1 without its fields."""
    parsed = read_subscription(
        [MemberProtocol("roundrobin", version.to_bytes(2) + encode_subscription("t")[2:])]
    )
    assert parsed == Subscription(version, frozenset({"t"}))


@given(_VERSIONS, _PARTITIONS)
def test_kio_parses_encoded_assignments(version: int, partitions: dict[str, frozenset[int]]) -> None:
    written = write_assignment(version, _flat(partitions))
    assert int.from_bytes(written[:2]) == version
    read, size = entity_reader(_kio_module(version, "assignment").ConsumerProtocolAssignment)(written[2:], 0)
    assert size == len(written) - 2
    assigned = {(each.topic, number) for each in read.assigned_partitions for number in each.partitions}
    assert assigned == _flat(partitions)
    assert read_assignment(written) == frozenset(assigned)


@given(st.binary(max_size=40))
def test_random_bytes_raise_no_error(data: bytes) -> None:
    read_assignment(data)
    read_subscription([MemberProtocol("range", data)])
    subscribed_topics([data])
