"""What fetches hold in memory: all of them together within one budget, until their bytes have left."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from agent.kafka.codec import Struct
from agent.read.fetch_plan import PartitionFetch
from agent.read.pending_fetch import fetch_within_budget
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, request_frame
from tests.agent.write.test_write_path import batches

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.read.pending_fetch import PendingFetch
    from agent.runtime.byte_budget import ByteBudget
    from catalog.model import Topic
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration

KIB = 1024
BATCH = 100 * KIB


def _produce(broker: BrokerThread, topic: Topic, *sizes: int) -> None:
    with Wire(broker.host_and_port) as wire:
        for size in sizes:
            part = Struct(index=0, records=bytes(batches(topic, 0, "x" * size).data))
            topics = [Struct(name=topic.name, partition_data=[part])]
            answer = wire.ask("produce", 9, Struct(acks=-1, timeout=600_000, topic_data=topics))
            assert answer.responses[0].partition_responses[0].error_code == 0


def _hold(broker: BrokerThread, topic: Topic, max_bytes: int = 2**20, max_wait_ms: int = 20) -> PendingFetch:
    wanted = [PartitionFetch(topic=topic, partition=0, offset=0, max_bytes=max_bytes)]
    fetch = fetch_within_budget(broker.agent.read_path, wanted, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
    return broker.run(fetch)


async def _release(held: PendingFetch) -> None:
    held.release()


def _small(start_broker: Callable[..., BrokerThread], batches_of_room: int) -> BrokerThread:
    room = batches_of_room * (BATCH + KIB)
    return start_broker(max_fetches_bytes=room, max_fetch_bytes=room, default_fetch_bytes=BATCH)


def test_a_fetch_with_little_memory_left_brings_less(start_broker: Callable[..., BrokerThread]) -> None:
    broker = _small(start_broker, 20)
    topic = broker.create_topic("t")
    _produce(broker, topic, *[BATCH] * 5)
    all_held = [_hold(broker, topic) for _ in range(4)]
    assert [len(held.results[0].batches) for held in all_held] == [4, 3, 2, 2]
    budget = broker.agent.read_path.budget
    assert budget.used == sum(held.size for held in all_held) <= budget.limit
    for held in all_held:
        broker.run(_release(held))
    assert budget.used == 0


def test_a_fetch_without_memory_waits_and_then_says_where_the_log_ends(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """No error and no batch; with the true high watermark, or a client would take it for the end."""
    broker = _small(start_broker, 1)
    topic = broker.create_topic("t")
    _produce(broker, topic, *[BATCH] * 2)
    first = _hold(broker, topic)
    second = _hold(broker, topic)
    (result,) = second.results
    assert (second.size, list(result.batches), result.high_watermark, result.error) == (0, [], 2, None)

    async def hold_and_let_go() -> PendingFetch:
        wanted = [PartitionFetch(topic=topic, partition=0, offset=0, max_bytes=2**20)]
        waiting = asyncio.ensure_future(
            fetch_within_budget(broker.agent.read_path, wanted, max_bytes=2**20, max_wait_ms=50_000)
        )
        await asyncio.sleep(0)
        assert not waiting.done()
        first.release()
        return await waiting

    third = broker.run(hold_and_let_go())
    assert len(third.results[0].batches) == 1


def test_readers_that_do_not_read_hold_no_more_than_there_is(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Answers of many times the budget are asked for and not taken; with the clients goes what they held."""
    broker = start_broker(max_fetches_bytes=4 * 2**20, max_fetch_bytes=2 * 2**20, default_fetch_bytes=2**20)
    topic = broker.create_topic("t", max_message_bytes=str(4 * 2**20))
    _produce(broker, topic, *[2**20] * 2)
    frame = request_frame("fetch", 12, 1, _fetch_request(2**21, max_wait=100))
    budget = broker.agent.read_path.budget
    wires = [Wire(broker.host_and_port) for _ in range(4)]
    for wire in wires:
        wire.send(frame * 20)
    most = _watch(budget, lambda: budget.used > 2 * 2**20)
    assert most <= budget.limit
    for wire in wires:
        wire.socket.close()
    _watch(budget, lambda: budget.used == 0)


def test_those_who_read_go_on_however_many_do_not(start_broker: Callable[..., BrokerThread]) -> None:
    """Of 40 clients that want all there may be, none reads an answer; each request of another has records."""
    patience = {"kafka_slow_reader_ms": 3_600_000, "kafka_scarce_memory_ms": 3_600_000}
    broker = start_broker(max_fetches_bytes=4 * 2**20, max_fetch_bytes=2**20, **patience)
    topic = broker.create_topic("t")
    _produce(broker, topic, *[32 * KIB] * 40)
    budget = broker.agent.read_path.budget
    wires = [Wire(broker.host_and_port) for _ in range(40)]
    for wire in wires:
        wire.send(request_frame("fetch", 12, 1, _fetch_request(2**20, max_wait=60_000)) * 300)
    server = broker.agent._kafka
    assert server is not None
    until(lambda: sum(not connection._writable.is_set() for connection in server._connections) == 40)
    with Wire(broker.host_and_port) as reader:
        for _ in range(20):
            answer = reader.ask("fetch", 12, _fetch_request(2**20, max_wait=0))
            assert answer.responses[0].partitions[0].records
            assert budget.used <= budget.limit - budget.limit // 8
    for wire in wires:
        wire.socket.close()
    until(lambda: budget.used == 0)


def test_who_waits_for_memory_gets_it_from_those_who_do_not_read(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """They would have a minute, and more of them wait in front of it than there is memory for."""
    room = 8 * 300 * KIB
    broker = start_broker(max_fetches_bytes=room, max_fetch_bytes=room // 2, kafka_scarce_memory_ms=40)
    topic = broker.create_topic("t")
    _produce(broker, topic, 300 * KIB - 200)
    frame = request_frame("fetch", 12, 1, _fetch_request(2**20, max_wait=60_000))
    wires = [Wire(broker.host_and_port) for _ in range(12)]
    for wire in wires:
        wire.send(frame * 100)
    budget = broker.agent.read_path.budget
    server = broker.agent._kafka
    assert server is not None
    until(lambda: not budget.fits(300 * KIB) or len(server._connections) < len(wires))
    with Wire(broker.host_and_port) as reader:
        answer = reader.ask("fetch", 12, _fetch_request(2**20, max_wait=60_000))
    assert answer.responses[0].partitions[0].records
    for wire in wires:
        wire.socket.close()
    until(lambda: budget.used == 0)


def test_who_waits_for_memory_gets_it_from_those_who_do_not_send(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Half a request keeps it for ten minutes while there is enough for everybody."""
    broker = start_broker(
        max_request_bytes=400 * KIB,
        max_requests_bytes=2**20,
        kafka_scarce_memory_ms=40,
        kafka_idle_ms=600_000,
    )
    topic = broker.create_topic("t")
    wires = [Wire(broker.host_and_port) for _ in range(8)]
    for wire in wires:
        wire.send((300 * KIB).to_bytes(4, "big") + bytes(8))
    server = broker.agent._kafka
    assert server is not None
    budget = broker.agent.request_budget
    until(lambda: budget.free < 300 * KIB or len(server._connections) < len(wires))
    _produce(broker, topic, 300 * KIB)
    for wire in wires:
        wire.socket.close()
    until(lambda: budget.used == 0)


def _fetch_request(max_bytes: int, *, max_wait: int) -> Struct:
    part = Struct(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    return Struct(
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=max_bytes,
        session_id=0,
        session_epoch=-1,
        topics=[Struct(topic="t", partitions=[part])],
    )


def _watch(budget: ByteBudget, until: Callable[[], bool]) -> int:
    most = 0
    while not until():
        most = max(most, budget.used)
        time.sleep(0.001)  # what is waited for happens in the agent's thread
    return max(most, budget.used)


def test_a_small_valid_part_does_not_keep_a_large_frame_in_memory(broker: BrokerThread) -> None:
    topic = broker.create_topic("t", 2)
    damaged = bytearray(encode_batch([1], [b"k"], [b"x" * 200 * KIB]))
    damaged[-1] ^= 1
    small = bytes(batches(topic, 1, "y").data)
    parts = [Struct(index=0, records=bytes(damaged)), Struct(index=1, records=small)]
    topics = [Struct(name="t", partition_data=parts)]
    with Wire(broker.host_and_port) as wire:
        answer = wire.ask("produce", 9, Struct(acks=-1, timeout=600_000, topic_data=topics))
    assert [part.error_code for part in answer.responses[0].partition_responses] == [2, 0]
    wanted = [PartitionFetch(topic=topic, partition=1, offset=0, max_bytes=KIB)]
    (result,) = broker.run(broker.agent.read_path.fetch(wanted, max_bytes=KIB))
    (view,) = result.batches
    assert isinstance(view, memoryview)
    assert len(view) == len(small) == memoryview(view.obj).nbytes
