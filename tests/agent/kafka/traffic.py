"""A producer and a consumer that stay connected while a test changes the agents."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer

from tests.agent.kafka.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class Ledger:
    """The numbers that clients have sent and read."""

    numbers: count[int] = field(default_factory=count)
    sent: set[int] = field(default_factory=set)
    seen: list[int] = field(default_factory=list)

    def is_read(self) -> bool:
        """Return True if all acknowledged numbers were read."""
        return self.sent <= set(self.seen)


class Traffic:
    """A producer and a member of a group, each in a thread, which continue until they are stopped."""

    def __init__(
        self,
        producing: Mapping[str, Any],
        consuming: Mapping[str, Any],
        topic: str,
        ledger: Ledger,
        *,
        group: str = "masons",
    ) -> None:
        """Take the settings of both clients."""
        self._stopped = threading.Event()
        self._producing = {**producing, "linger.ms": 1, "retry.backoff.ms": 20}
        self._consuming = {**consuming, "group.id": group, "auto.offset.reset": "earliest"}
        self._topic = topic
        self._ledger = ledger
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._consume)]
        for each in self._threads:
            each.start()

    def _produce(self) -> None:
        producer = Producer(self._producing)
        while not self._stopped.wait(0.01):
            number = next(self._ledger.numbers)
            producer.produce(self._topic, value=str(number).encode(), on_delivery=self._delivered)
            producer.poll(0)
        assert producer.flush(120) == 0

    def _delivered(self, error: object, message: Any) -> None:  # noqa: ANN401 - of confluent_kafka
        if error is None:
            self._ledger.sent.add(int(message.value()))
        else:
            self.failures.append(str(error))

    def _consume(self) -> None:
        consumer = Consumer(self._consuming)
        consumer.subscribe([self._topic])
        while not self._stopped.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._ledger.seen.append(int(message.value() or b""))
        consumer.close()

    def continues(self) -> None:
        """Wait until records that are sent from now on have been consumed."""
        first = next(self._ledger.numbers)
        until(lambda: any(number > first for number in self._ledger.seen))

    def stop(self) -> None:
        """End both clients, once what was sent is acknowledged."""
        self._stopped.set()
        for each in self._threads:
            each.join()
