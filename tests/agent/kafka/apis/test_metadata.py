from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from tests.agent.kafka.brokers import BrokerThread


def test_librdkafka_sees_brokers_and_topics(broker: BrokerThread) -> None:
    broker.create_topic("granite", 3)
    admin = AdminClient({"bootstrap.servers": broker.address})
    seen = admin.list_topics(timeout=120)
    assert sorted(seen.topics["granite"].partitions) == [0, 1, 2]
    assert len(seen.brokers) == 1
