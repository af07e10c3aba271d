"""Driver for confluent-kafka (librdkafka)."""

from __future__ import annotations

import sys
import threading
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from core.clock import SystemClock
from tests.agent.kafka.work import Work
from tests.real_clients.drivers.request_loop import serve
from tests.real_clients.drivers.security import Security

_TIMEOUT_SECONDS = 120
_TOKEN_SECONDS = 300
_security: dict[str, Any] = {}


def secure(**given: str) -> None:
    """Set how the clients of further requests connect."""
    security = Security(**given)
    _security.clear()
    _security.update(security.librdkafka())
    if security.token:
        expires = SystemClock().now_ms() / 1000 + _TOKEN_SECONDS
        _security["oauth_cb"] = lambda _: (security.token, expires)


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
    producer = Producer({"bootstrap.servers": bootstrap, **settings, **_security})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, value, 0, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(_TIMEOUT_SECONDS) == 0
    assert not any(failures), failures


def _consumer(bootstrap: str, group: str, session: int = 10_000) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": session,
            "heartbeat.interval.ms": 200,
            **_security,
        }
    )


def _is_record(message: Message) -> bool:
    """Return True if the message is a record. librdkafka recovers from errors that are not fatal."""
    error = message.error()
    if error is None:
        return True
    if error.fatal():
        raise KafkaException(error)
    sys.stderr.write(f"{error}\n")
    return False


def bounds(*, bootstrap: str, topic: str, timestamp: int) -> list[int]:
    consumer = _consumer(bootstrap, "unused")
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), _TIMEOUT_SECONDS)
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], _TIMEOUT_SECONDS)
    consumer.close()
    return [low, high, found.offset]


def read(*, bootstrap: str, topic: str, offset: int, count: int, group: str) -> list[tuple[int, str]]:
    consumer = _consumer(bootstrap, group)
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[tuple[int, str]] = []
    while len(found) < count:
        records = filter(_is_record, consumer.consume(count - len(found), 1))
        found += [(record.offset() or 0, (record.value() or b"").decode()) for record in records]
    consumer.close()
    return found


class Member:
    """A member that polls and commits in a thread."""

    def __init__(self, bootstrap: str, topic: str, group: str, session: int) -> None:
        self.records: list[tuple[int, int, str]] = []
        self.assigned = 0
        self.leaving = threading.Event()
        self._consumer = _consumer(bootstrap, group, session)
        self._consumer.subscribe([topic])
        self.work = Work(self._work)

    def _work(self) -> None:
        while not self.leaving.is_set():
            message = self._consumer.poll(0.1)
            self.assigned = len(self._consumer.assignment())
            if message is not None and _is_record(message):
                position = (message.partition() or 0, message.offset() or 0)
                self.records.append((*position, (message.value() or b"").decode()))
                self._commit(message)
        self._consumer.close()

    def _commit(self, message: Message) -> None:
        """Commit the record. If a rebalance prevents this, a member reads it again."""
        try:
            self._consumer.commit(message=message, asynchronous=False)
        except KafkaException as failure:
            if failure.args[0].fatal():
                raise
            sys.stderr.write(f"{failure}\n")


_members: list[Member] = []


def join(*, bootstrap: str, topic: str, group: str, session: int) -> None:
    _members.append(Member(bootstrap, topic, group, session))


def seen(*, topic: str) -> dict[str, Any]:
    del topic
    _members[0].work.check()
    return {"assigned": _members[0].assigned, "records": list(_members[0].records)}


def leave() -> None:
    _members[0].leaving.set()
    _members[0].work.finish()


def _only(futures: dict[Any, Any]) -> Any:  # noqa: ANN401  # the result of any call
    (future,) = futures.values()
    return future.result(_TIMEOUT_SECONDS)


def administer(*, bootstrap: str, topic: str) -> dict[str, Any]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    _only(admin.create_topics([NewTopic(topic, 2, 1, config={"cleanup.policy": "compact"})]))
    _only(admin.create_partitions([NewPartitions(topic, 3)]))
    change = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    _only(admin.incremental_alter_configs([resource]))
    config = _only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    found = admin.list_topics(timeout=_TIMEOUT_SECONDS).topics
    _only(admin.delete_topics([topic]))
    return {
        "partitions": len(found[topic].partitions),
        "retention": config["retention.ms"].value,
        "listed": topic in found,
    }


if __name__ == "__main__":
    serve(
        {
            each.__name__: each
            for each in (traits, secure, produce, bounds, read, join, seen, leave, administer)
        }
    )
