"""The statements and rows of a fetch: their number does not grow with the number of partitions."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

from agent.kafka.codec import Struct
from object_format.record_batch.records import encode_batch
from object_store.accounting import Purpose
from object_store.errors import StoreUnavailableError
from tests.agent.kafka.wire import Wire
from tests.agent.small_compaction import compact_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from catalog.model import Extent, Topic
    from catalog.open import Catalog
    from core.ids import Ids
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration

_MOST: Final = 1_000
_BATCH: Final = encode_batch([1000, 1000], [b"a", b"b"], [bytes(100)] * 2)
_MAX_BYTES: Final = 2**26
_NO_SESSION: Final = (0, -1)
_NEW_SESSION: Final = (0, 0)


def _produce(
    broker: BrokerThread, topic: Topic, partitions: Iterable[int], records: bytes | bytearray = _BATCH
) -> None:
    """Write a file with records of each partition, and leave nothing in memory."""
    parts = [Struct(index=index, records=records) for index in partitions]
    data = Struct(name=topic.name, partition_data=parts)
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("produce", 9, Struct(acks=-1, timeout=600_000, topic_data=[data]))
    assert {part.error_code for part in response.responses[0].partition_responses} == {0}
    broker.run(_forget(broker))


async def _forget(broker: BrokerThread) -> None:
    """Drop the batches, bounds and extents that an agent has in memory."""
    broker.agent.data.tail.clear()
    broker.agent.data.blocks.clear()
    broker.agent.data.read_path._log.clear()


def _compacted(broker: BrokerThread, store: FaultyStore, ids: Ids, count: int) -> Topic:
    """Create a topic whose partitions have one record in a section of one compacted file."""
    topic = broker.create_topic("compacted", count, cleanup_policy="compact")
    _produce(broker, topic, range(count))
    compact_partitions(
        broker.catalog, store, ids, topic, partitions=range(count), keep=lambda record: record.offset == 1
    )
    return topic


def _ingested(broker: BrokerThread, count: int) -> Topic:
    """Create a topic whose partitions have one batch in a section of one ingestion file."""
    topic = broker.create_topic("ingested", count)
    _produce(broker, topic, range(count))
    return topic


def _request(
    topic: Topic,
    partitions: Iterable[int],
    *,
    session: tuple[int, int] = _NO_SESSION,
    max_wait: int = 0,
    max_bytes: int = _MAX_BYTES,
    of_partition: int = 2**20,
    offset: int = 0,
) -> Struct:
    parts = [
        Struct(partition=number, fetch_offset=offset, partition_max_bytes=of_partition)
        for number in partitions
    ]
    return Struct(
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[Struct(topic=topic.name, partitions=parts)] if parts else [],
        session_id=session[0],
        session_epoch=session[1],
    )


def _with_records(response: Struct) -> list[int]:
    """Return the partitions that have records, in the order of the response."""
    assert response.error_code == 0
    return [
        part.partition_index
        for topic in response.responses
        for part in topic.partitions
        if part.error_code == 0 and len(part.records)
    ]


def _statements(broker: BrokerThread) -> int:
    """Return the number of statements that fetches have caused."""
    counts = broker.catalog.operation_counts()
    return sum(counts[name].statements for name in counts if name.startswith(("topics.", "extents.")))


def _fetch_cold(broker: BrokerThread, wire: Wire, request: Struct, count: int) -> int:
    """Fetch records of the first `count` partitions with two statements; return the session id."""
    broker.run(_forget(broker))
    before = _statements(broker)
    response = wire.ask("fetch", 12, request)
    assert _statements(broker) - before == 2
    assert _with_records(response) == list(range(count))
    session_id: int = response.session_id
    return session_id


@pytest.fixture
def rows(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of extents that each query of an agent returned."""
    seen: list[int] = []
    look_up = catalog.extents.from_offsets

    def counting(*arguments: object, **named: object) -> list[list[Extent]]:
        found = look_up(*arguments, **named)  # type: ignore[arg-type]  # as they are
        seen.append(sum(map(len, found)))
        return found

    monkeypatch.setattr(catalog.extents, "from_offsets", counting)
    return seen


def test_a_fetch_costs_as_many_statements_for_any_number_of_partitions(
    start_broker: Callable[..., BrokerThread], store: FaultyStore, ids: Ids
) -> None:
    """One for the bounds, and one for the extents: with and without waiting, and in sessions."""
    broker = start_broker(topic_cache_ms=3_600_000)
    topics = _ingested(broker, _MOST), _compacted(broker, store, ids, _MOST)
    with Wire(broker.host_and_port) as wire:
        for topic in topics:
            wire.ask("fetch", 12, _request(topic, [0]))
            for count in (1, 10, _MOST):
                parts = range(count)
                _fetch_cold(broker, wire, _request(topic, parts), count)
                begin = _request(topic, parts, session=_NEW_SESSION, max_wait=60_000)
                session_id = _fetch_cold(broker, wire, begin, count)
                _fetch_cold(broker, wire, _request(topic, (), session=(session_id, 1)), count)


def test_a_fetch_looks_up_the_extents_that_its_response_can_hold(
    broker: BrokerThread, store: FaultyStore, ids: Ids, rows: list[int]
) -> None:
    """The first partitions of the request have priority."""
    count = 60
    topics = _ingested(broker, count), _compacted(broker, store, ids, count)
    limits = ((0, 1), (1, 1), (10 * len(_BATCH), 20), (_MAX_BYTES, count))
    with Wire(broker.host_and_port) as wire:
        for topic, (max_bytes, most) in product(topics, limits):
            broker.run(_forget(broker))
            rows.clear()
            read = _with_records(wire.ask("fetch", 12, _request(topic, range(count), max_bytes=max_bytes)))
            assert read == list(range(len(read)))
            assert len(rows) == 1
            assert most / 4 < len(read) <= rows[0] <= most


def test_a_fetch_makes_a_few_queries_for_a_bounded_number_of_extents(
    start_broker: Callable[..., BrokerThread], store: FaultyStore, ids: Ids, rows: list[int]
) -> None:
    """The next requests of a session read the other partitions."""
    broker = start_broker(max_lookup_extents=5)
    topic = _compacted(broker, store, ids, 20)
    rows.clear()
    with Wire(broker.host_and_port) as wire:
        first = wire.ask("fetch", 12, _request(topic, range(20), session=_NEW_SESSION))
        assert _with_records(first) == list(range(15))
        assert rows == [5, 5, 5]
        read = _request(topic, (), session=(first.session_id, 1))
        second = wire.ask("fetch", 12, read)
        read = _request(topic, (), session=(first.session_id, 2))
        third = wire.ask("fetch", 12, read)
    assert max(rows) == 5
    assert {*_with_records(second), *_with_records(third)} >= set(range(15, 20))


def test_only_the_partitions_of_a_bad_object_fail_and_the_others_cost_no_more(
    broker: BrokerThread, store: FaultyStore
) -> None:
    with Wire(broker.host_and_port) as wire:
        for fault in ("damaged", "missing", "short"):
            topic = broker.create_topic(fault, 20)
            _produce(broker, topic, [7])
            _produce(broker, topic, [number for number in range(20) if number != 7])
            (extent,) = broker.catalog.extents.from_offset(topic.topic_id, 7, 0)
            _spoil(store, extent, fault)
            for count in (8, 20):
                broker.run(_forget(broker))
                before = _statements(broker)
                response = wire.ask("fetch", 12, _request(topic, range(count)))
                assert _with_records(response) == [number for number in range(count) if number != 7]
                assert _failed(response) == [7]
                assert _statements(broker) - before <= (13 if fault == "missing" else 3)


def _spoil(store: FaultyStore, extent: Extent, fault: str) -> None:
    name = extent.object_name
    body = store.read_range(name, 0, extent.position + extent.length, purpose=Purpose.FSCK)
    body[-1] ^= 1
    store.delete([name], purpose=Purpose.GC)
    if fault == "damaged":
        store.put(name, [body], purpose=Purpose.FSCK)
    elif fault == "short":
        store.put(name, [body[: extent.position]], purpose=Purpose.FSCK)


def test_a_store_that_does_not_respond_is_asked_once_for_each_file(
    broker: BrokerThread, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has retried. Reads of each partition alone would take as long as that, each."""
    topic = _ingested(broker, 20)
    reads = 0

    def fail(*_: object, **__: object) -> bytearray:
        nonlocal reads
        reads += 1
        raise StoreUnavailableError("the store is away")

    monkeypatch.setattr(store, "read_range", fail)
    with Wire(broker.host_and_port) as wire:
        assert _failed(wire.ask("fetch", 12, _request(topic, range(20)))) == list(range(20))
    assert reads == 1


def test_records_before_a_bad_object_are_read(broker: BrokerThread, store: FaultyStore) -> None:
    with Wire(broker.host_and_port) as wire:
        for fault in ("damaged", "missing", "short"):
            topic = broker.create_topic(fault)
            for _ in range(3):
                _produce(broker, topic, [0])
            _spoil(store, broker.catalog.extents.from_offset(topic.topic_id, 0, 0)[1], fault)
            first = wire.ask("fetch", 12, _request(topic, [0]))
            assert _with_records(first) == [0]
            assert len(first.responses[0].partitions[0].records) == len(_BATCH)
            assert _failed(wire.ask("fetch", 12, _request(topic, [0], offset=2))) == [0]
            assert _with_records(wire.ask("fetch", 12, _request(topic, [0], offset=4))) == [0]


def test_sections_that_exceed_the_memory_together_are_read_in_parts(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """A batch is never cut, so each of them is larger than what its partition may have in the response."""
    count, memory = 12, 2**20
    broker = start_broker(max_fetches_bytes=memory, max_fetch_bytes=memory, default_fetch_bytes=memory)
    topic = broker.create_topic("large", count)
    _produce(broker, topic, range(count), encode_batch([1000], [b"a"], [bytes(2 * memory // count)]))
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("fetch", 12, _request(topic, range(count), of_partition=1000))
        assert _with_records(response) == [0]


def test_leaders_of_many_local_topics_are_looked_up_together(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topics = [broker.create_topic(f"t{number}", storage_mode="local") for number in range(10)]
    parts = [Struct(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    request = Struct(
        max_wait=0,
        min_bytes=1,
        max_bytes=1000,
        topics=[Struct(topic=topic.name, partitions=parts) for topic in topics],
    )
    with Wire(broker.host_and_port) as wire:
        wire.ask("fetch", 12, request)  # creates the logs
        local_topics = broker.agent.data.local_logs.reader.local_topics
        assert local_topics is not None
        local_topics._leaders._cache.clear()
        before = broker.catalog_calls()["local_leaders.of_topics"]
        assert _failed(wire.ask("fetch", 12, request)) == []
        assert broker.catalog_calls()["local_leaders.of_topics"] - before < 5


def _failed(response: Struct) -> Sequence[int]:
    return [
        part.partition_index for topic in response.responses for part in topic.partitions if part.error_code
    ]
