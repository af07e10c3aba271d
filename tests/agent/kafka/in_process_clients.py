"""Produce and consume with librdkafka, for tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_SECONDS = 120.0


def produce(address: str, topic: str, records: Sequence[tuple[bytes | None, bytes]], **settings: Any) -> None:  # noqa: ANN401  # any setting
    """Send records with librdkafka; underscores in names of settings stand for dots. Fails on any error."""
    changes = {name.replace("_", "."): value for name, value in settings.items()}
    partition = changes.pop("partition", 0)
    failures: list[object] = []

    def delivered(error: object, message: Message) -> None:
        del message
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": address, "linger.ms": 1, **changes})
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=partition, on_delivery=delivered)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert failures == []


def consume(
    address: str,
    topic: str,
    count: int,
    *,
    offset: int = -2,
    partition: int = 0,
    **settings: Any,  # noqa: ANN401  # as above
) -> list[Message]:
    """Read `count` records from an offset on (-2 is the earliest), with librdkafka and without a group."""
    changes = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False, **changes}
    )
    consumer.assign([TopicPartition(topic, partition, offset)])
    messages: list[Message] = []
    try:
        while len(messages) < count:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None, f"{len(messages)} of {count} records came"
            assert message.error() is None, message.error()
            messages.append(message)
    finally:
        consumer.close()
    return messages


def log_end_offset(consumer: Consumer, partition: TopicPartition) -> int:
    """Return where the log of a partition ends, also while agents change.

    librdkafka fails with an unknown partition if a leader refused a request shortly before: it has forgotten
    the partitions of the topic then.
    """
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=TIMEOUT_SECONDS)[1])
        except KafkaException:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
