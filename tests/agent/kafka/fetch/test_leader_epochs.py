"""Leader epochs as Kafka clients see them: a new one begins when the catalog continues on another history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.model import PartitionId
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, read_response, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from catalog.topics.leader_epochs import EpochHistory
    from tests.agent.kafka.brokers import BrokerThread

_TOPIC = "granite"


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    """Start an agent that notices a new epoch soon."""
    started = start_broker(heartbeat_interval_ms=50, max_wait_ms=600_000)
    started.create_topic(_TOPIC)
    return started


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as opened:
        yield opened


@pytest.fixture
def begin_epoch(broker: BrokerThread, catalog_url: str) -> Callable[[], int]:
    """Return a function that makes the recorded server another one, and returns the epoch that follows."""

    def begin() -> int:
        epoch = broker.agent.resources.epoch.current
        with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
            connection.execute(
                "UPDATE catalog_incarnation SET server = regexp_replace(server, '/[^/]*', '/0')"
            )
        until(lambda: broker.agent.resources.epoch.current > epoch)
        return broker.agent.resources.epoch.current

    return begin


def produce(wire: Wire, count: int) -> int:
    """Produce records, with retries while the session is replaced; return their first offset."""
    while True:
        data = encode_batch([1000] * count, [None] * count, [b"v"] * count)
        part = Struct(index=0, records=data)
        data_of_topic = Struct(name=_TOPIC, partition_data=[part])
        request = Struct(acks=-1, timeout=600_000, topic_data=[data_of_topic])
        response = wire.ask("produce", 9, request).responses[0].partition_responses[0]
        if response.error_code == ErrorCode.none:
            return int(response.base_offset)


def fetch(wire: Wire, offset: int, epoch: int, *, max_wait: int = 0) -> Struct:
    wanted = Struct(partition=0, fetch_offset=offset, partition_max_bytes=10_000, current_leader_epoch=epoch)
    request = Struct(max_wait=max_wait, min_bytes=1, topics=[Struct(topic=_TOPIC, partitions=[wanted])])
    response: Struct = wire.ask("fetch", 12, request).responses[0].partitions[0]
    return response


def end_of(wire: Wire, epoch: int, current: int = -1) -> tuple[int, int, int]:
    wanted = Struct(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = Struct(replica_id=-1, topics=[Struct(topic=_TOPIC, partitions=[wanted])])
    found = wire.ask("offset_for_leader_epoch", 4, request).topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


def latest(wire: Wire, timestamp: int, current: int = -1) -> Struct:
    wanted = Struct(partition_index=0, timestamp=timestamp, current_leader_epoch=current)
    request = Struct(replica_id=-1, topics=[Struct(name=_TOPIC, partitions=[wanted])])
    response: Struct = wire.ask("list_offsets", 7, request).topics[0].partitions[0]
    return response


def epochs_of(records: memoryview) -> list[tuple[int, int]]:
    """Return base offset and leader epoch of each batch."""
    headers = [header for _, header in iter_headers(records)]
    return [(header.base_offset, header.partition_leader_epoch) for header in headers]


def test_every_response_states_the_epoch_of_its_records(
    broker: BrokerThread, wire: Wire, begin_epoch: Callable[[], int]
) -> None:
    assert produce(wire, 3) == 0
    epoch = begin_epoch()
    assert produce(wire, 2) == 3
    metadata = wire.ask("metadata", 9, Struct(topics=[Struct(name=_TOPIC)]))
    assert metadata.topics[0].partitions[0].leader_epoch == epoch
    (entry,) = broker.catalog.topics.states([PartitionId(broker.catalog.topics.get(_TOPIC).topic_id, 0)])
    assert entry.leader_epoch == epoch
    read = fetch(wire, 0, epoch)
    batches = epochs_of(read.records)
    while batches[-1][0] < 3:
        batches += epochs_of(fetch(wire, batches[-1][0] + 3, epoch).records)
    assert batches == [(0, 0), (3, epoch)]
    found = [(latest(wire, at).offset, latest(wire, at).leader_epoch) for at in (-1, -2)]
    assert found == [(5, epoch), (0, 0)]
    ends = [end_of(wire, each) for each in (0, epoch, epoch + 1)]
    assert ends == [(0, 0, 3), (0, epoch, 5), (0, -1, -1)]


def test_a_client_in_an_earlier_epoch_is_fenced_and_one_in_a_later_epoch_waits(
    wire: Wire, begin_epoch: Callable[[], int]
) -> None:
    """FENCED_LEADER_EPOCH lets it validate its position. Both errors precede those of its offset."""
    produce(wire, 3)
    current = begin_epoch()
    later = current + 1
    for epoch, code in ((0, ErrorCode.fenced_leader_epoch), (later, ErrorCode.unknown_leader_epoch)):
        for offset in (0, 3, 99):
            assert fetch(wire, offset, epoch).error_code == code
            assert fetch(wire, offset, epoch, max_wait=100).error_code == code
        assert latest(wire, -1, epoch).error_code == code
        assert end_of(wire, 0, epoch)[0] == code
    for epoch in (-1, current):
        assert fetch(wire, 0, epoch).error_code == ErrorCode.none


def test_a_waiting_fetch_is_fenced_when_a_new_epoch_begins(
    broker: BrokerThread, wire: Wire, begin_epoch: Callable[[], int]
) -> None:
    """Otherwise the client would wait at an offset that the new history may not have."""
    produce(wire, 3)
    assert fetch(wire, 0, 0).error_code == ErrorCode.none
    wanted = Struct(partition=0, fetch_offset=3, partition_max_bytes=10_000, current_leader_epoch=0)
    request = Struct(max_wait=600_000, min_bytes=1, topics=[Struct(topic=_TOPIC, partitions=[wanted])])
    with Wire(broker.host_and_port) as other:
        other.send(request_frame("fetch", 12, 7, request))
        until(lambda: broker.agent.data.commit_notifier.has_waiters)
        begin_epoch()
        received = other.receive()
    assert received is not None
    response = read_response("fetch", 12, received[1])
    assert response.responses[0].partitions[0].error_code == ErrorCode.fenced_leader_epoch


def test_a_position_past_a_loss_is_not_out_of_range_before_the_new_epoch_begins(
    start_broker: Callable[..., BrokerThread], catalog_url: str
) -> None:
    """The client would reset it, and skip records or read them again. It retries until the epoch begins."""
    broker = start_broker(heartbeat_interval_ms=3_600_000, bounds_cache_ms=1, tail_bytes=0)
    broker.create_topic(_TOPIC)
    with (
        Wire(broker.host_and_port) as wire,
        psycopg.connect(catalog_url, autocommit=True, options="-c search_path=siltstone") as connection,
    ):
        assert produce(wire, 3) == 0
        connection.execute(
            "UPDATE catalog_incarnation SET server = regexp_replace(server, '/[^/]*', '/00000000')"
        )
        connection.execute(
            "UPDATE partitions SET high_watermark = 1, last_stable_offset = 1, log_end_offset = 1"
        )
        until(lambda: fetch(wire, 3, 0).error_code != ErrorCode.none)
        for epoch in (-1, 0):
            assert fetch(wire, 3, epoch).error_code == ErrorCode.kafka_storage_error
        assert fetch(wire, 1, 0).error_code == ErrorCode.none
        current = broker.catalog.incarnations.ensure().epoch
        until(lambda: fetch(wire, 3, 0).error_code == ErrorCode.fenced_leader_epoch)
        assert fetch(wire, 3, current).error_code == ErrorCode.offset_out_of_range
        assert end_of(wire, 0, current) == (0, 0, 1)


def test_the_end_of_an_epoch_is_not_that_of_a_log_that_has_lost_its_last_records(
    broker: BrokerThread, wire: Wire, begin_epoch: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new epoch begins between the looks at the log end and at the epochs. The client asks again."""
    produce(wire, 3)
    begin_epoch()
    look = broker.catalog.leader_epochs.of_partitions

    def look_later(partitions: Sequence[PartitionId]) -> Mapping[PartitionId, EpochHistory]:
        monkeypatch.undo()
        begin_epoch()
        return look(partitions)

    monkeypatch.setattr(broker.catalog.leader_epochs, "of_partitions", look_later)
    assert end_of(wire, 0)[0] == ErrorCode.kafka_storage_error
    assert end_of(wire, 0) == (0, 0, 3)


def test_memory_and_disk_keep_nothing_of_an_earlier_epoch(
    broker: BrokerThread, wire: Wire, begin_epoch: Callable[[], int]
) -> None:
    produce(wire, 3)
    assert broker.agent.data.tail.size > 0
    begin_epoch()
    assert broker.agent.data.tail.size == 0
    assert len(broker.agent.kafka.fetch_sessions) == 0
    assert broker.agent.data.directory.cached(_TOPIC) is None
