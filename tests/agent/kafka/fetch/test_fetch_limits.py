"""The limits of a Fetch response: only its first partition with records may exceed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from agent.kafka.codec import Struct
from object_format.codecs.codec import Codec
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.agent.kafka.brokers import BrokerThread

_TOPIC = "granite"
_PARTITIONS = 3
_VALUE_BYTES = 900
_MAX_BYTES = 1000


@pytest.fixture
def start(start_broker: Callable[..., BrokerThread], tmp_path: Path) -> Callable[[str], BrokerThread]:
    """Return a function that starts an agent that reads from a source, with a batch in each partition."""

    def new(source: str) -> BrokerThread:
        has_disk = source in {"local topic", "tail copy"}
        settings: dict[str, object] = {"local_directories": (tmp_path / "disk",)} if has_disk else {}
        broker = start_broker(**settings)
        config = {"storage_mode": "local"} if source == "local topic" else {}
        broker.create_topic(_TOPIC, _PARTITIONS, **config)
        with Wire(broker.host_and_port) as wire:
            _produce(wire, _VALUE_BYTES)
        if source in {"objects", "tail copy"}:
            broker.run(_clear_tail(broker))
        return broker

    return new


async def _clear_tail(broker: BrokerThread) -> None:
    await broker.agent.data.local_logs.tail_cache.idle()
    broker.agent.data.tail.clear()
    broker.agent.data.blocks.clear()


def _produce(
    wire: Wire, size: int, codec: Codec = Codec.NONE, partitions: Sequence[int] = range(_PARTITIONS)
) -> None:
    batch = encode_batch([1000], [None], [bytes(size)], codec=codec)
    parts = [Struct(index=index, records=batch) for index in partitions]
    topic = Struct(name=_TOPIC, partition_data=parts)
    wire.ask("produce", 9, Struct(acks=-1, timeout=60_000, topic_data=[topic]))


def _fetch(
    wire: Wire, offsets: list[int], *, max_wait: int, max_bytes: int, of_partition: int, **session: int
) -> Struct:
    parts = [
        Struct(partition=number, fetch_offset=offset, partition_max_bytes=of_partition)
        for number, offset in enumerate(offsets)
    ]
    request = Struct(
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[Struct(topic=_TOPIC, partitions=parts)],
        **session,
    )
    response: Struct = wire.ask("fetch", 12, request)
    return response


def _batches(response: Struct) -> dict[int, int]:
    """Return the number of batches of each partition that has any; fail if one has an error."""
    parts = [part for topic in response.responses for part in topic.partitions]
    assert [part.error_code for part in parts if part.error_code] == []
    found = {part.partition_index: len(list(iter_headers(part.records))) for part in parts}
    return {partition: count for partition, count in found.items() if count}


@pytest.mark.parametrize("source", ["memory", "objects", "local topic", "tail copy"])
@pytest.mark.parametrize("max_wait", [0, 60_000], ids=["at once", "waiting"])
@pytest.mark.parametrize(
    ("max_bytes", "of_partition"),
    [(_MAX_BYTES, 2**20), (2**20, 10), (10, 10), (0, 0)],
    ids=["response", "partition", "both", "nothing"],
)
def test_only_the_first_partition_with_records_exceeds_the_limits(
    start: Callable[[str], BrokerThread], source: str, max_wait: int, max_bytes: int, of_partition: int
) -> None:
    """Partition 0 is at its end, so partition 1 is the first, and the response does not wait for more."""
    broker = start(source)
    with Wire(broker.host_and_port) as wire:
        for offsets, expected in (([0, 0, 0], {0: 1}), ([1, 0, 0], {1: 1}), ([1, 1, 0], {2: 1})):
            response = _fetch(
                wire, offsets, max_wait=max_wait, max_bytes=max_bytes, of_partition=of_partition
            )
            assert _batches(response) == expected


@pytest.mark.parametrize("source", ["objects", "tail copy"])
@pytest.mark.parametrize("max_wait", [0, 60_000], ids=["at once", "waiting"])
@pytest.mark.parametrize("max_bytes", [_MAX_BYTES, 10], ids=["no room", "none at all"])
def test_a_partition_does_not_wait_while_memory_fills_responses_with_those_behind_it(
    start: Callable[[str], BrokerThread], source: str, max_wait: int, max_bytes: int
) -> None:
    broker = start(source)
    with Wire(broker.host_and_port) as wire:
        _produce(wire, _VALUE_BYTES, partitions=[2])
        response = _fetch(wire, [1, 0, 1], max_wait=max_wait, max_bytes=max_bytes, of_partition=2**20)
    assert _batches(response) == {1: 1}


@pytest.mark.parametrize("source", ["memory", "local topic"])
def test_small_batches_follow_one_that_does_not_fit(
    start: Callable[[str], BrokerThread], source: str
) -> None:
    broker = start(source)
    with Wire(broker.host_and_port) as wire:
        _produce(wire, 10)
        response = _fetch(wire, [0, 0, 1], max_wait=60_000, max_bytes=1200, of_partition=2**20)
    assert _batches(response).keys() == {0, 2}


def test_a_session_reads_every_partition_in_turn(start: Callable[[str], BrokerThread]) -> None:
    """A partition whose batch did not fit comes first in a later response."""
    broker = start("memory")
    limits = {"max_wait": 60_000, "max_bytes": _MAX_BYTES, "of_partition": 2**20}
    with Wire(broker.host_and_port) as wire:
        first = _fetch(wire, [0, 0, 0], **limits, session_id=0, session_epoch=0)
        seen = _batches(first)
        for epoch in (1, 2):
            offsets = [int(number in seen) for number in range(_PARTITIONS)]
            more = _fetch(wire, offsets, **limits, session_id=first.session_id, session_epoch=epoch)
            seen |= _batches(more)
    assert seen == {0: 1, 1: 1, 2: 1}


@pytest.fixture
def consumer(start: Callable[[str], BrokerThread]) -> Iterator[Consumer]:
    """A consumer that disconnects if a response exceeds what it asked for."""
    broker = start("memory")
    with Wire(broker.host_and_port) as wire:
        for _ in range(3):
            _produce(wire, 900 * 1024)
    made = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "readers",
            "fetch.max.bytes": 1_000_000,
            "message.max.bytes": 1_000_000,
            "receive.message.max.bytes": 1_000_512,
        }
    )
    made.assign([TopicPartition(_TOPIC, partition, 0) for partition in range(_PARTITIONS)])
    yield made
    made.close()


def test_a_consumer_with_tight_limits_reads_everything(consumer: Consumer) -> None:
    seen = set()

    def has_all() -> bool:
        if (message := consumer.poll(0.1)) is not None:
            assert message.error() is None, message.error()
            seen.add((message.partition(), message.offset()))
        return len(seen) == 4 * _PARTITIONS

    until(has_all, seconds=60)


@pytest.mark.parametrize("version", [4, 9, 10])
def test_old_versions_receive_batches_that_zstd_compressed(
    start: Callable[[str], BrokerThread], version: int
) -> None:
    """As in Kafka. Their clients can read zstd, or report what they cannot read."""
    broker = start("memory")
    with Wire(broker.host_and_port) as wire:
        _produce(wire, 10, Codec.ZSTD)
        wanted = Struct(partition=0, fetch_offset=0, partition_max_bytes=2**20)
        topics = [Struct(topic=_TOPIC, partitions=[wanted])]
        request = Struct(max_wait=0, min_bytes=1, max_bytes=2**20, topics=topics)
        part = wire.ask("fetch", version, request).responses[0].partitions[0]
    assert part.error_code == 0
    assert [header.codec for _, header in iter_headers(part.records)] == [Codec.NONE, Codec.ZSTD]
