"""Produce and consume with librdkafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, consume, produce

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.kafka.brokers import BrokerThread


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec_are_read_unchanged(broker: BrokerThread, codec: str) -> None:
    broker.create_topic("granite")
    sent = [(f"key {number}".encode(), b"value " * 50 + str(number).encode()) for number in range(200)]
    produce(broker.address, "granite", sent, compression_type=codec)
    received = consume(broker.address, "granite", len(sent))
    assert [(message.key(), message.value()) for message in received] == sent
    assert [message.offset() for message in received] == list(range(200))


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_are_accepted_with_any_acks(broker: BrokerThread, acks: int | str) -> None:
    broker.create_topic("granite")
    produce(broker.address, "granite", [(None, b"one"), (None, b"two")], acks=acks)
    assert [message.value() for message in consume(broker.address, "granite", 2)] == [b"one", b"two"]


def test_an_idempotent_producer_keeps_its_order_with_pipelined_requests(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    sent = [(None, str(number).encode()) for number in range(2000)]
    produce(broker.address, "granite", sent, enable_idempotence=True, batch_num_messages=20)
    received = consume(broker.address, "granite", len(sent))
    assert [message.value() for message in received] == [value for _, value in sent]


def test_a_consumer_at_the_tail_gets_new_records(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    consumer.assign([TopicPartition("granite", 0, 0)])
    assert consumer.poll(0.2) is None
    produce(broker.address, "granite", [(b"k", b"v")])
    message = consumer.poll(TIMEOUT_SECONDS)
    consumer.close()
    assert message is not None
    assert message.value() == b"v"


def test_a_consumer_finds_offsets_by_number_end_and_timestamp(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    produce(broker.address, "granite", [(None, b"a"), (None, b"b"), (None, b"c")])
    first, second, third = consume(broker.address, "granite", 3)
    assert consume(broker.address, "granite", 1, offset=2)[0].value() == third.value()
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    partition = TopicPartition("granite", 0)
    assert consumer.get_watermark_offsets(partition, TIMEOUT_SECONDS) == (0, 3)
    at = [
        consumer.offsets_for_times([TopicPartition("granite", 0, stamp)], TIMEOUT_SECONDS)[0].offset
        for stamp in (0, first.timestamp()[1], third.timestamp()[1] + 1)
    ]
    consumer.close()
    assert at[:2] == [0, 0]
    assert at[2] == -1
    assert second.offset() == 1


def test_records_produced_at_one_agent_are_read_at_another(start_broker: Callable[..., BrokerThread]) -> None:
    one, other = start_broker(), start_broker()
    one.create_topic("granite", 4)
    for partition in range(4):
        produce(one.address, "granite", [(None, bytes([partition]))], partition=partition)
    for partition in range(4):
        (message,) = consume(other.address, "granite", 1, partition=partition)
        assert message.value() == bytes([partition])
