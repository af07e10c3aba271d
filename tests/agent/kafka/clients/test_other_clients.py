"""Produce and consume with kafka-python and aiokafka."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import aiokafka  # type: ignore[import-untyped]  # it brings no types
import pytest

with warnings.catch_warnings():
    # It reads its schemas with a function that is deprecated in Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # type: ignore[import-untyped]  # it brings no types

if TYPE_CHECKING:
    from tests.agent.kafka.brokers import BrokerThread

_MAX_MS = 120_000
pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("codec", [None, "gzip", "lz4", "zstd"])
def test_kafka_python_produces_and_consumes(broker: BrokerThread, codec: str | None) -> None:
    broker.create_topic("granite")
    sent = [str(number).encode() for number in range(100)]
    producer = kafka.KafkaProducer(bootstrap_servers=broker.address, compression_type=codec, acks="all")
    futures = [producer.send("granite", value, partition=0) for value in sent]
    assert [future.get(_MAX_MS / 1000).offset for future in futures] == list(range(100))
    producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.address, auto_offset_reset="earliest", consumer_timeout_ms=_MAX_MS
    )
    partition = kafka.TopicPartition("granite", 0)
    consumer.assign([partition])
    assert consumer.end_offsets([partition]) == {partition: 100}
    consumer.seek_to_beginning(partition)
    received = [next(consumer).value for _ in sent]
    consumer.close()
    assert received == sent


@pytest.mark.anyio
async def test_aiokafka_produces_and_consumes(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    sent = [str(number).encode() for number in range(100)]
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.address, enable_idempotence=True, compression_type="lz4"
    ) as producer:
        for value in sent:
            await producer.send_and_wait("granite", value, partition=0)
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.address)
    partition = aiokafka.TopicPartition("granite", 0)
    consumer.assign([partition])
    await consumer.start()
    try:
        await consumer.seek_to_beginning(partition)
        received = [(await consumer.getone()).value for _ in sent]
    finally:
        await consumer.stop()
    assert received == sent


@pytest.mark.anyio
async def test_aiokafka_continues_after_its_first_record_was_rejected(broker: BrokerThread) -> None:
    """It never reuses the sequence number of a rejected batch. It does not know INVALID_RECORD."""
    broker.create_topic("gneiss", cleanup_policy="compact")
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.address, enable_idempotence=True
    ) as producer:
        with pytest.raises(aiokafka.errors.UnknownError):
            await producer.send_and_wait("gneiss", b"keyless", partition=0)
        offsets = [
            (await producer.send_and_wait("gneiss", b"value", key=b"key", partition=0)).offset
            for _ in range(3)
        ]
    assert offsets == [0, 1, 2]
