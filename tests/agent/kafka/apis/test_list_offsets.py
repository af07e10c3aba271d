"""ListOffsets: special timestamps, and the versions that added them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.kafka.brokers import BrokerThread

_LATEST, _EARLIEST, _MAX, _LOCAL, _TIERED, _PENDING = -1, -2, -3, -4, -5, -6


@pytest.fixture
def wire(broker: BrokerThread) -> Wire:
    """A connection to an agent with three records. The second has the largest timestamp."""
    broker.create_topic("granite", 2)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 50})
    for timestamp in (1_000, 3_000, 2_000):
        producer.produce("granite", b"x", partition=0, timestamp=timestamp)
    assert producer.flush(120) == 0
    return Wire(broker.host_and_port)


def ask(wire: Wire, version: int, timestamp: int, partition: int = 0) -> Struct:
    wanted = Struct(partition_index=partition, timestamp=timestamp, current_leader_epoch=-1)
    request = Struct(replica_id=-1, topics=[Struct(name="granite", partitions=[wanted])])
    response: Struct = wire.ask("list_offsets", version, request).topics[0].partitions[0]
    return response


def test_special_timestamps_need_the_version_that_added_them(wire: Wire) -> None:
    """Earlier versions and unknown special timestamps are UNSUPPORTED_VERSION."""
    with wire:
        for timestamp, since, offset, found in [
            (_LATEST, 1, 3, -1),
            (_EARLIEST, 1, 0, -1),
            (_MAX, 7, 1, 3_000),
            (_LOCAL, 8, 0, -1),
            (_TIERED, 9, -1, -1),
            (_PENDING, 11, -1, -1),
            (2_500, 1, 1, 3_000),
            (9_999, 1, -1, -1),
        ]:
            for version in range(1, 12):
                response = ask(wire, version, timestamp)
                if version < since:
                    assert response.error_code == ErrorCode.unsupported_version
                else:
                    assert (response.error_code, response.offset) == (ErrorCode.none, offset)
                    assert response.timestamp == found
        assert ask(wire, 11, -7).error_code == ErrorCode.unsupported_version


def test_the_largest_timestamp_needs_at_most_one_read(store: FaultyStore, wire: Wire) -> None:
    """The catalog stores the extent that has it. An empty partition needs no read."""

    def requests() -> int:
        return sum(tally.requests for tally in store.counts.snapshot().tallies.values())

    with wire:
        before = requests()
        assert ask(wire, 11, _MAX, partition=1).offset == -1
        assert requests() == before
        assert ask(wire, 11, _MAX).offset == 1
        assert requests() <= before + 1


def test_the_largest_timestamp_is_that_of_a_remaining_record(broker: BrokerThread, wire: Wire) -> None:
    """Records before the log start offset do not count, although their file has later records, too."""

    def delete_before(offset: int) -> None:
        part = Struct(partition_index=0, offset=offset)
        topics = [Struct(name="granite", partitions=[part])]
        response = wire.ask("delete_records", 2, Struct(topics=topics, timeout=9_000))
        assert response.topics[0].partitions[0].error_code == ErrorCode.none

    def append(timestamp: int) -> None:
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce("granite", b"x", partition=0, timestamp=timestamp)
        assert producer.flush(120) == 0

    def largest() -> tuple[int, int]:
        response = ask(wire, 11, _MAX)
        return response.offset, response.timestamp

    with wire:
        assert largest() == (1, 3_000)
        delete_before(2)
        assert largest() == (2, 2_000)
        append(1_500)
        assert largest() == (2, 2_000)
        append(2_000)
        assert largest() == (2, 2_000)
        append(2_500)
        assert largest() == (5, 2_500)
        delete_before(6)
        assert largest() == (-1, -1)


def test_an_unknown_or_duplicate_partition_has_an_error(wire: Wire) -> None:
    with wire:
        assert ask(wire, 11, _LATEST, partition=7).error_code == ErrorCode.unknown_topic_or_partition
        wanted = Struct(partition_index=0, timestamp=_LATEST, current_leader_epoch=-1)
        request = Struct(replica_id=-1, topics=[Struct(name="granite", partitions=[wanted, wanted])])
        parts = wire.ask("list_offsets", 11, request).topics[0].partitions
        assert {part.error_code for part in parts} == {ErrorCode.invalid_request}
