"""A real transactional producer that commits or aborts all the time, and notes the outcomes in the ledger."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, Producer
from typing_extensions import override

from tests.agent.kafka.work import Work
from tests.crash.clients import IDENTITY, QUICK, TIMEOUT_SECONDS
from tests.crash.producers import Sender, value_of

if TYPE_CHECKING:
    from tests.crash.clients import Workload
    from tests.crash.ledger import Ledger, SentRecord

_RECORDS: Final = 5
_ABORTS: Final = 0.25
_CALL_SECONDS: Final = 10.0
_PRODUCER: Final[dict[str, Any]] = {
    **QUICK,
    "linger.ms": 2,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "request.timeout.ms": 5_000,
    "message.timeout.ms": 20_000,
    "transaction.timeout.ms": 30_000,
}


class TransactionalProducer(Sender):
    """A producer of librdkafka that runs one transaction after another, under one transactional id.

    After an error it aborts. If it cannot, it begins again, which aborts its transaction, too. It knows the
    outcome of a transaction unless it began again after a request to commit. It is idle after a commit only,
    so that each check has one to look for.
    """

    def __init__(self, name: str, ledger: Ledger, workload: Workload) -> None:
        super().__init__(name, ledger, workload)
        ledger.add_producer(name, is_idempotent=True)
        self._producer: Producer | None = None
        self._beginning: Producer | None = None
        self._replaced: list[Producer] = []
        self._has_committed = False
        self._work = Work(self._send_all, f"producer {name}")

    @override
    def resume(self) -> None:
        """Send again."""
        self._has_committed = False
        super().resume()

    def _send_all(self) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not (self.ending.is_set() and self._producer is not None) and not self.abandoned.is_set():
            if self._producer is None:
                if time.monotonic() > end:
                    self.ledger.report(f"{self.name} did not begin in {TIMEOUT_SECONDS} s")
                    return
                self._begin()
            elif self.paused.is_set() and self._has_committed:
                self.idle.set()
                time.sleep(0.01)
            else:
                self._transact(self._producer)
                end = time.monotonic() + TIMEOUT_SECONDS

    def _begin(self) -> None:
        """Begin again; the transaction before is aborted."""
        if self._beginning is None:
            self._beginning = Producer(
                {"bootstrap.servers": self.workload.bootstrap, "transactional.id": self.name, **_PRODUCER}
            )
        try:
            self._beginning.init_transactions(_CALL_SECONDS)
        except KafkaException as failure:
            if not failure.args[0].retriable():
                self._replace(self._beginning)
                self._beginning = None
            time.sleep(0.2)
        else:
            self._producer, self._beginning = self._beginning, None

    def _replace(self, producer: Producer) -> None:
        """Drop what the producer has to send, and keep it until the campaign ends.

        In one campaign, a thread of librdkafka 2.16.0 corrupted the memory of this process. Only these
        producers were destroyed after failed transactions.
        """
        producer.purge()
        self._replaced.append(producer)

    def _transact(self, producer: Producer) -> None:
        transaction = self.ledger.begin_transaction()
        try:
            producer.begin_transaction()
            for _ in range(_RECORDS):
                sent = self.next(self.name)
                transaction.records.append(sent)
                self._send(producer, sent)
                producer.poll(1 / self.workload.rate)
            if self._random.random() < _ABORTS:
                producer.abort_transaction(_CALL_SECONDS)
                return
            transaction.commits = None
            self._commit(producer)
            transaction.commits = self._has_committed = True
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort() and self._aborts(producer):
                transaction.commits = False
            else:
                self._replace(producer)
                self._producer = None

    @staticmethod
    def _send(producer: Producer, sent: SentRecord) -> None:
        producer.produce(
            sent.topic,
            value=value_of(sent),
            key=sent.key,
            partition=sent.partition,
            headers=[(IDENTITY, sent.identity)],
        )

    def _commit(self, producer: Producer) -> None:
        while True:
            try:
                producer.commit_transaction(_CALL_SECONDS)
            except KafkaException as failure:
                if not failure.args[0].retriable() or self.abandoned.is_set():
                    raise
            else:
                return

    def _aborts(self, producer: Producer) -> bool:
        """Return True if the transaction was aborted."""
        while not self.abandoned.is_set():
            try:
                producer.abort_transaction(_CALL_SECONDS)
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    return False
            else:
                return True
        return False
