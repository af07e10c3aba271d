"""Runs transactions of librdkafka, records them, and begins again after a fatal error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.crash.clients import QUICK, TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Consumer, Message, TopicPartition

    from tests.exactly_once.checker.history import Record
    from tests.exactly_once.recorder import Recorder

TRANSACTION_TIMEOUT_MS: Final = 10_000
_CALL_SECONDS: Final = 5.0


class TransactionalClient:
    """A producer with a transactional id; only one exists at a time.

    After a fatal error another producer takes the id, under another process name: nothing orders its records
    among those that the first one had sent.
    """

    def __init__(self, transactional_id: str, bootstrap: str, recorder: Recorder) -> None:
        self._settings: dict[str, Any] = {
            **QUICK,
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 2,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 200,
        }
        self._recorder = recorder
        self._producers = 0
        self._transactions = 0
        self._producer: Producer | None = None

    def _initialized(self) -> Producer:
        """Return a producer that may begin a transaction."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while self._producer is None:
            self._producers += 1
            try:
                self._producer = _initialized(Producer(self._settings))
            except KafkaException:
                if time.monotonic() > end:
                    raise
        return self._producer

    def run(
        self,
        records: Sequence[tuple[str, int]],
        *,
        commits: bool = True,
        reads: Sequence[Record] = (),
        group: str | None = None,
        offsets: Sequence[TopicPartition] = (),
        consumer: Consumer | None = None,
    ) -> bool:
        """Send a record to each of these partitions in a transaction; return True if it has committed.

        With a consumer, the transaction commits these offsets of its group, too.
        """
        producer = self._initialized()
        self._transactions += 1
        name = f"{self._recorder.name}-{self._transactions}"
        process = f"{self._recorder.name}/{self._producers}"
        self._recorder.note("begin", process=process, transaction=name, group=group, reads=reads)
        try:
            producer.begin_transaction()
            self._send(producer, name, records)
            if consumer is not None:
                metadata = consumer.consumer_group_metadata()
                _repeat(lambda: producer.send_offsets_to_transaction(list(offsets), metadata, _CALL_SECONDS))
            if commits:
                self._recorder.note("commit", transaction=name)
                _repeat(lambda: producer.commit_transaction(_CALL_SECONDS))
                outcome = "committed"
            else:
                _repeat(lambda: producer.abort_transaction(_CALL_SECONDS))
                outcome = "aborted"
        except KafkaException as failure:
            outcome = self._abort_after(failure.args[0], producer)
        self._recorder.note("end", transaction=name, outcome=outcome)
        return outcome == "committed"

    def _send(self, producer: Producer, name: str, records: Sequence[tuple[str, int]]) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                value = (message.value() or b"").decode()
                self._recorder.note("sent", transaction=name, value=value, offset=message.offset())

        for number, (topic, partition) in enumerate(records):
            value = f"{name}.{number}"
            place = f"{topic}/{partition}"
            self._recorder.note("send", transaction=name, partition=place, value=value)
            producer.produce(topic, value.encode(), partition=partition, on_delivery=delivered)
            producer.poll(0)

    def _abort_after(self, error: KafkaError, producer: Producer) -> str:
        """Abort if the error allows it, or give the producer up; return what is known of the transaction."""
        if error.txn_requires_abort():
            try:
                _repeat(lambda: producer.abort_transaction(_CALL_SECONDS))
            except KafkaException:
                self._producer = None
                return "unknown"
            return "aborted"
        self._producer = None
        return "unknown"


def _initialized(producer: Producer) -> Producer:
    _repeat(lambda: producer.init_transactions(_CALL_SECONDS))
    return producer


def _repeat(call: Callable[[], None]) -> None:
    """Repeat a call of the transactional API while librdkafka says that it may succeed."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return call()
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > end:
                raise
