"""Kafka client of the demo: produces both topics at the same time, and reads them back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from siltstone.demo.comparison import FetchedRecord, RecordOutcome
from siltstone.kafka_client.connection import connect
from siltstone.kafka_client.reader import Reader, StartPosition
from siltstone.kafka_client.sender import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from confluent_kafka import KafkaError, Message

    from core.clock import Clock
    from siltstone.demo.input_data import Row

_SETTINGS = {**DEFAULTS, "compression.type": "zstd", "linger.ms": "100"}
_POLL_SECONDS = 0.1
_ROWS_PER_POLL = 1_000
_NO_RESPONSE = RecordOutcome(None, None, "no response")


def produce(
    bootstrap: str, topics: Sequence[tuple[str, Sequence[Row]]], advance: Callable[[int], None]
) -> list[list[RecordOutcome]]:
    """Send the rows of all topics, each in order and all at the same pace; return an outcome for each row.

    A broker accepts or rejects a batch as a whole. Rows without a key are therefore sent by a separate
    producer, so that only these are rejected.
    """
    keyed = connect(Producer, {**_SETTINGS, "bootstrap.servers": bootstrap, "enable.idempotence": "true"})
    keyless = connect(Producer, {**_SETTINGS, "bootstrap.servers": bootstrap})
    outcomes = [[_NO_RESPONSE] * len(rows) for _, rows in topics]
    for number, (topic_index, row) in enumerate(_interleaved([len(rows) for _, rows in topics])):
        name, rows = topics[topic_index]
        record = rows[row]
        _send(
            keyless if record.key is None else keyed,
            name,
            record,
            partial(_record_outcome, outcomes[topic_index], row),
        )
        if number % _ROWS_PER_POLL == 0:
            keyed.poll(0)
            advance(min(number, _ROWS_PER_POLL))
    keyed.flush()
    keyless.flush()
    keyed.close()
    keyless.close()
    return outcomes


def _interleaved(lengths: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (list, index) for all items of lists of these lengths, so that all lists end together."""
    longest = max(lengths)
    for step in range(longest):
        for topic_index, length in enumerate(lengths):
            for row in range(length * step // longest, length * (step + 1) // longest):
                yield topic_index, row


def _send(
    producer: Producer, topic: str, record: Row, delivered: Callable[[KafkaError | None, Message], None]
) -> None:
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, timestamp=record.timestamp, on_delivery=delivered
            )
        except BufferError:
            producer.poll(_POLL_SECONDS)
        else:
            return


def _record_outcome(
    outcomes: list[RecordOutcome], row: int, error: KafkaError | None, message: Message
) -> None:
    if error is None:
        outcomes[row] = RecordOutcome(message.partition(), message.offset(), None)
    else:
        outcomes[row] = RecordOutcome(None, None, f"{error.name()}: {error.str()}")


def read_back(
    bootstrap: str, topic: str, partitions: int, clock: Clock, advance: Callable[[int], None]
) -> list[list[FetchedRecord]]:
    """Return all records of a topic by partition, in the order of their arrival."""
    found: list[list[FetchedRecord]] = [[] for _ in range(partitions)]
    reader = Reader({"bootstrap.servers": bootstrap, "group.id": "demo"}, topic, clock)
    try:
        reader.start_at(None, StartPosition("earliest"))
        for messages in reader.batches(follow=False, max_records=None):
            for message in messages:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                found[partition].append(
                    FetchedRecord(offset, message.timestamp()[1], message.key(), message.value())
                )
            reader.mark_consumed(messages)
            advance(len(messages))
    finally:
        reader.close()
    return found
