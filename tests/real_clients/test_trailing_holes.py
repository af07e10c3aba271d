"""Logs whose last offsets have no record, as after compaction has dropped a tombstone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, consume, produce

if TYPE_CHECKING:
    from tests.real_clients.agents import Agents

pytestmark = pytest.mark.integration


def _compacted(agents: Agents, *kept: int) -> str:
    topic = agents.create_topic(cleanup_policy="compact")
    produce(agents.bootstrap, topic, [(str(n).encode(), str(n).encode()) for n in range(10)])
    agents.compact(topic, keep=lambda record: record.offset in kept)
    return topic


def _read_to_the_end(agents: Agents, topic: str, offset: int) -> tuple[list[int | None], int]:
    """Return the offsets that were read up to the end of the partition, and the end offset."""
    consumer = Consumer(
        {"bootstrap.servers": agents.bootstrap, "group.id": "unused", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[int | None] = []
    try:
        while True:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None, f"no end of partition after {found}"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found, message.offset() or 0
            found.append(message.offset())
    finally:
        consumer.close()


@pytest.mark.parametrize("offset", [0, 5, 9])
def test_a_consumer_reaches_the_end_after_the_last_hole(agents: Agents, offset: int) -> None:
    """It reports the end for every start offset, and reads later records."""
    topic = _compacted(agents, 1, 4)
    kept = [each for each in (1, 4) if each >= offset]
    assert _read_to_the_end(agents, topic, offset) == (kept, 10)
    produce(agents.bootstrap, topic, [(b"late", b"late")])
    assert _read_to_the_end(agents, topic, offset) == ([*kept, 10], 11)
    assert [message.offset() for message in consume(agents.bootstrap, topic, 1, offset=7)] == [10]


def test_a_consumer_reaches_the_end_of_a_log_without_records(agents: Agents) -> None:
    """All its offsets are holes."""
    assert _read_to_the_end(agents, _compacted(agents), 0) == ([], 10)
