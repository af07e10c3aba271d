"""Offsets of partitions with `storage.mode=local`, requested from their leaders by the Kafka protocol.

The catalog knows the leaders and the live agents, but not the offsets of local topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # public in its documentation

from agent.settings import AgentSettings
from siltstone.kafka_client.connection import connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from catalog.model import Broker, Topic
    from catalog.open import Catalog

_REQUEST_SECONDS = 5.0
_SPECS = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]  # its types are partial


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOffsets:
    """Offsets of one partition; `leader` is a node id, None if the partition has no leader.

    Offsets are None if the leader does not respond. Records are visible as soon as they are acknowledged, so
    `log_end_offset` is also the high watermark.
    """

    partition: int
    leader: int | None
    log_start_offset: int | None = None
    log_end_offset: int | None = None


def fetch_local_offsets(
    catalog: Catalog, topic: Topic, properties: Mapping[str, str] | None = None
) -> list[LocalOffsets]:
    """Return the offsets of all partitions of a topic with `storage.mode=local`, in order.

    `properties` are those of librdkafka, such as credentials.
    """
    leaders = {
        partition: leader.node_id
        for partition, leader in catalog.local_leaders.of_topic(topic.topic_id).items()
    }
    brokers = catalog.brokers.live(AgentSettings().broker_silent_ms)
    live_nodes = {broker.node_id for broker in brokers}
    led_partitions = [partition for partition, node in sorted(leaders.items()) if node in live_nodes]
    found = _list_offsets(topic.name, led_partitions, brokers, properties or {})
    return [
        LocalOffsets(
            partition=partition,
            leader=leaders.get(partition),
            log_start_offset=found[partition][0] if partition in found else None,
            log_end_offset=found[partition][1] if partition in found else None,
        )
        for partition in range(topic.partition_count)
    ]


def _list_offsets(
    topic: str, partitions: Sequence[int], brokers: Sequence[Broker], properties: Mapping[str, str]
) -> dict[int, tuple[int, int]]:
    """Return the log start and log end offset by partition; partitions without a timely response are absent.

    All leaders are requested concurrently, so that several unresponsive ones take no longer than one.
    """
    if not partitions:
        return {}
    client = connect(
        AdminClient,
        {**properties, "bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers)},
    )
    requested = [TopicPartition(topic, partition) for partition in partitions]
    earliest, latest = (
        client.list_offsets(dict.fromkeys(requested, spec), request_timeout=_REQUEST_SECONDS)
        for spec in _SPECS
    )
    found = {}
    for each in requested:
        try:
            found[each.partition] = (earliest[each].result().offset, latest[each].result().offset)
        except KafkaException:
            continue
    return found
