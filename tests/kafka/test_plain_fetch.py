"""The short way of usual Fetch requests against the long one: the same bytes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from typing_extensions import override

from agent.kafka.api import AtOnce
from agent.kafka.codec import Struct
from agent.kafka.plain_fetch import PlainFetch
from object_format.records import encode_batch
from tests.kafka.wire import Wire, request_frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from agent.kafka.api import Context, HeldBuffers, RequestFrame
    from agent.kafka.codec.writing import Buffers
    from tests.kafka.brokers import BrokerThread

_FETCH = 1
_TOPICS = {"one": {}, "a-long-name" * 15: {}, "compacted": {"cleanup.policy": "compact"}}
_PARTITIONS = 2
_BATCHES = 6


class _Switched(AtOnce):
    """The short way, where it is on; counts who goes it."""

    def __init__(self) -> None:
        self._way = PlainFetch()
        self.is_on = False
        self.taken = 0

    @override
    def take(
        self, frame: RequestFrame, context: Context
    ) -> HeldBuffers | Callable[[], Awaitable[Buffers]] | None:
        answer = self._way.take(frame, context) if self.is_on else None
        self.taken += answer is not None
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
        batch = bytes(encode_batch([1, 1], [b"k", b"k"], [bytes(100 * number)] * 2))
        parts = [Struct(index=index, records=batch) for index in range(_PARTITIONS)]
        data = [Struct(name=name, partition_data=parts) for name in _TOPICS]
        wire.ask("produce", 9, Struct(acks=-1, timeout=10_000, topic_data=data))
    return {topic.name: topic.topic_id for topic in created.topics}


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


def test_both_ways_say_the_same(start_broker: Callable[..., BrokerThread]) -> None:
    """Whatever is asked of the tail in whatever version, the client cannot tell which way it went."""
    way = _Switched()
    broker = start_broker(flush_interval_ms=1, known_bounds_ms=3_600_000)
    dispatch = broker.agent._kafka._dispatch  # type: ignore[union-attr]
    dispatch._at_once[_FETCH] = way
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
    assert way.taken > 30
    assert broker.agent.read_path.budget.held == 0


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
