"""Where the partitions of a local topic begin and end: their leaders alone know, and are asked as by clients.

The catalog says who leads and who is there; offsets of `storage.mode=local` never go through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition

from agent.settings import AgentSettings
from siltstone.kafka.connection import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import Broker, Topic
    from catalog.open import Catalog

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBounds:
    """One partition: its leader's node, None while nobody leads it, and what that node says.

    Offsets are None when it does not answer. Records are readable as soon as they are acknowledged, up to
    `log_end_offset`.
    """

    partition: int
    leader: int | None
    log_start_offset: int | None = None
    log_end_offset: int | None = None


def local_bounds(catalog: Catalog, topic: Topic) -> list[LocalBounds]:
    """Of all partitions of a topic with storage.mode=local, in order."""
    leaders = {
        partition: leader.node_id
        for partition, leader in catalog.local_leaders.of_topic(topic.topic_id).items()
    }
    brokers = catalog.brokers.live(AgentSettings().broker_silent_ms)
    present = {broker.node_id for broker in brokers}
    asked = [partition for partition, node in sorted(leaders.items()) if node in present]
    found = _ask(topic.name, asked, brokers)
    return [
        LocalBounds(
            partition=partition,
            leader=leaders.get(partition),
            log_start_offset=found[partition][0] if partition in found else None,
            log_end_offset=found[partition][1] if partition in found else None,
        )
        for partition in range(topic.partition_count)
    ]


def _ask(topic: str, partitions: Sequence[int], brokers: Sequence[Broker]) -> dict[int, tuple[int, int]]:
    """First and next offset by partition; those of whom nothing was heard in time are left out."""
    if not partitions:
        return {}
    consumer = connect(
        Consumer,
        {
            "bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers),
            "group.id": "siltstone-topics",  # librdkafka wants a name; no group is joined
            "enable.auto.commit": False,
        },
    )
    found = {}
    try:
        for partition in partitions:
            try:
                low, high = consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=_PATIENCE_SECONDS
                )
            except KafkaException:
                continue
            found[partition] = (low, high)
    finally:
        consumer.close()
    return found
