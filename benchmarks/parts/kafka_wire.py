"""Minimal Kafka client on a plain socket, without the cost of a real client."""

from __future__ import annotations

import socket
import struct
from collections import deque
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from agent.kafka.codec import Cursor, Message, Output, Struct
from agent.kafka.codec.messages import api_key_of
from agent.settings import AgentSettings
from benchmarks.parts.kafka_process import bare_server
from object_format.record_batch.records import Record, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from benchmarks.parts.kafka_process import AgentProcess

PRODUCE, FETCH = 9, 12
PARTITIONS = 10
BATCH_BYTES = 16 * 1024
_FRAME_BYTES = 1024 * 1024
_IDLE_SECONDS = 3.0
TAIL_BYTES = AgentSettings().tail_bytes


def request_frame(name: str, version: int, request: Struct) -> bytes:
    """Return a whole request with the client id "bench"."""
    message = Message.of(name, version)
    out = Output()
    message.write_request(out, request)
    header = struct.pack(">hhih", api_key_of(name), version, 1, 5) + b"bench"
    if message.is_flexible:
        header += b"\0"
    body = header + b"".join(out.buffers())
    return struct.pack(">i", len(body)) + body


class Wire:
    """One connection with any number of requests in flight."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(16 * _FRAME_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, frame: bytes) -> None:
        """Send a whole frame."""
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """Return the next response without its length; valid until the next call."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def response(self, name: str, version: int) -> Struct:
        """Return the next response, decoded as one of this API and version."""
        skipped = 5 if Message.of(name, version).is_flexible and name != "api_versions" else 4
        read: Struct = Message.of(name, version).read_response(
            Cursor(memoryview(bytes(self.receive())), skipped)
        )
        return read

    def _exactly(self, count: int) -> memoryview:
        view = memoryview(self._buffer)[:count]
        filled = 0
        while filled < count:
            part = self._socket.recv_into(view[filled:])
            if not part:
                raise ConnectionError("the agent closed the connection")
            filled += part
        return view


def loopback_mb_per_second(megabytes: int) -> dict[str, float]:
    """Measure the transport alone: requests or responses of 1 MiB."""
    frames = max(megabytes, 16)
    body = bytes(_FRAME_BYTES)
    large, small = struct.pack(">i", len(body)) + body, struct.pack(">i", 8) + bytes(8)
    figures = {}
    for name, frame, response_bytes in (("in", large, 8), ("out", small, _FRAME_BYTES)):
        with bare_server(response_bytes) as server, Wire(server.address) as wire:
            begin = perf_counter()
            _pipelined(wire, frame, frames, depth=4)
            figures[name] = round(frames * _FRAME_BYTES / (perf_counter() - begin) / 1e6, 1)
    return figures


def _pipelined(wire: Wire, frame: bytes, count: int, depth: int) -> None:
    open_requests = 0
    for _ in range(count):
        wire.send(frame)
        open_requests += 1
        if open_requests >= depth:
            wire.receive()
            open_requests -= 1
    for _ in range(open_requests):
        wire.receive()


def request_cost(agent: AgentProcess, requests: int) -> dict[str, dict[str, float]]:
    """Measure the agent's processor time for a Produce of 10 partitions with 16 KiB each, and for its Fetch.

    Forty produce requests are in flight on one connection, so that an ingestion file is almost full when it
    is written. The time includes write and commit. Fetches are sequential and served from memory. `produce`
    fills the memory of a new agent until its tail is full. `produce_steady` is the steady state, in which a
    request reuses the memory of one that has left the tail. `transport_us` is the cost of the same frames for
    a server that ignores them: the lower limit.
    """
    agent.create_topic("cost", PARTITIONS)
    batch = encode_records([Record(number, 1, None, bytes(BATCH_BYTES // 16 - 10)) for number in range(16)])
    produce = request_frame("produce", PRODUCE, produce_request(bytes(batch)))
    with Wire(agent.address) as wire:
        _counted(wire, produce, 80, depth=40)
        produced = _cost(agent, requests, lambda: _counted(wire, produce, requests, depth=40))
        fetched = _fetch_cost(agent, wire, len(batch), requests)
        _counted(wire, produce, max(0, TAIL_BYTES // len(produce) - requests), depth=40)
        steady = _cost(agent, requests, lambda: _counted(wire, produce, requests, depth=40))
    small = produce[:64]
    small = struct.pack(">i", len(small) - 4) + small[4:]
    return {
        "produce": {**produced, "transport_us": _transport_cost(produce, 100, requests, depth=40)},
        "produce_steady": steady,
        "fetch": {**fetched, "transport_us": _transport_cost(small, len(produce), requests, depth=1)},
        "request": {"bytes": len(produce), "partitions": PARTITIONS},
    }


def _cost(server: AgentProcess, requests: int, work: Callable[[], None]) -> dict[str, float]:
    """Measure microseconds of processor time per request: in total, in the kernel, and of the event loop.

    The loop's thread receives requests, handles them, and distributes results. Other threads build, write and
    commit files. The background is the cost of an idle agent in the same time, which is part of the total.
    """
    idle_share = _idle_share(server)
    before, loop = server.cpu_parts(), server.loop_seconds()
    begin = perf_counter()
    work()
    took = perf_counter() - begin
    loop = server.loop_seconds() - loop
    user, kernel = (after - each for after, each in zip(server.cpu_parts(), before, strict=True))
    seconds = {
        "cpu_us": user + kernel,
        "of_it_kernel_us": kernel,
        "of_it_loop_us": loop,
        "of_it_background_us": idle_share * took,
    }
    return {name: round(each / requests * 1e6, 1) for name, each in seconds.items()}


def _idle_share(server: AgentProcess) -> float:
    """Return processor seconds per second of a server without requests."""
    before = server.cpu_seconds()
    sleep(_IDLE_SECONDS)
    return (server.cpu_seconds() - before) / _IDLE_SECONDS


def _transport_cost(frame: bytes, response_bytes: int, requests: int, *, depth: int) -> float:
    with bare_server(response_bytes) as server, Wire(server.address) as wire:
        _pipelined(wire, frame, 100, depth)
        return _cost(server, requests, lambda: _pipelined(wire, frame, requests, depth))["cpu_us"]


def _counted(wire: Wire, frame: bytes, count: int, depth: int) -> None:
    """Send produce requests, and check that each response is without errors."""
    waiting: deque[int] = deque()
    for number in range(count):
        wire.send(frame)
        waiting.append(number)
        if len(waiting) >= depth:
            _check(wire, waiting)
    while waiting:
        _check(wire, waiting)


def _check(wire: Wire, waiting: deque[int]) -> None:
    waiting.popleft()
    for topic in wire.response("produce", PRODUCE).responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise RuntimeError(f"produce was rejected: {partition}")


def _fetch_cost(agent: AgentProcess, wire: Wire, batch_bytes: int, requests: int) -> dict[str, float]:
    """Read the records of the last requests, one batch of each partition at a time."""
    newest = requests  # 80 more requests were sent before, so these records exist
    frames = [
        request_frame("fetch", FETCH, fetch_request(16 * (newest - number % 100), batch_bytes))
        for number in range(100)
    ]
    _read_all(wire, frames, 100, batch_bytes)
    return _cost(agent, requests, lambda: _read_all(wire, frames, requests, batch_bytes))


def _read_all(wire: Wire, frames: list[bytes], count: int, batch_bytes: int) -> None:
    for number in range(count):
        wire.send(frames[number % len(frames)])
        response = wire.receive()
        if len(response) < PARTITIONS * batch_bytes:
            raise RuntimeError(f"a fetch brought {len(response)} bytes")


def produce_request(batch: bytes) -> Struct:
    parts = [Struct(index=number, records=batch) for number in range(PARTITIONS)]
    return Struct(acks=-1, timeout=60_000, topic_data=[Struct(name="cost", partition_data=parts)])


def fetch_request(offset: int, batch_bytes: int) -> Struct:
    parts = [
        Struct(partition=number, fetch_offset=offset, partition_max_bytes=batch_bytes)
        for number in range(PARTITIONS)
    ]
    return Struct(
        max_wait=100,
        min_bytes=1,
        max_bytes=2**30,
        session_id=0,
        session_epoch=-1,
        topics=[Struct(topic="cost", partitions=parts)],
    )


def idle_cost(agent: AgentProcess, count: int) -> dict[str, float]:
    """Measure the memory of idle connections after one request each."""
    question = request_frame("api_versions", 0, Struct())
    before = agent.resident_bytes()
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            each = socket.create_connection(agent.address, timeout=60)
            each.sendall(question)
            each.recv(65536)
            sockets.append(each)
        grown = agent.resident_bytes() - before
    finally:
        for each in sockets:
            each.close()
    return {"connections": count, "megabytes": round(grown / 1e6, 1)}
