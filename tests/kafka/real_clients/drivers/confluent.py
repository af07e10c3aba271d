"""confluent-kafka (librdkafka) as a driver."""

from __future__ import annotations

import sys
import threading
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.kafka.real_clients.drivers.loop import serve

_PATIENCE = 120


def traits() -> dict[str, Any]:
    return {
        "codecs": ["none", "gzip", "snappy", "lz4", "zstd"],
        "acks": [0, 1, -1],
        "idempotent": True,
    }


def produce(
    *, bootstrap: str, topic: str, values: list[str], codec: str, acks: int, idempotent: bool
) -> None:
    settings = {"compression.type": codec, "acks": acks, "enable.idempotence": idempotent}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, value, 0, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(_PATIENCE) == 0
    assert not any(failures), failures


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 2000,
            "heartbeat.interval.ms": 200,
        }
    )


def bounds(*, bootstrap: str, topic: str, timestamp: int) -> list[int]:
    consumer = _consumer(bootstrap, "unused")
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), _PATIENCE)
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], _PATIENCE)
    consumer.close()
    return [low, high, found.offset]


def read(*, bootstrap: str, topic: str, offset: int, count: int, group: str) -> list[tuple[int, str]]:
    consumer = _consumer(bootstrap, group)
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[tuple[int, str]] = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), 1):
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append((message.offset() or 0, (message.value() or b"").decode()))
    consumer.close()
    return found


class Member:
    """Polls in a thread and commits what it polled."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.records: list[tuple[int, int, str]] = []
        self.assigned = 0
        self.leaving = threading.Event()
        self._consumer = _consumer(bootstrap, group)
        self._consumer.subscribe([topic])
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        while not self.leaving.is_set():
            message = self._consumer.poll(0.1)
            self.assigned = len(self._consumer.assignment())
            if message is not None and message.error() is None:
                place = (message.partition() or 0, message.offset() or 0)
                self.records.append((*place, (message.value() or b"").decode()))
                try:
                    self._consumer.commit(message=message, asynchronous=False)
                except KafkaException as failure:  # a rebalance came between: it is read again
                    sys.stderr.write(f"{failure}\n")
        self._consumer.close()


_members: list[Member] = []


def join(*, bootstrap: str, topic: str, group: str) -> None:
    _members.append(Member(bootstrap, topic, group))


def seen(*, topic: str) -> dict[str, Any]:
    del topic
    return {"assigned": _members[0].assigned, "records": list(_members[0].records)}


def leave() -> None:
    _members[0].leaving.set()
    _members[0].thread.join()


def _only(futures: dict[Any, Any]) -> Any:  # noqa: ANN401  # what the one call gives
    (future,) = futures.values()
    return future.result(_PATIENCE)


def administer(*, bootstrap: str, topic: str) -> dict[str, Any]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    _only(admin.create_topics([NewTopic(topic, 2, 1, config={"cleanup.policy": "compact"})]))
    _only(admin.create_partitions([NewPartitions(topic, 3)]))
    change = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    _only(admin.incremental_alter_configs([resource]))
    config = _only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    found = admin.list_topics(timeout=_PATIENCE).topics
    _only(admin.delete_topics([topic]))
    return {
        "partitions": len(found[topic].partitions),
        "retention": config["retention.ms"].value,
        "listed": topic in found,
    }


if __name__ == "__main__":
    serve({each.__name__: each for each in (traits, produce, bounds, read, join, seen, leave, administer)})
