"""Requests whose parsing would take long, or would make many objects of few bytes."""

from __future__ import annotations

import contextlib
import random
import struct
from typing import TYPE_CHECKING, Final

import pytest

from agent.kafka.api_registry import APIS
from agent.kafka.codec import Message, Output, Struct
from agent.kafka.dispatcher import MAX_HEADER_TAGS
from agent.settings import MIB
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.kafka.api_definition import Api
    from tests.flood.flooded_agent import FloodedAgent

pytestmark = pytest.mark.integration
_LARGEST: Final = 31 * MIB
_FUZZED_FRAMES: Final = 300


def frame(key: int, version: int, rest: bytes) -> bytes:
    """Return a frame of an API: `rest` follows the client id."""
    body = struct.pack(">hhih", key, version, 1, -1) + rest
    return struct.pack(">i", len(body)) + body


def varint(value: int) -> bytes:
    """Return an unsigned varint."""
    out = Output()
    out.tail.clear()
    while value >= 0x80:
        out.tail.append(value & 0x7F | 0x80)
        value >>= 7
    out.tail.append(value)
    return bytes(out.tail)


def tags(count: int) -> bytes:
    """Return tagged fields that no API knows, of two bytes each."""
    return varint(count) + b"\x7f\x00" * count


def is_answered(agent: FloodedAgent, data: bytes) -> bool:
    """Send bytes; return True for a response, and False if the agent closes the connection."""
    with Wire(agent.address("kafka")) as wire:
        try:
            wire.send(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return wire.receive() is not None


def flexible_apis() -> list[Api]:
    """Return the APIs whose newest version has tagged fields."""
    return [api for api in APIS if Message.of(api.name, api.max_version).is_flexible]


def test_a_header_of_tags_is_rejected_before_it_is_read(flooded: FloodedAgent) -> None:
    """In every API, and in the largest request there can be."""
    served = {
        api.name: is_answered(flooded, frame(api.key, api.max_version, tags(_LARGEST // 2)))
        for api in flexible_apis()[:1]
    } | {
        api.name: is_answered(flooded, frame(api.key, api.max_version, tags(MAX_HEADER_TAGS + 1)))
        for api in flexible_apis()[1:]
    }
    assert len(served) > 30
    assert not any(served.values())
    assert is_answered(flooded, frame(18, 3, tags(MAX_HEADER_TAGS) + b"\x02a\x02b\x00"))
    flooded.check()


def test_tags_of_a_body_count_as_items(flooded: FloodedAgent) -> None:
    """A few are skipped, as KIP-482 demands."""
    body = b"\x00" + b"\x02a\x02b"
    assert is_answered(flooded, frame(18, 3, body + tags(1_000)))
    assert not is_answered(flooded, frame(18, 3, body + tags(_LARGEST // 2)))
    flooded.check()


def test_many_requests_of_the_largest_number_of_items_leave_the_loop_to_others(
    flooded: FloodedAgent,
) -> None:
    """They arrive at the same moment, on many connections."""
    body = Output()
    Message.of("describe_transactions", 0).write_request(body, Struct(transactional_ids=[""] * 7_000))
    request = frame(65, 0, b"\x00" + b"".join(map(bytes, body.buffers())))
    wires = [Wire(flooded.address("kafka")) for _ in range(40)]
    try:
        for wire in wires:
            wire.send(request)
        with Wire(flooded.address("kafka")) as other:
            for _ in range(20):
                assert other.ask("list_groups", 4, Struct()).error_code == 0
        for wire in wires:
            assert wire.receive() is not None
    finally:
        for wire in wires:
            wire.socket.close()
    flooded.check()


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"headers":[' + b'{"key":""},' * 2_700_000 + b'{"key":""}]}]}',
        b'{"records":[' + b"{}," * (10 * MIB) + b"{}]}",
        b"[" * (31 * MIB),
        b'{"records":[{' + b'"a":1,' * (5 * MIB) + b'"b":2}]}',
    ],
    ids=["headers", "records", "depth", "fields"],
)
def test_a_body_of_too_many_values_is_rejected_before_it_is_parsed(
    flooded: FloodedAgent, body: bytes
) -> None:
    with flooded.http() as client:
        client.post("/v1/topics", json={"name": "t"})
        response = client.post(
            "/v1/topics/t/records", content=body, headers={"content-type": "application/json"}
        )
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "payload_too_large"
    flooded.check()


def test_brackets_and_commas_in_strings_do_not_count(flooded: FloodedAgent) -> None:
    text = '{\\"a\\":[1,2]},' * 200_000
    with flooded.http() as client:
        client.post("/v1/topics", json={"name": "s", "config": {"max.message.bytes": "20000000"}})
        response = client.post(
            "/v1/topics/s/records",
            content=f'{{"records":[{{"value":"{text}"}}]}}',
            headers={"content-type": "application/json"},
        )
    assert response.json()["accepted"] == 1


def fuzzed(chooser: random.Random) -> Iterator[bytes]:
    """Yield frames of every API and version: random bytes, repeated ones, and huge counts."""
    served = [(api, version) for api in APIS for version in range(api.min_version, api.max_version + 1)]
    for _ in range(_FUZZED_FRAMES):
        api, version = chooser.choice(served)
        size = chooser.choice([0, 1, 10, 200, 5_000, 17_000, 300_000, 2_000_000])
        unit = chooser.choice(
            [
                b"\x00",
                b"\x01",
                b"\x02\x00",
                b"\x00\x00\x00\x01",
                b"\xff\xff\xff\xff\x07",
                b"\x7f\xff\xff\xff",
                b"\x00\x00\x27\x10",
                varint(15_000) + b"\x01",
                chooser.randbytes(max(size, 1)),
            ]
        )
        yield frame(api.key, version, (unit * (size // len(unit) + 1))[:size])


@pytest.mark.parametrize("seed", [1, 2])
def test_no_sequence_of_bytes_delays_the_loop(flooded: FloodedAgent, seed: int) -> None:
    """Each frame gets a response, or its connection is closed; other clients are served meanwhile."""
    for data in fuzzed(random.Random(seed)):  # the same frames in each run
        with Wire(flooded.address("kafka")) as wire:
            wire.send(data)
            wire.send(frame(18, 0, b""))
            wire.socket.settimeout(0.05)
            with contextlib.suppress(TimeoutError):  # some requests wait, for records or for a group
                wire.receive()
    with Wire(flooded.address("kafka")) as other:
        assert other.ask("api_versions", 0, Struct()).error_code == 0
    flooded.check()
