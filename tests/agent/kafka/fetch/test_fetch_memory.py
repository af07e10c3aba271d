"""All fetches share one memory budget until the bytes of their responses have left."""

from __future__ import annotations

import asyncio
import time
from functools import partial
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
    from pathlib import Path

    from agent.read.pending_fetch import PendingFetch
    from agent.runtime.byte_budget import ByteBudget
    from catalog.model import Topic
    from local_tier.log.unified_log import UnifiedLog
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration

KIB = 1024
BATCH = 100 * KIB


def _produce(broker: BrokerThread, topic: Topic, *sizes: int, partition: int = 0) -> None:
    with Wire(broker.host_and_port) as wire:
        for size in sizes:
            part = Struct(index=partition, records=bytes(batches(topic, partition, "x" * size).data))
            topics = [Struct(name=topic.name, partition_data=[part])]
            response = wire.ask("produce", 9, Struct(acks=-1, timeout=600_000, topic_data=topics))
            assert response.responses[0].partition_responses[0].error_code == 0


def _fetch(
    broker: BrokerThread, topic: Topic, max_bytes: int = 2**20, max_wait_ms: int = 20, offset: int = 0
) -> PendingFetch:
    wanted = [PartitionFetch(topic=topic, partition=0, offset=offset, max_bytes=max_bytes)]
    fetch = fetch_within_budget(
        broker.agent.data.read_path, wanted, max_bytes=max_bytes, max_wait_ms=max_wait_ms
    )
    return broker.run(fetch)


async def _release(fetch: PendingFetch) -> None:
    fetch.release()


def _small(start_broker: Callable[..., BrokerThread], batch_count: int, **changes: object) -> BrokerThread:
    budget_bytes = batch_count * (BATCH + KIB)
    return start_broker(
        max_fetches_bytes=budget_bytes, max_fetch_bytes=budget_bytes, default_fetch_bytes=BATCH, **changes
    )


def test_a_fetch_with_little_free_memory_returns_less(start_broker: Callable[..., BrokerThread]) -> None:
    broker = _small(start_broker, 20)
    topic = broker.create_topic("t")
    _produce(broker, topic, *[BATCH] * 5)
    fetches = [_fetch(broker, topic) for _ in range(4)]
    assert [len(fetch.results[0].batches) for fetch in fetches] == [4, 3, 2, 2]
    budget = broker.agent.data.read_path.budget
    assert budget.used == sum(fetch.size for fetch in fetches) <= budget.limit
    for fetch in fetches:
        broker.run(_release(fetch))
    assert budget.used == 0


@pytest.mark.parametrize("storage_mode", ["object", "local"])
def test_a_fetch_without_memory_waits_and_then_returns_the_high_watermark(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, storage_mode: str
) -> None:
    """It returns no error and no batch. A wrong high watermark would look like the end of the log."""
    broker = _small(start_broker, 1, local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("t", storage_mode=storage_mode)
    _produce(broker, topic, *[BATCH] * 2)
    first = _fetch(broker, topic)
    second = _fetch(broker, topic, offset=1)
    (result,) = second.results
    assert (second.size, list(result.batches), result.high_watermark, result.error) == (0, [], 2, None)

    async def fetch_after_release() -> PendingFetch:
        wanted = [PartitionFetch(topic=topic, partition=0, offset=0, max_bytes=2**20)]
        waiting = asyncio.ensure_future(
            fetch_within_budget(broker.agent.data.read_path, wanted, max_bytes=2**20, max_wait_ms=50_000)
        )
        await asyncio.sleep(0)
        assert not waiting.done()
        first.release()
        return await waiting

    third = broker.run(fetch_after_release())
    assert len(third.results[0].batches) == 1


class _Waiting:
    """Fetches of two partitions. The disk does not return the second one before the gate opens."""

    def __init__(self, broker: BrokerThread, topic: Topic) -> None:
        self._broker = broker
        self._reader = broker.agent.data.local_logs.reader
        self._budget = broker.agent.data.read_path.budget
        self._wait_for_space = self._budget.wait_for_space
        self._gate = asyncio.Event()
        self._wanted = [
            PartitionFetch(topic=topic, partition=partition, offset=0, max_bytes=2**20)
            for partition in range(2)
        ]
        self.with_records = self.without = 0

    async def query(self, topic: Topic, partition: int, query: Callable[[UnifiedLog], object]) -> object:
        assert self._reader.local_topics is not None
        log, _ = await self._reader.local_topics.log(topic, partition)
        return await self.read(log, partial(query, log))

    async def read(self, log: UnifiedLog, read: Callable[[], object], seconds: float = 0.0) -> object:
        del seconds
        if log.topic_partition.partition == 1:
            self.with_records += 1
            await self._gate.wait()
        return await asyncio.to_thread(read)

    async def wait_for_space(self, size: int, seconds: float) -> bool:
        self.without += 1
        try:
            return await self._wait_for_space(size, seconds)
        finally:
            self.without -= 1

    async def fetch(self) -> int:
        """Fetch both partitions, and return the number of batches."""
        pending = await fetch_within_budget(
            self._broker.agent.data.read_path, self._wanted, max_bytes=2**20, max_wait_ms=60_000
        )
        self.with_records += 1
        await self._gate.wait()
        pending.release()
        return sum(len(result.batches) for result in pending.results)

    async def fetch_together(self, count: int) -> tuple[int, int]:
        """Return how many of `count` fetches have records, and the reserved bytes, while all of them wait."""
        fetches = [asyncio.ensure_future(self.fetch()) for _ in range(count)]
        while self.with_records + self.without < count:  # noqa: ASYNC110  # threads read
            await asyncio.sleep(0.001)
        waiting = self.with_records, self._budget.used
        self._gate.set()
        assert all(await asyncio.gather(*fetches))
        return waiting


@pytest.mark.parametrize("storage_mode", ["object", "local"])
def test_records_that_wait_for_others_of_their_response_count(
    start_broker: Callable[..., BrokerThread],
    tmp_path: Path,
    storage_mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many fetches have read one partition, and the next one takes long. They keep what they have read."""
    broker = _small(start_broker, 20, local_directories=(tmp_path / "disk",), tail_bytes=0, cache_bytes=0)
    topic = broker.create_topic("t", 2, storage_mode=storage_mode)
    for partition in range(2):
        _produce(broker, topic, BATCH, partition=partition)
    broker.run(broker.agent.data.local_logs.tail_cache.idle())
    waiting = _Waiting(broker, topic)
    reader, budget = broker.agent.data.local_logs.reader, broker.agent.data.read_path.budget
    monkeypatch.setattr(reader.local_topics, "query", waiting.query)
    monkeypatch.setattr(reader, "_read_in_time", waiting.read)
    monkeypatch.setattr(budget, "wait_for_space", waiting.wait_for_space)
    with_records, reserved = broker.run(waiting.fetch_together(40))
    assert with_records * BATCH <= reserved <= budget.limit
    assert budget.used == 0


def test_clients_that_do_not_read_use_no_more_than_the_budget(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """They request many times the budget. Their memory is released when they disconnect."""
    broker = start_broker(max_fetches_bytes=4 * 2**20, max_fetch_bytes=2 * 2**20, default_fetch_bytes=2**20)
    topic = broker.create_topic("t", max_message_bytes=str(4 * 2**20))
    _produce(broker, topic, *[2**20] * 2)
    frame = request_frame("fetch", 12, 1, _fetch_request(2**21, max_wait=100))
    budget = broker.agent.data.read_path.budget
    wires = [Wire(broker.host_and_port) for _ in range(4)]
    for wire in wires:
        wire.send(frame * 20)
    peak = _watch(budget, lambda: budget.used > 2 * 2**20)
    assert peak <= budget.limit
    for wire in wires:
        wire.socket.close()
    _watch(budget, lambda: budget.used == 0)


def test_a_client_that_reads_gets_records_while_many_others_do_not_read(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """40 clients request the maximum and read nothing; every request of another client gets records."""
    long_timeouts = {"kafka_slow_reader_ms": 3_600_000, "kafka_scarce_memory_ms": 3_600_000}
    broker = start_broker(max_fetches_bytes=4 * 2**20, max_fetch_bytes=2**20, **long_timeouts)
    topic = broker.create_topic("t")
    _produce(broker, topic, *[32 * KIB] * 40)
    budget = broker.agent.data.read_path.budget
    wires = [Wire(broker.host_and_port) for _ in range(40)]
    for wire in wires:
        wire.send(request_frame("fetch", 12, 1, _fetch_request(2**20, max_wait=60_000)) * 300)
    server = broker.agent.kafka.server
    assert server is not None
    until(lambda: sum(not connection._writable.is_set() for connection in server._connections) == 40)
    with Wire(broker.host_and_port) as reader:
        for _ in range(20):
            response = reader.ask("fetch", 12, _fetch_request(2**20, max_wait=0))
            assert response.responses[0].partitions[0].records
            assert budget.used <= budget.limit - budget.limit // 8
    for wire in wires:
        wire.socket.close()
    until(lambda: budget.used == 0)


def test_clients_that_do_not_read_are_disconnected_for_one_that_needs_memory(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """They would have a minute otherwise, and more of them wait than fit the memory."""
    budget_bytes = 8 * 300 * KIB
    broker = start_broker(
        max_fetches_bytes=budget_bytes, max_fetch_bytes=budget_bytes // 2, kafka_scarce_memory_ms=40
    )
    topic = broker.create_topic("t")
    _produce(broker, topic, 300 * KIB - 200)
    frame = request_frame("fetch", 12, 1, _fetch_request(2**20, max_wait=60_000))
    wires = [Wire(broker.host_and_port) for _ in range(12)]
    for wire in wires:
        wire.send(frame * 100)
    budget = broker.agent.data.read_path.budget
    server = broker.agent.kafka.server
    assert server is not None
    until(lambda: not budget.fits(300 * KIB) or len(server._connections) < len(wires))
    with Wire(broker.host_and_port) as reader:
        response = reader.ask("fetch", 12, _fetch_request(2**20, max_wait=60_000))
    assert response.responses[0].partitions[0].records
    for wire in wires:
        wire.socket.close()
    until(lambda: budget.used == 0)


def test_clients_that_stop_sending_are_disconnected_for_one_that_needs_memory(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """An incomplete request would use memory for ten minutes while memory is not scarce."""
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
    server = broker.agent.kafka.server
    assert server is not None
    budget = broker.agent.resources.request_budget
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
    peak = 0
    while not until():
        peak = max(peak, budget.used)
        time.sleep(0.001)  # the agent's thread changes the budget
    return max(peak, budget.used)


def test_a_small_valid_part_does_not_keep_a_large_frame_in_memory(broker: BrokerThread) -> None:
    topic = broker.create_topic("t", 2)
    damaged = bytearray(encode_batch([1], [b"k"], [b"x" * 200 * KIB]))
    damaged[-1] ^= 1
    small = bytes(batches(topic, 1, "y").data)
    parts = [Struct(index=0, records=bytes(damaged)), Struct(index=1, records=small)]
    topics = [Struct(name="t", partition_data=parts)]
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("produce", 9, Struct(acks=-1, timeout=600_000, topic_data=topics))
    assert [part.error_code for part in response.responses[0].partition_responses] == [2, 0]
    wanted = [PartitionFetch(topic=topic, partition=1, offset=0, max_bytes=KIB)]
    (result,) = broker.run(broker.agent.data.read_path.fetch(wanted, max_bytes=KIB))
    (view,) = result.batches
    assert isinstance(view, memoryview)
    assert len(view) == len(small) == memoryview(view.obj).nbytes
