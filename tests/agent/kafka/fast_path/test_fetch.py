"""The short way of usual Fetch requests against the long one: the same bytes."""

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
from agent.kafka.fast_path import fetch as plain_fetch
from agent.kafka.fast_path.fetch import FastFetch
from agent.kafka.fast_path.fetch_parser import FetchParser
from agent.read import memory_reads
from object_format.codecs.codec import Codec
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, read_answer, request_frame

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


class _Switched(FastPath):
    """The short way, where it is on; counts who goes it."""

    def __init__(self) -> None:
        self._way = FastFetch()
        self.is_on = False
        self.taken = 0
        self.waited = 0

    @override
    def try_handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | None:
        answer = self._way.try_handle(frame, context) if self.is_on else None
        self.taken += answer is not None
        return answer

    @override
    async def handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | RetainedBuffers | Callable[[], Awaitable[Buffers]] | Struct | None:
        answer = await self._way.handle(frame, context) if self.is_on else None
        self.waited += isinstance(answer, RetainedBuffers)
        return answer


def _write_log(wire: Wire) -> dict[str, UUID]:
    """Topics with batches of different sizes in each partition, two records each; their identifiers."""
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


def _request(chance: random.Random, ids: dict[str, UUID]) -> Struct:
    """What consumers ask, and now and then what they should not."""
    names = chance.choices([*ids, "unknown"], weights=[8, 8, 1, 1], k=chance.choice((1, 1, 2)))
    topics = [
        Struct(
            topic=name,
            topic_id=ids.get(name),
            partitions=[
                Struct(
                    partition=chance.choice((0, 1) * 10 + (2, -1)),
                    current_leader_epoch=chance.choice((-1, 0) * 10 + (5,)),
                    fetch_offset=chance.choice((*range(13), 13, -1)),
                    partition_max_bytes=chance.choice((0, 1, 300, 1200, 2**20, 2**20)),
                )
                for _ in range(chance.choice((0, 1, 1, 1, 2)))
            ],
        )
        for name in names
    ]
    return Struct(
        replica_id=-1,
        max_wait=chance.choice((0, 1, 1, 1, 1)),
        min_bytes=chance.choice((0, 1, 1, 1, 1000, 10**6)),
        max_bytes=chance.choice((0, 500, 2000, 2**20, 2**20)),
        session_id=0,
        session_epoch=-1,
        topics=topics,
        rack_id=chance.choice(("",) * 9 + ("elsewhere",)),
    )


def _switched(start_broker: Callable[..., BrokerThread], **changes: int) -> tuple[BrokerThread, _Switched]:
    """An agent whose short way can be shut."""
    believed = {"bounds_cache_ms": 3_600_000, "topic_cache_ms": 3_600_000, "hot_window_ms": 3_600_000}
    patient = {"max_wait_ms": 600_000, "poll_interval_ms": 600_000}
    broker = start_broker(flush_interval_ms=1, **believed, **patient, **changes)
    # Once it listens to other agents, of which there are none, what it believed before is forgotten.
    broker.agent.commit_notifier._on_commits = lambda partitions: None  # type: ignore[method-assign]  # noqa: ARG005
    way = _Switched()
    broker.agent._kafka._dispatcher._fast_paths[_FETCH] = way  # type: ignore[union-attr]
    return broker, way


def test_both_ways_say_the_same(start_broker: Callable[..., BrokerThread]) -> None:
    """Whatever is asked of the tail in whatever version, the client cannot tell which way it went."""
    broker, way = _switched(start_broker)
    chance = random.Random(7)
    with Wire(broker.host_and_port) as wire:
        ids = _write_log(wire)
        for number in range(400):
            version = 4 + number % 15
            frame = request_frame("fetch", version, number, _request(chance, ids))
            heard = []
            for way.is_on in (False, True):
                wire.send(frame)
                heard.append(wire.receive())
            assert heard[0] == heard[1]
    assert way.taken > 60
    until(lambda: broker.agent.read_path.budget.used == 0)


@dataclass
class _Client:
    """One of two that say the same, each on its own connection and in its own session."""

    wire: Wire
    way: _Switched
    is_short: bool
    session: tuple[int, int] = (0, 0)
    heard: list[bytes] = field(default_factory=list)

    def ask(self, version: int, asked: Struct) -> None:
        """Ask, and note the answer without the session's number, which is random."""
        asked.session_id, asked.session_epoch = self.session
        self.way.is_on = self.is_short
        self.wire.send(request_frame("fetch", version, 7, asked))

    def hear(self, version: int) -> int:
        answer = self.wire.receive()
        assert answer is not None
        session_at = 7 if version >= 12 else 6
        body = bytearray(answer[1])
        body[session_at : session_at + 4] = bytes(4)
        self.heard.append(bytes(body))
        read = read_answer("fetch", version, answer[1])
        if self.session != _NO_SESSION:
            self.session = (read.session_id, self.session[1] + 1) if read.session_id else (0, 0)
        return len(read.responses)


@dataclass(frozen=True)
class _Step:
    """What both clients ask next, and the partitions that are written to after that."""

    parts: list[tuple[str, int, int, int]]
    forgotten: list[tuple[str, int, int, int]]
    max_bytes: int
    min_bytes: int
    epoch: int
    written: tuple[int, ...]


def _steps(chance: random.Random) -> list[_Step]:
    def parts(most: int) -> list[tuple[str, int, int, int]]:
        return [
            (
                chance.choice(["one"] * 4 + ["a-long-name" * 15] * 2 + ["unknown"] * (chance.random() < 0.2)),
                chance.choice([0, 1] * 10 + [2]),
                chance.randrange(15),
                chance.choice([0, 300, 1200, 2**20, 2**20]),
            )
            for _ in range(chance.randrange(most + 1))
        ]

    return [
        _Step(
            parts=parts(3),
            forgotten=parts(1),
            max_bytes=chance.choice([0, 500, 2000, 2**20, 2**20]),
            min_bytes=chance.choice([0, 1, 1, 1000]),
            epoch=chance.choice([0] * 15 + [1, -1]),
            written=chance.choice([(), (), (), (0,), (0, 1)]),
        )
        for _ in range(10)
    ]


def _named(parts: Iterable[tuple[str, int, int, int]], ids: dict[str, UUID], unknown: UUID) -> list[Struct]:
    return [
        Struct(
            topic=name,
            topic_id=ids.get(name, unknown),
            partitions=[
                Struct(
                    partition=partition,
                    current_leader_epoch=0,
                    fetch_offset=offset,
                    partition_max_bytes=most,
                )
            ],
        )
        for name, partition, offset, most in parts
    ]


@pytest.fixture(params=[None, 1], ids=["few partitions", "many partitions"])
def fast_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """More partitions than this are many, which are read step by step."""
    if request.param:
        monkeypatch.setattr(plain_fetch, "MAX_PARTITIONS_PER_STEP", request.param)
        monkeypatch.setattr(memory_reads, "MAX_PARTITIONS_PER_STEP", request.param)


@pytest.mark.usefixtures("fast_path")
def test_sessions_are_the_same_both_ways(start_broker: Callable[..., BrokerThread]) -> None:
    """Whatever happens in a session, two clients that say the same hear the same, each on its way."""
    broker, way = _switched(start_broker)
    with Wire(broker.host_and_port) as writer:
        ids = _write_log(writer)
        unknown = broker.agent._ids.new_uuid()

        @settings(max_examples=20, deadline=None)
        @given(version=st.integers(10, 18), seed=st.integers(0, 2**32))
        def compare(version: int, seed: int) -> None:
            with ExitStack() as stack:
                clients = [
                    _Client(stack.enter_context(Wire(broker.host_and_port)), way, is_short)
                    for is_short in (False, True)
                ]
                for step in _steps(random.Random(seed)):
                    for client in clients:
                        ask(client, version, step)
                    if step.written:
                        _produce(writer, step.written, 250)
                assert clients[0].heard == clients[1].heard

        def ask(client: _Client, version: int, step: _Step) -> None:
            session_id, epoch = client.session
            client.session = session_id, (-1 if step.epoch < 0 else epoch + step.epoch)
            forgotten = [
                Struct(topic=each.topic, topic_id=each.topic_id, partitions=[each.partitions[0].partition])
                for each in _named(step.forgotten, ids, unknown)
            ]
            asked = Struct(
                replica_id=-1,
                max_wait=1,
                min_bytes=step.min_bytes,
                max_bytes=step.max_bytes,
                topics=_named(step.parts, ids, unknown),
                forgotten_topics_data=forgotten,
            )
            client.ask(version, asked)
            client.hear(version)

        compare()
    assert way.taken + way.waited > 20
    until(lambda: broker.agent.read_path.budget.used == 0)


def _until_waiting(broker: BrokerThread, count: int) -> None:
    """Until so many requests for the two partitions of one topic wait."""

    async def waiting() -> int:
        return sum(map(len, broker.agent.commit_notifier._waiters.values()))

    until(lambda: broker.run(waiting()) == _PARTITIONS * count)


@pytest.mark.usefixtures("fast_path")
def test_who_waits_is_answered_the_short_way_too(start_broker: Callable[..., BrokerThread]) -> None:
    """In a session or without one, a request that came too early hears what is committed; it is read once."""
    broker, way = _switched(start_broker)
    with ExitStack() as stack:
        surveyed = stack.enter_context(
            patch.object(FetchParser, "read", autospec=True, side_effect=FetchParser.read)
        )
        writer = stack.enter_context(Wire(broker.host_and_port))
        _write_log(writer)
        clients = [
            _Client(stack.enter_context(Wire(broker.host_and_port)), way, is_short)
            for is_short in (False, True, False, True)
        ]
        for client in clients[2:]:
            client.session = _NO_SESSION
        asked = Struct(replica_id=-1, max_wait=1, min_bytes=1, max_bytes=2**20)
        for number in range(6):
            offset = 2 * _BATCHES + 2 * max(number - 1, 0)
            partitions = [
                Struct(partition=each, fetch_offset=offset, partition_max_bytes=2**20) for each in (0, 1)
            ]
            asked.topics = [Struct(topic="one", partitions=partitions)]
            for waiting, client in enumerate(clients, 1):
                client.ask(12, asked)
                if number:
                    _until_waiting(broker, waiting)
                else:
                    client.hear(12)
            asked.max_wait = 600_000
            if number:
                _produce(writer, (0, 1), 100)
                for client in clients:
                    assert client.hear(12) == 1
        first, second, third, fourth = [client.heard for client in clients]
        assert first == second
        assert third == fourth
    assert way.waited == 10
    assert surveyed.call_count == 12
    until(lambda: broker.agent.read_path.budget.used == 0)


def _of_one(parts: Iterable[tuple[str, int]], **changes: object) -> Struct:
    """A request for all that there is of these partitions."""
    partitions = [
        Struct(topic=name, partitions=[Struct(partition=each, fetch_offset=10, partition_max_bytes=2**20)])
        for name, each in parts
    ]
    asked = {"max_wait": 1, "min_bytes": 1, "max_bytes": 2**20, "session_epoch": -1, **changes}
    return Struct(replica_id=-1, topics=partitions, **asked)


def test_a_session_that_becomes_too_large_is_refused_and_holds_nothing(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Both ways say that the session is no more, and what was read for it is let go of."""
    limits = {"max_fetch_session_partitions": 2}
    broker, way = _switched(start_broker, **limits)
    long_name = "a-long-name" * 15
    added = [("one", 1), (long_name, 0), (long_name, 1)]
    with Wire(broker.host_and_port) as wire:
        _write_log(wire)
        wire.ask("fetch", 12, _of_one([("one", 0), *added]))  # their bounds are known from here on
        for way.is_on in (False, True):
            began = wire.ask("fetch", 12, _of_one([("one", 0)], session_epoch=0))
            assert began.session_id
            grown = wire.ask("fetch", 12, _of_one(added, session_id=began.session_id, session_epoch=1))
            assert grown.error_code == ErrorCode.fetch_session_id_not_found
            assert wire.ask("fetch", 12, _of_one(added)).error_code == 0
    assert way.taken == 2
    until(lambda: broker.agent.read_path.budget.used == 0)


def test_nobody_waits_for_more_than_may_be_handed_out(start_broker: Callable[..., BrokerThread]) -> None:
    """As in Kafka, the least that is to be answered is at most the most that may be."""
    broker, way = _switched(start_broker)
    with Wire(broker.host_and_port) as wire:
        _write_log(wire)
        for parts in ([("one", 0)], [("one", 0), ("one", 1)], [("compacted", 0)]):
            heard = []
            for way.is_on in (False, True):
                asked = _of_one(parts, max_wait=600_000, min_bytes=10**6, max_bytes=100)
                wire.send(request_frame("fetch", 12, 7, asked))
                heard.append(wire.receive())
            assert heard[0] == heard[1]
    assert way.taken == 2


def test_a_damaged_request_is_read_to_its_end_at_most(broker: BrokerThread) -> None:
    """A request with bytes changed, or cut off, is answered or closes its connection, and no other."""
    chance = random.Random(8)
    with Wire(broker.host_and_port) as wire:
        ids = _write_log(wire)
    for number in range(150):
        version = 10 + number % 9
        frame = bytearray(request_frame("fetch", version, number, _request(chance, ids))[4:])
        frame[chance.randrange(10, len(frame))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        if chance.random() < 0.3:
            del frame[chance.randrange(10, len(frame)) :]
        # What asks to be kept waiting would be.
        with Wire(broker.host_and_port) as wire:
            wire.send(len(frame).to_bytes(4, "big") + frame)
    with Wire(broker.host_and_port) as wire:
        asked = _request(random.Random(1), ids)
        wire.ask("fetch", 12, asked)
