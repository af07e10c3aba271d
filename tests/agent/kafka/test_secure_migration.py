"""From an open installation to TLS with client certificates, while a producer and a consumer stay connected.

These are the steps of `docs/how-to/secure.md`, on two agents that restart one after the other.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

from agent.listeners import ClientAuth, KafkaListener, SecurityProtocol, TlsSettings
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.fixtures.certificates import Authority
from tests.fixtures.ports import lasting_ports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.agent.kafka.brokers import BrokerThread

pytestmark = [pytest.mark.integration]


class _Traffic:
    """A producer and a member of a group, each in a thread, which continue until they are stopped."""

    def __init__(self, options: dict[str, Any], numbers: count[int], sent: set[int], seen: list[int]) -> None:
        self._stopped = threading.Event()
        self._options = options
        self._numbers = numbers
        self.sent, self.seen = sent, seen
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._consume)]
        for each in self._threads:
            each.start()

    def _produce(self) -> None:
        producer = Producer({**self._options, "linger.ms": 1, "retry.backoff.ms": 20})
        while not self._stopped.wait(0.01):
            number = next(self._numbers)
            producer.produce("granite", value=str(number).encode(), on_delivery=self._delivered)
            producer.poll(0)
        assert producer.flush(120) == 0

    def _delivered(self, error: object, message: Any) -> None:  # noqa: ANN401 - of confluent_kafka
        if error is None:
            self.sent.add(int(message.value()))
        else:
            self.failures.append(str(error))

    def _consume(self) -> None:
        consumer = Consumer({**self._options, "group.id": "masons", "auto.offset.reset": "earliest"})
        consumer.subscribe(["granite"])
        while not self._stopped.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.seen.append(int(message.value() or b""))
        consumer.close()

    def continues(self) -> None:
        """Wait until records that are sent from now on have been consumed."""
        first = next(self._numbers)
        until(lambda: any(number > first for number in self.seen))

    def stop(self) -> None:
        self._stopped.set()
        for each in self._threads:
            each.join()


def test_clients_stay_connected_from_an_open_listener_to_mutual_tls(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    issued, mason = authority.issue("server", "127.0.0.1"), authority.issue("mason")
    tls = TlsSettings(
        certificate=issued.certificate,
        key=issued.key,
        client_ca=authority.file,
        client_auth=ClientAuth.REQUIRED,
    )
    ports = lasting_ports(4)
    plain = [KafkaListener(port=port) for port in ports[:2]]
    secure = [
        KafkaListener(name="SSL", port=port, protocol=SecurityProtocol.SSL, tls=tls) for port in ports[2:]
    ]

    def start(*listeners: KafkaListener) -> BrokerThread:
        return start_broker(kafka_listeners=listeners, groups=QUICK_GROUPS)

    def servers(listeners: list[KafkaListener]) -> str:
        return ",".join(f"127.0.0.1:{each.port}" for each in listeners)

    agents = [start(each) for each in plain]
    agents[0].create_topic("granite", partitions=4)
    numbers, sent, seen = count(), set[int](), list[int]()
    opened = {"bootstrap.servers": servers(plain)}
    traffic = _Traffic(opened, numbers, sent, seen)
    try:
        traffic.continues()
        for at in range(2):
            agents[at].stop()
            agents[at] = start(plain[at], secure[at])
            traffic.continues()
        with_tls = {
            "bootstrap.servers": servers(secure),
            "security.protocol": "ssl",
            "ssl.ca.location": str(authority.file),
            "ssl.certificate.location": str(mason.certificate),
            "ssl.key.location": str(mason.key),
        }
        moved = _Traffic(with_tls, numbers, sent, seen)
        try:
            moved.continues()
            traffic.stop()
            moved.continues()
            for at in range(2):
                agents[at].stop()
                agents[at] = start(secure[at])
                moved.continues()
        finally:
            moved.stop()
        assert moved.failures == []
    finally:
        traffic.stop()
    assert traffic.failures == []
    remaining = _Traffic(with_tls, numbers, sent, seen)
    until(lambda: sent <= set(seen))
    remaining.stop()
