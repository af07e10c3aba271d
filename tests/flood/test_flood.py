"""Every entry point of an agent with the largest, deepest, slowest and most numerous input of clients.

The short form sends one version of each API. `make fuzz` runs the long form, with all versions and shapes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from agent.kafka.api_registry import APIS
from agent.kafka.codec import Struct
from agent.settings import MIB
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire
from tests.flood.inputs import Shape, request
from tests.flood.test_slow_clients import silent_sockets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from agent.kafka.api_definition import Api
    from tests.flood.flooded_agent import FloodedAgent

pytestmark = pytest.mark.integration
_IS_LONG: Final = bool(os.environ.get("SILTSTONE_LONG_FLOOD"))
_OPEN: Final = 24
_LARGE: Final = 24 * MIB


class OtherClient:
    """A client that uses the agent as usual, while others flood it."""

    def __init__(self, agent: FloodedAgent) -> None:
        self._agent = agent
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        with self._agent.http() as client:
            client.post("/v1/topics", json={"name": "other"})
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._round()
                self.rounds += 1
        except BaseException as error:  # noqa: BLE001  # the test reports it
            self.failure = error

    def _round(self) -> None:
        with self._agent.http() as client:
            produced = client.post(
                "/v1/topics/other/partitions/0/records", json={"records": [{"value": "x"}]}
            )
            assert produced.is_success, produced.text
            offset = produced.json()["results"][0]["offset"]
            read = client.get("/v1/topics/other/partitions/0/records", params={"offset": offset})
            assert read.json()["records"][0]["offset"] == offset  # a flood may have appended others after it
        with Wire(self._agent.address("kafka")) as wire:
            found = wire.ask("metadata", 9, Struct(topics=[Struct(name="other")]))
            assert [topic.error_code for topic in found.topics] == [0]


@contextlib.contextmanager
def served_meanwhile(agent: FloodedAgent) -> Iterator[None]:
    """Assert that another client is served within the block and after it, and that the agent keeps bounds."""
    with OtherClient(agent) as other:
        until(lambda: other.rounds > 0 or other.failure is not None)
        yield
        before = other.rounds
        until(lambda: other.rounds > before or other.failure is not None)
    assert other.failure is None
    agent.check()


def floods() -> list[tuple[Api, int, Shape]]:
    """Return what to send: everything, or each API once with each shape in turn."""
    if _IS_LONG:
        return [
            (api, version, shape)
            for api in APIS
            for version in range(api.min_version, api.max_version + 1)
            for shape in Shape
        ]
    shapes = list(Shape)
    return [(api, api.max_version, shapes[number % 3]) for number, api in enumerate(APIS)]


def test_no_kafka_api_can_be_flooded(flooded: FloodedAgent) -> None:
    """The clients do not wait for responses. The oldest of `_OPEN` connections is closed for the next one."""
    with served_meanwhile(flooded), contextlib.ExitStack() as stack:
        wires: list[Wire] = []
        for api, version, shape in floods():
            wire = stack.enter_context(Wire(flooded.address("kafka")))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                wire.send(request(api, version, shape))
            wires.append(wire)
            if len(wires) > _OPEN:
                wires.pop(0).socket.close()


def test_the_same_large_request_on_many_connections_is_served_in_turn(flooded: FloodedAgent) -> None:
    """Each of them has as many items as possible."""
    chosen = {"metadata", "fetch", "list_offsets", "offset_commit", "join_group", "describe_configs"}
    apis = [api for api in APIS if api.name in chosen]
    with served_meanwhile(flooded), contextlib.ExitStack() as stack:
        for api in apis:
            data = request(api, api.max_version, Shape.DEEP)
            for _ in range(4 if not _IS_LONG else 40):
                stack.enter_context(Wire(flooded.address("kafka"))).send(data)


def test_slow_and_silent_clients_of_both_protocols_delay_nobody(flooded: FloodedAgent) -> None:
    """Each of hundreds of connections has begun a request, and does not continue it."""
    count = 150 if not _IS_LONG else 2_000
    head = (
        f"POST /v1/topics/other/records HTTP/1.1\r\nhost: localhost\r\ncontent-length: {_LARGE}\r\n".encode()
    )
    with (
        served_meanwhile(flooded),
        silent_sockets(flooded.address("kafka"), count),
        silent_sockets(flooded.address("kafka"), count, struct.pack(">i", _LARGE) + bytes(5_000)),
        silent_sockets(flooded.address("http"), count),
        silent_sockets(flooded.address("http"), count, head + b"content-type: application/json\r\n\r\n[["),
        silent_sockets(flooded.address("health"), count),
    ):
        pass


def http_calls(flooded: FloodedAgent) -> list[tuple[str, str]]:
    """Return method and path of each route, with parameters filled in."""
    with flooded.http() as client:
        paths: dict[str, dict[str, Any]] = client.get("/openapi.json").json()["paths"]
    return [
        (method.upper(), path.format(topic="other", partition=0))
        for path, methods in paths.items()
        for method in methods
        if (method, path) != ("delete", "/v1/topics/{topic}")
    ]


def test_no_http_route_can_be_flooded(flooded: FloodedAgent) -> None:
    """Each gets a path, a query, headers and a body as large as possible, and many requests at once."""
    bodies = [b"{" * _LARGE, b'{"records":[' + b'{"value":"x"},' * 90_000 + b"{}]}", b"\x00" * _LARGE]
    headers = {"content-type": "application/json", **{f"x-{number}": "y" * 200 for number in range(100)}}
    with served_meanwhile(flooded), flooded.http() as client:
        for number, (method, path) in enumerate(http_calls(flooded)):
            chosen = bodies if _IS_LONG else [bodies[number % 3]]
            for body in chosen:
                with contextlib.suppress(httpx.HTTPError):
                    client.request(method, path, content=body, headers=headers)
            client.request(method, f"{path}?{'a=b&' * 10_000}", headers=headers)
            client.request(method, f"{path}/{'x' * 30_000}", headers=headers)
