"""The cost of a fetch in catalog calls, store requests and copies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.kafka.codec import Struct
from agent.read.fetch_plan import PartitionFetch
from catalog.model import PartitionId
from core.errors import OffsetOutOfRangeError
from object_store.accounting import RequestKind
from tests.agent.kafka.wire import Wire
from tests.agent.write.test_write_path import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.read.fetch_result import FetchResult
    from agent.read.object_reader import RangeRequest
    from catalog.model import Topic
    from core.errors import SiltstoneError
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration

PARTITIONS = 4


def _produce(broker: BrokerThread, topic: Topic, *values: str) -> None:
    for value in values:
        parts = [
            Struct(index=number, records=bytes(batches(topic, number, value).data))
            for number in range(PARTITIONS)
        ]
        request = Struct(acks=-1, timeout=600_000, topic_data=[Struct(name=topic.name, partition_data=parts)])
        with Wire(broker.host_and_port) as wire:
            response = wire.ask("produce", 9, request)
        assert {part.error_code for part in response.responses[0].partition_responses} == {0}


def _fetch(broker: BrokerThread, topic: Topic, offset: int, max_wait_ms: int = 50) -> list[FetchResult]:
    wanted = [
        PartitionFetch(topic=topic, partition=number, offset=offset, max_bytes=2**20)
        for number in range(PARTITIONS)
    ]
    return broker.run(broker.agent.data.read_path.fetch(wanted, max_bytes=2**24, max_wait_ms=max_wait_ms))


def _queries(broker: BrokerThread) -> dict[str, int]:
    counts = broker.catalog.operation_counts()
    return {
        name: counts[name].calls if name in counts else 0 for name in ("topics.states", "extents.from_offset")
    }


def _new_queries(broker: BrokerThread, before: dict[str, int]) -> tuple[int, int]:
    after = _queries(broker)
    return after["topics.states"] - before["topics.states"], after["extents.from_offset"] - before[
        "extents.from_offset"
    ]


def test_a_reader_that_waits_at_the_tail_costs_no_catalog_call_and_no_get(
    start_broker: Callable[..., BrokerThread], store: FaultyStore
) -> None:
    """One call looks up the bounds of the partitions. After that, the agent's own commits update them."""
    broker = start_broker(bounds_cache_ms=3_600_000)
    topic = broker.create_topic("t", PARTITIONS)
    _produce(broker, topic, "a")
    before = _queries(broker)
    assert all(result.next_offset == 1 for result in _fetch(broker, topic, 0))
    assert _new_queries(broker, before) == (1, 0)
    for offset in range(1, 4):
        _produce(broker, topic, "b")
        results = _fetch(broker, topic, offset)
        assert [result.next_offset for result in results] == [offset + 1] * PARTITIONS
    assert _new_queries(broker, before)[1] == 0
    assert store.counts.snapshot().of(RequestKind.GET).requests == 0


def test_a_reader_that_does_not_wait_looks_up_the_high_watermark(broker: BrokerThread) -> None:
    """So it sees commits of other agents before their notification arrives."""
    topic = broker.create_topic("t", PARTITIONS)
    _produce(broker, topic, "a")
    before = _queries(broker)
    for number in range(1, 4):
        _fetch(broker, topic, 0, max_wait_ms=0)
        assert _new_queries(broker, before) == (number, 0)


def test_an_offset_beyond_the_cached_high_watermark_is_not_out_of_range(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """The reader may come from another agent whose notification is still on its way."""
    writer, other = start_broker(), start_broker(bounds_cache_ms=3_600_000)
    topic = writer.create_topic("t", PARTITIONS)
    _produce(writer, topic, "a")
    bounds_cache = other.agent.data.read_path._log.bounds_cache
    before = other.catalog.topics.states(
        [PartitionId(topic.topic_id, number) for number in range(PARTITIONS)]
    )
    _produce(writer, topic, "b", "c")

    async def fetch_with_stale_bounds() -> list[FetchResult]:
        bounds_cache.store(before, {PartitionId(state.topic_id, state.partition) for state in before})
        wanted = [
            PartitionFetch(topic=topic, partition=number, offset=3, max_bytes=2**20)
            for number in range(PARTITIONS)
        ]
        return await other.agent.data.read_path.fetch(wanted, max_bytes=2**24, max_wait_ms=1)

    results = other.run(fetch_with_stale_bounds())
    assert [(result.error, result.high_watermark) for result in results] == [(None, 3)] * PARTITIONS
    beyond = _fetch(other, topic, 4)
    assert all(isinstance(result.error, OffsetOutOfRangeError) for result in beyond)


def test_batches_are_not_copied_between_request_and_response(broker: BrokerThread) -> None:
    """All views refer to the buffer of the received frame."""
    topic = broker.create_topic("t", PARTITIONS)
    _produce(broker, topic, "a" * 1000)
    results = _fetch(broker, topic, 0)
    views = [view for result in results for view in result.batches]
    assert len(views) == PARTITIONS
    assert all(isinstance(view, memoryview) for view in views)
    assert len({id(view.obj) for view in views if isinstance(view, memoryview)}) == 1


def test_a_cold_reader_looks_up_many_extents_together(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Twenty fetches of one extent each cost one lookup."""
    writer = start_broker()
    topic = writer.create_topic("t", PARTITIONS)
    _produce(writer, topic, *(str(number) for number in range(20)))
    reader = start_broker(bounds_cache_ms=3_600_000)
    before = _queries(reader)
    size = len(batches(topic, 0, "0").data)
    offset = 0
    while offset < 20:
        wanted = [PartitionFetch(topic=topic, partition=0, offset=offset, max_bytes=size)]
        (result,) = reader.run(reader.agent.data.read_path.fetch(wanted, max_bytes=size, max_wait_ms=50))
        assert result.next_offset > offset
        offset = result.next_offset
    assert _new_queries(reader, before)[1] == 1


def test_fetches_of_compacted_topics_look_up_extents_and_read_from_memory(
    broker: BrokerThread, store: FaultyStore
) -> None:
    topic = broker.create_topic("t", PARTITIONS, cleanup_policy="compact")
    _produce(broker, topic, "a", "b")
    before = _queries(broker)
    for number in range(1, 3):
        assert all(result.next_offset == 2 for result in _fetch(broker, topic, 0))
        assert _new_queries(broker, before) == (number, number)
    assert store.counts.snapshot().of(RequestKind.GET).requests == 0


async def _clear_tail(broker: BrokerThread) -> None:
    broker.agent.data.tail.clear()


def test_readers_of_the_same_objects_share_gets_verification_and_copies(
    broker: BrokerThread, store: FaultyStore
) -> None:
    """Each byte of the log is read, verified and copied once. The responses are views of these copies."""
    topic = broker.create_topic("t", PARTITIONS)
    _produce(broker, topic, "a" * 1000, "b" * 1000)
    size = sum(result.size for result in _fetch(broker, topic, 0))
    broker.run(_clear_tail(broker))
    gets = store.counts.snapshot().of(RequestKind.GET).requests

    async def fetch_concurrently() -> list[list[FetchResult]]:
        wanted = [
            PartitionFetch(topic=topic, partition=number, offset=0, max_bytes=2**20)
            for number in range(PARTITIONS)
        ]
        path = broker.agent.data.read_path
        return await asyncio.gather(*(path.fetch(wanted, max_bytes=2**24, max_wait_ms=50) for _ in range(5)))

    found = [*broker.run(fetch_concurrently()), _fetch(broker, topic, 0)]
    assert [sum(result.size for result in results) for results in found] == [size] * 6
    owners = {
        id(view.obj)
        for results in found
        for result in results
        for view in result.batches
        if isinstance(view, memoryview)
    }
    assert len(owners) == 2 * PARTITIONS  # one for each section of the two files
    assert broker.agent.metrics.extracted_bytes._value.get() == size
    assert store.counts.snapshot().of(RequestKind.GET).requests - gets == 2


def test_batches_that_were_read_before_a_new_epoch_are_not_cached_in_it(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover may have lost them. The epoch can change while their bytes are read from the store."""
    topic = broker.create_topic("t", PARTITIONS)
    _produce(broker, topic, "a")
    broker.run(_clear_tail(broker))
    reader, blocks = broker.agent.data.read_path._extents._reader, broker.agent.data.blocks
    read_each = reader.read_each

    async def read_until_the_next_epoch(
        wanted: Sequence[RangeRequest],
    ) -> list[memoryview | SiltstoneError]:
        found = await read_each(wanted)
        blocks.clear()
        return found

    monkeypatch.setattr(reader, "read_each", read_until_the_next_epoch)
    assert [result.next_offset for result in _fetch(broker, topic, 0)] == [1] * PARTITIONS
    assert not blocks.of_topic(topic.topic_id)
    monkeypatch.undo()
    _fetch(broker, topic, 0)
    assert len(blocks.of_topic(topic.topic_id)) == PARTITIONS


def test_batches_of_a_compacted_topic_are_not_cached_as_those_of_the_log(broker: BrokerThread) -> None:
    """A compaction replaces them, and a fetch that finds them in memory would not notice."""
    topic = broker.create_topic("t", PARTITIONS, cleanup_policy="compact")
    _produce(broker, topic, "a")
    broker.run(_clear_tail(broker))
    assert [result.next_offset for result in _fetch(broker, topic, 0)] == [1] * PARTITIONS
    assert not broker.agent.data.blocks.of_topic(topic.topic_id)
