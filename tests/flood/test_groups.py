"""Groups whose members bring more than a coordinator can keep or compute."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from agent.groups.consumer.topics import MAX_PATTERN_BYTES
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.settings import MIB
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from tests.flood.flooded_agent import FloodedAgent

pytestmark = pytest.mark.integration


def join(wire: Wire, group: str, size: int, *, protocols: int = 1) -> ErrorCode:
    """Join a classic group with metadata of that size."""
    request = Struct(
        group_id=group,
        session_timeout=60_000,
        rebalance_timeout=60_000,
        member_id="",
        protocol_type="any",
        protocols=[Struct(name=f"p{number}", metadata=bytes(size)) for number in range(protocols)],
    )
    return ErrorCode(wire.ask("join_group", 3, request).error_code)


def test_the_members_of_a_group_and_of_all_groups_have_bounded_memory(flooded: FloodedAgent) -> None:
    address, limit = flooded.address("kafka"), flooded.settings.groups.groups_max_bytes
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(Wire(address))
        assert join(wire, "large", 17 * MIB) is ErrorCode.group_max_size_reached
        assert join(wire, "wide", 1, protocols=10_000) is ErrorCode.inconsistent_group_protocol
        codes: list[ErrorCode] = []
        while not codes or codes[-1] is ErrorCode.none:
            codes.append(join(stack.enter_context(Wire(address)), f"g{len(codes)}", 10 * MIB))
        assert codes[-1] is ErrorCode.coordinator_not_available
        assert len(codes) == limit // (10 * MIB) + 1
        assert flooded.metric("siltstone_group_bytes") <= limit
    flooded.check()


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("x" * (MAX_PATTERN_BYTES + 1), ErrorCode.invalid_regular_expression),
        ("x" * 32_767, ErrorCode.invalid_regular_expression),
        (r"[\pL\pN]{900}", ErrorCode.invalid_regular_expression),
        ("((a|b|ab)*){50}c", ErrorCode.none),
        ("(" * 500 + "a" + ")" * 500, ErrorCode.none),
    ],
    ids=["long", "longest", "large", "ambiguous", "nested"],
)
def test_patterns_are_bounded_in_size_and_memory(
    flooded: FloodedAgent, pattern: str, code: ErrorCode
) -> None:
    with Wire(flooded.address("kafka")) as wire:
        request = Struct(
            group_id="patterns",
            member_id="m",
            member_epoch=0,
            rebalance_timeout=60_000,
            subscribed_topic_names=[],
            subscribed_topic_regex=pattern,
            topic_partitions=[],
        )
        assert ErrorCode(wire.ask("consumer_group_heartbeat", 1, request).error_code) is code
    flooded.check()
