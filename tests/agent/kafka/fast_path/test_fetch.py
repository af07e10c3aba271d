"""Differential test of Fetch: the fast path and the ordinary path send the same bytes."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from agent.kafka.api_definition import FastPath, RetainedBuffers
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.fast_path import fetch as fast_fetch
from agent.kafka.fast_path.fetch import FastFetch
from agent.kafka.fast_path.fetch_parser import FetchParser
from agent.read import memory_reads
from object_format.codecs.codec import Codec
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, read_response, request_frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from uuid import UUID

    from agent.kafka.api_definition import RequestContext, RequestFrame
    from agent.kafka.codec.writing import Buffers
    from tests.agent.kafka.brokers import BrokerThread

_FETCH = 1
_TOPICS = {"one": {}, "a-long-name" * 15: {}, "compacted": {"cleanup.policy": "compact"}}
_PARTITIONS = 2
_BATCHES = 6
_NO_SESSION = (0, -1)


class _SwitchableFastPath(FastPath):
    """A fast path that can be switched off. It counts the requests that it handles."""

    def __init__(self) -> None:
        self._fast_path = FastFetch()
        self.is_on = False
        self.handled = 0
        self.waited = 0

    @override
    def try_handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | None:
        response = self._fast_path.try_handle(frame, context) if self.is_on else None
        self.handled += response is not None
        return response

    @override
    async def handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | Struct | None:
        response = await self._fast_path.handle(frame, context) if self.is_on else None
        self.waited += isinstance(response, RetainedBuffers)
        return response


def _write_log(wire: Wire) -> dict[str, UUID]:
    """Write batches of different sizes, of two records each, to all partitions; return the topics' ids."""
    topics = [
        Struct(
            name=name,
            num_partitions=_PARTITIONS,
            replication_factor=1,
            assignments=[],
            configs=[Struct(name=key, value=value) for key, value in config.items()],
        )
        for name, config in _TOPICS.items()
    ]
    created = wire.ask("create_topics", 7, Struct(topics=topics, timeout=10_000, validate_only=False))
    for number in range(_BATCHES):
        _produce(wire, range(_PARTITIONS), 100 * number)
    return {topic.name: topic.topic_id for topic in created.topics}


def _produce(wire: Wire, partitions: Iterable[int], size: int) -> None:
    codec = Codec.LZ4 if size % 3 else Codec.NONE
    batch = bytes(encode_batch([1, 1], [b"k", b"k"], [bytes(size)] * 2, codec=codec))
    parts = [Struct(index=index, records=batch) for index in partitions]
    data = [Struct(name=name, partition_data=parts) for name in _TOPICS]
    wire.ask("produce", 9, Struct(acks=-1, timeout=600_000, topic_data=data))


def _request(rng: random.Random, ids: dict[str, UUID]) -> Struct:
    """Return a random request of a consumer, sometimes an invalid one."""
    names = rng.choices([*ids, "unknown"], weights=[8, 8, 1, 1], k=rng.choice((1, 1, 2)))
    topics = [
        Struct(
            topic=name,
            topic_id=ids.get(name),
            partitions=[
                Struct(
                    partition=rng.choice((0, 1) * 10 + (2, -1)),
                    current_leader_epoch=rng.choice((-1, 0) * 10 + (5,)),
                    fetch_offset=rng.choice((*range(13), 13, -1)),
                    partition_max_bytes=rng.choice((0, 1, 300, 1200, 2**20, 2**20)),
                )
                for _ in range(rng.choice((0, 1, 1, 1, 2)))
            ],
        )
        for name in names
    ]
    return Struct(
        replica_id=-1,
        max_wait=rng.choice((0, 1, 1, 1, 1)),
        min_bytes=rng.choice((0, 1, 1, 1, 1000, 10**6)),
        max_bytes=rng.choice((0, 500, 2000, 2**20, 2**20)),
        session_id=0,
        session_epoch=-1,
        topics=topics,
        rack_id=rng.choice(("",) * 9 + ("elsewhere",)),
    )


def _start_switchable(
    start_broker: Callable[..., BrokerThread], **changes: int
) -> tuple[BrokerThread, _SwitchableFastPath]:
    """Start an agent whose fast path can be switched off."""
    cached = {"bounds_cache_ms": 3_600_000, "topic_cache_ms": 3_600_000, "hot_window_ms": 3_600_000}
    long_waits = {"max_wait_ms": 600_000, "poll_interval_ms": 600_000}
    broker = start_broker(flush_interval_ms=1, **cached, **long_waits, **changes)
    # Otherwise the first notification of other agents would clear its caches.
    broker.agent.data.commit_notifier._on_commits = lambda changed: None  # type: ignore[method-assign]  # noqa: ARG005
    fast_path = _SwitchableFastPath()
    broker.agent.kafka.server._dispatcher._fast_paths[_FETCH] = fast_path  # type: ignore[union-attr]
    return broker, fast_path


def test_both_paths_send_the_same_bytes(start_broker: Callable[..., BrokerThread]) -> None:
    """For random requests of every version."""
    broker, fast_path = _start_switchable(start_broker)
    rng = random.Random(7)
    with Wire(broker.host_and_port) as wire:
        ids = _write_log(wire)
        for number in range(400):
            version = 4 + number % 15
            frame = request_frame("fetch", version, number, _request(rng, ids))
            received = []
            for fast_path.is_on in (False, True):
                wire.send(frame)
                received.append(wire.receive())
            assert received[0] == received[1]
    assert fast_path.handled > 60
    until(lambda: broker.agent.data.read_path.budget.used == 0)


def test_both_paths_refuse_a_forgotten_topic_of_more_than_32767_bytes(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """A forgotten topic need not exist, so no other check refuses its name."""
    broker, fast_path = _start_switchable(start_broker)
    with Wire(broker.host_and_port) as writer:
        _write_log(writer)
    partitions = [Struct(partition=0, fetch_offset=0, partition_max_bytes=2**20)]
    request = Struct(replica_id=-1, max_wait=1, min_bytes=1, max_bytes=2**20, session_id=0, session_epoch=0)
    request.topics = [Struct(topic="one", partitions=partitions)]
    for size in (32_767, 32_768):
        request.forgotten_topics_data = [Struct(topic="x" * size, partitions=[0])]
        for fast_path.is_on in (False, True):
            with Wire(broker.host_and_port) as wire:
                wire.send(request_frame("fetch", 12, 7, request))
                assert wire.is_closed() == (size > 32_767)
    assert fast_path.handled == 1


@dataclass
class _Client:
    """One of two clients that send the same requests, each on its own connection and in its own session."""

    wire: Wire
    fast_path: _SwitchableFastPath
    is_fast: bool
    session: tuple[int, int] = (0, 0)
    received: list[bytes] = field(default_factory=list)

    def ask(self, version: int, request: Struct) -> None:
        """Send a request in this client's session."""
        request.session_id, request.session_epoch = self.session
        self.fast_path.is_on = self.is_fast
        self.wire.send(request_frame("fetch", version, 7, request))

    def receive(self, version: int) -> int:
        """Note the response without the session id, which is random; return the number of its topics."""
        response = self.wire.receive()
        assert response is not None
        session_at = 7 if version >= 12 else 6
        body = bytearray(response[1])
        body[session_at : session_at + 4] = bytes(4)
        self.received.append(bytes(body))
        read = read_response("fetch", version, response[1])
        if self.session != _NO_SESSION:
            self.session = (read.session_id, self.session[1] + 1) if read.session_id else (0, 0)
        return len(read.responses)


@dataclass(frozen=True)
class _Step:
    """The next request of both clients, and the partitions to write to after it."""

    parts: list[tuple[str, int, int, int]]
    forgotten: list[tuple[str, int, int, int]]
    max_bytes: int
    min_bytes: int
    epoch: int
    written: tuple[int, ...]


def _steps(rng: random.Random) -> list[_Step]:
    def parts(max_bytes: int) -> list[tuple[str, int, int, int]]:
        return [
            (
                rng.choice(["one"] * 4 + ["a-long-name" * 15] * 2 + ["unknown"] * (rng.random() < 0.2)),
                rng.choice([0, 1] * 10 + [2]),
                rng.randrange(15),
                rng.choice([0, 300, 1200, 2**20, 2**20]),
            )
            for _ in range(rng.randrange(max_bytes + 1))
        ]

    return [
        _Step(
            parts=parts(3),
            forgotten=parts(1),
            max_bytes=rng.choice([0, 500, 2000, 2**20, 2**20]),
            min_bytes=rng.choice([0, 1, 1, 1000]),
            epoch=rng.choice([0] * 15 + [1, -1]),
            written=rng.choice([(), (), (), (0,), (0, 1)]),
        )
        for _ in range(10)
    ]


def _topic_structs(
    parts: Iterable[tuple[str, int, int, int]], ids: dict[str, UUID], unknown: UUID
) -> list[Struct]:
    return [
        Struct(
            topic=name,
            topic_id=ids.get(name, unknown),
            partitions=[
                Struct(
                    partition=partition,
                    current_leader_epoch=0,
                    fetch_offset=offset,
                    partition_max_bytes=max_bytes,
                )
            ],
        )
        for name, partition, offset, max_bytes in parts
    ]


@pytest.fixture(params=[None, 1], ids=["few partitions", "many partitions"])
def partitions_per_step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a parameter, the fast path reads so many partitions in one step."""
    if request.param:
        monkeypatch.setattr(fast_fetch, "MAX_PARTITIONS_PER_STEP", request.param)
        monkeypatch.setattr(memory_reads, "MAX_PARTITIONS_PER_STEP", request.param)


@pytest.mark.usefixtures("partitions_per_step")
def test_both_paths_keep_the_same_sessions(start_broker: Callable[..., BrokerThread]) -> None:
    """Two clients that send the same requests get the same responses, each on its path."""
    broker, fast_path = _start_switchable(start_broker)
    with Wire(broker.host_and_port) as writer:
        ids = _write_log(writer)
        unknown = broker.agent.resources.ids.new_uuid()

        @settings(max_examples=20, deadline=None)
        @given(version=st.integers(10, 18), seed=st.integers(0, 2**32))
        def compare(version: int, seed: int) -> None:
            with ExitStack() as stack:
                clients = [
                    _Client(stack.enter_context(Wire(broker.host_and_port)), fast_path, is_fast)
                    for is_fast in (False, True)
                ]
                for step in _steps(random.Random(seed)):
                    for client in clients:
                        ask(client, version, step)
                    if step.written:
                        _produce(writer, step.written, 250)
                assert clients[0].received == clients[1].received

        def ask(client: _Client, version: int, step: _Step) -> None:
            session_id, epoch = client.session
            client.session = session_id, (-1 if step.epoch < 0 else epoch + step.epoch)
            forgotten = [
                Struct(topic=each.topic, topic_id=each.topic_id, partitions=[each.partitions[0].partition])
                for each in _topic_structs(step.forgotten, ids, unknown)
            ]
            request = Struct(
                replica_id=-1,
                max_wait=1,
                min_bytes=step.min_bytes,
                max_bytes=step.max_bytes,
                topics=_topic_structs(step.parts, ids, unknown),
                forgotten_topics_data=forgotten,
            )
            client.ask(version, request)
            client.receive(version)

        compare()
    assert fast_path.handled + fast_path.waited > 20
    until(lambda: broker.agent.data.read_path.budget.used == 0)


def _until_waiting(broker: BrokerThread, count: int) -> None:
    """Wait until so many requests wait for both partitions of one topic."""

    async def waiting() -> int:
        return sum(map(len, broker.agent.data.commit_notifier._waiters.values()))

    until(lambda: broker.run(waiting()) == _PARTITIONS * count)


@pytest.mark.usefixtures("partitions_per_step")
def test_waiting_requests_take_the_fast_path(start_broker: Callable[..., BrokerThread]) -> None:
    """A request that waits gets what is committed, in a session or without one. It is parsed once."""
    broker, fast_path = _start_switchable(start_broker)
    with ExitStack() as stack:
        parsed = stack.enter_context(
            patch.object(FetchParser, "read", autospec=True, side_effect=FetchParser.read)
        )
        writer = stack.enter_context(Wire(broker.host_and_port))
        _write_log(writer)
        clients = [
            _Client(stack.enter_context(Wire(broker.host_and_port)), fast_path, is_fast)
            for is_fast in (False, True, False, True)
        ]
        for client in clients[2:]:
            client.session = _NO_SESSION
        request = Struct(replica_id=-1, max_wait=1, min_bytes=1, max_bytes=2**20)
        for number in range(6):
            offset = 2 * _BATCHES + 2 * max(number - 1, 0)
            partitions = [
                Struct(partition=each, fetch_offset=offset, partition_max_bytes=2**20) for each in (0, 1)
            ]
            request.topics = [Struct(topic="one", partitions=partitions)]
            for waiting, client in enumerate(clients, 1):
                client.ask(12, request)
                if number:
                    _until_waiting(broker, waiting)
                else:
                    client.receive(12)
            request.max_wait = 600_000
            if number:
                _produce(writer, (0, 1), 100)
                for client in clients:
                    assert client.receive(12) == 1
        first, second, third, fourth = [client.received for client in clients]
        assert first == second
        assert third == fourth
    assert fast_path.waited == 10
    assert parsed.call_count == 12
    until(lambda: broker.agent.data.read_path.budget.used == 0)


def _request_for(parts: Iterable[tuple[str, int]], **changes: object) -> Struct:
    """Return a request for everything in these partitions."""
    partitions = [
        Struct(topic=name, partitions=[Struct(partition=each, fetch_offset=10, partition_max_bytes=2**20)])
        for name, each in parts
    ]
    request = {"max_wait": 1, "min_bytes": 1, "max_bytes": 2**20, "session_epoch": -1, **changes}
    return Struct(replica_id=-1, topics=partitions, **request)


def test_a_session_that_grows_too_large_is_removed_and_retains_no_memory(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Both paths respond with FETCH_SESSION_ID_NOT_FOUND, and release what was read."""
    limits = {"max_fetch_session_partitions": 2}
    broker, fast_path = _start_switchable(start_broker, **limits)
    long_name = "a-long-name" * 15
    added = [("one", 1), (long_name, 0), (long_name, 1)]
    with Wire(broker.host_and_port) as wire:
        _write_log(wire)
        wire.ask(
            "fetch", 12, _request_for([("one", 0), *added])
        )  # from here on, the agent has cached their bounds
        for fast_path.is_on in (False, True):
            started = wire.ask("fetch", 12, _request_for([("one", 0)], session_epoch=0))
            assert started.session_id
            extended = wire.ask(
                "fetch", 12, _request_for(added, session_id=started.session_id, session_epoch=1)
            )
            assert extended.error_code == ErrorCode.fetch_session_id_not_found
            assert wire.ask("fetch", 12, _request_for(added)).error_code == 0
    assert fast_path.handled == 2
    until(lambda: broker.agent.data.read_path.budget.used == 0)


def test_min_bytes_beyond_max_bytes_does_not_wait(start_broker: Callable[..., BrokerThread]) -> None:
    """As in Kafka, max_bytes bounds min_bytes."""
    broker, fast_path = _start_switchable(start_broker)
    with Wire(broker.host_and_port) as wire:
        _write_log(wire)
        for parts in ([("one", 0)], [("one", 0), ("one", 1)], [("compacted", 0)]):
            received = []
            for fast_path.is_on in (False, True):
                request = _request_for(parts, max_wait=600_000, min_bytes=10**6, max_bytes=100)
                wire.send(request_frame("fetch", 12, 7, request))
                received.append(wire.receive())
            assert received[0] == received[1]
    assert fast_path.handled == 2


def test_a_damaged_request_affects_only_its_own_connection(broker: BrokerThread) -> None:
    """A truncated or changed request gets a response or closes its connection."""
    rng = random.Random(8)
    with Wire(broker.host_and_port) as wire:
        ids = _write_log(wire)
    for number in range(150):
        version = 10 + number % 9
        frame = bytearray(request_frame("fetch", version, number, _request(rng, ids))[4:])
        frame[rng.randrange(10, len(frame))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        if rng.random() < 0.3:
            del frame[rng.randrange(10, len(frame)) :]
        # The response is not read, because the request may ask for a long wait.
        with Wire(broker.host_and_port) as wire:
            wire.send(len(frame).to_bytes(4, "big") + frame)
    with Wire(broker.host_and_port) as wire:
        request = _request(random.Random(1), ids)
        wire.ask("fetch", 12, request)
