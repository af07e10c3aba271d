"""Real Kafka producers that write all the time, and note every acknowledgement in the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiokafka  # type: ignore[import-untyped]  # it brings no types
from confluent_kafka import KafkaException, Producer

from tests.agent.kafka.work import Work
from tests.crash.clients import IDENTITY, MESSAGE_TIMEOUT_SECONDS, QUICK, TIMEOUT_SECONDS, start_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import KafkaError, Message

    from tests.crash.clients import Workload
    from tests.crash.ledger import Ledger, SentRecord

KEYS: Final = 24
_TOMBSTONES: Final = 0.1
_MAX_PENDING: Final = 60
"""Records without an acknowledgement, so that a quiet point follows an outage soon."""

_PRODUCER: Final[dict[str, Any]] = {
    **QUICK,
    "linger.ms": 2,
    "batch.num.messages": 20,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "request.timeout.ms": 5_000,
    "message.timeout.ms": int(MESSAGE_TIMEOUT_SECONDS * 1000),
}


class ClientProducer(Protocol):
    """A producer that sends until it is finished; it may be paused."""

    name: str

    def check(self) -> None:
        """Raise the exception that ended the producer, if one did."""

    def pause(self) -> None:
        """Send nothing until `resume`."""

    def wait_until_idle(self) -> None:
        """Wait, after `pause`, until each record is acknowledged or has failed."""

    def resume(self) -> None:
        """Send again."""

    def finish(self) -> None:
        """Stop after all records are acknowledged or have failed."""

    def abandon(self) -> None:
        """Stop soon, without the remaining records, because the test has failed."""


@dataclass
class Sender:
    """The records of one producer, and the state that its thread shares with the campaign."""

    name: str
    ledger: Ledger
    workload: Workload
    paused: threading.Event = field(default_factory=threading.Event)
    idle: threading.Event = field(default_factory=threading.Event)
    ending: threading.Event = field(default_factory=threading.Event)
    abandoned: threading.Event = field(default_factory=threading.Event)
    _work: Work = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.workload.seed}/{self.name}")

    def next(self, name: str) -> SentRecord:
        topic = self._random.choice(self.workload.topics)
        deletes = topic in self.workload.compacted and self._random.random() < _TOMBSTONES
        return self.ledger.send(
            name,
            topic,
            self._random.randrange(self.workload.partitions),
            b"key %d" % self._random.randrange(KEYS),
            is_tombstone=deletes,
        )

    def check(self) -> None:
        self._work.check()
        assert self._work.is_running or self.ending.is_set(), f"{self._work.name} has ended"

    def pause(self) -> None:
        self.idle.clear()
        self.paused.set()

    def wait_until_idle(self) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not self.idle.wait(0.2):
            self.check()
            assert time.monotonic() < end, f"records of {self.name} did not arrive in {TIMEOUT_SECONDS} s"

    def resume(self) -> None:
        self.paused.clear()

    def finish(self) -> None:
        """Stop after all records are acknowledged or have failed."""
        self.ending.set()
        self._work.finish()

    def abandon(self) -> None:
        """Stop soon, without the remaining records, because the test has failed."""
        self.abandoned.set()
        self.ending.set()


def value_of(sent: SentRecord) -> bytes | None:
    """Return the value of a record."""
    return None if sent.is_tombstone else sent.identity + b"." * 40


class ConfluentProducer(Sender):
    """A producer of librdkafka. It begins again under another name after a fatal error."""

    def __init__(self, name: str, ledger: Ledger, workload: Workload, *, is_idempotent: bool) -> None:
        super().__init__(name, ledger, workload)
        self._is_idempotent = is_idempotent
        self._incarnation = 0
        self._begin()
        self._work = Work(self._send_all, f"producer {name}")

    def _begin(self) -> None:
        self._incarnation += 1
        self._fatal: KafkaError | None = None
        self._full_name = f"{self.name}{self._incarnation}"
        self.ledger.add_producer(self._full_name, is_idempotent=self._is_idempotent)
        self._producer = Producer(
            {
                "bootstrap.servers": self.workload.bootstrap,
                "enable.idempotence": self._is_idempotent,
                "acks": "all",
                "error_cb": self._note_error,
                **_PRODUCER,
            }
        )

    def _send_all(self) -> None:
        while not self.ending.is_set():
            if self.paused.is_set():
                self._flush()
                self.idle.set()
                time.sleep(0.01)
            else:
                if len(self._producer) < _MAX_PENDING:
                    self._send()
                self._poll_for(1 / self.workload.rate)
        self._flush()

    def _poll_for(self, seconds: float) -> None:
        """Handle the events of this time; librdkafka's poll returns after the first."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with self._fatal_errors_noted():
                self._producer.poll(left)

    def _flush(self) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        left = 1
        while left:
            with self._fatal_errors_noted():
                left = self._producer.flush(0.5)
            self._replace_failed()
            if self.abandoned.is_set():
                self._producer.purge()
                return
            if time.monotonic() > end:
                self.ledger.report(f"{self._full_name}: records did not arrive in {TIMEOUT_SECONDS} s")
                return

    @contextlib.contextmanager
    def _fatal_errors_noted(self) -> Iterator[None]:
        """Treat a fatal error that a call raises like one that is reported."""
        try:
            yield
        except KafkaException as failure:
            if not failure.args[0].fatal():
                raise
            self._fatal = failure.args[0]

    def _note_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error

    def _replace_failed(self) -> None:
        """Begin again after a fatal error; librdkafka keeps the records in its queues until a purge."""
        if self._fatal is None:
            return
        self.ledger.report(f"{self._full_name} failed: {self._fatal}")
        self._producer.purge()
        with self._fatal_errors_noted():
            self._producer.flush(1)
        self._begin()

    def _send(self) -> None:
        sent = self.next(self._full_name)

        def delivered(error: Any, message: Message) -> None:  # noqa: ANN401  # a class without a public name
            if error is None:
                offset = message.offset()
                # The offset is -1 for a duplicate whose original offsets the log does not know any more.
                if offset is not None and offset >= 0:
                    self.ledger.acknowledge(sent, offset)
            elif error.name() not in {"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_FATAL"}:
                self.ledger.report(f"{sent} was refused: {error}")

        with contextlib.suppress(KafkaException):  # after a fatal error
            self._producer.produce(
                sent.topic,
                value=value_of(sent),
                key=sent.key,
                partition=sent.partition,
                headers=[(IDENTITY, sent.identity)],
                on_delivery=delivered,
            )
        self._replace_failed()


class AioProducer(Sender):
    """An idempotent producer of aiokafka.

    aiokafka drops a batch whose partition had no leader for `request_timeout_ms`, and leaves a gap in its
    sequence numbers. It takes no record for a partition that waits as long. The producer then begins again
    under another name; these records are not lost, because they were never acknowledged.
    """

    def __init__(self, name: str, ledger: Ledger, workload: Workload) -> None:
        super().__init__(name, ledger, workload)
        self._pending: set[asyncio.Future[Any]] = set()
        self._has_failed = False
        self._work = Work(lambda: asyncio.run(self._send_all()), f"producer {name}")

    async def _send_all(self) -> None:
        incarnation = 0
        while not self.ending.is_set():
            incarnation += 1
            full_name = f"{self.name}{incarnation}"
            self.ledger.add_producer(full_name, is_idempotent=True)
            self._has_failed = False
            await self._send_until_failure(full_name)

    async def _send_until_failure(self, full_name: str) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.workload.bootstrap.split(","),
            enable_idempotence=True,
            linger_ms=2,
            request_timeout_ms=60_000,
            retry_backoff_ms=50,
            metadata_max_age_ms=1_000,
        )
        await start_client(producer)
        try:
            while not (self.ending.is_set() or self._has_failed):
                if self.paused.is_set():
                    await self._flush()
                    self.idle.set()
                    await asyncio.sleep(0.01)
                else:
                    if len(self._pending) < _MAX_PENDING:
                        await self._send(producer, full_name)
                    await asyncio.sleep(1 / self.workload.rate)
            await self._flush()
        finally:
            await producer.stop()

    async def _flush(self) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while self._pending and not self.abandoned.is_set():
            _, late = await asyncio.wait(self._pending, timeout=0.5)
            if late and time.monotonic() > end:
                self.ledger.report(f"{self.name}: {len(late)} records did not arrive in {TIMEOUT_SECONDS} s")
                return

    async def _send(self, producer: Any, full_name: str) -> None:  # noqa: ANN401  # it has no types
        sent = self.next(full_name)
        try:
            delivery = await producer.send(
                sent.topic,
                value=value_of(sent),
                key=sent.key,
                partition=sent.partition,
                headers=[(IDENTITY, sent.identity)],
            )
        except aiokafka.errors.KafkaTimeoutError:
            self._has_failed = True
            self.ledger.refuse(sent)
            return
        self._pending.add(delivery)

        def delivered(done: asyncio.Future[Any]) -> None:
            self._pending.discard(done)
            if done.exception() is not None:
                self._has_failed = True
                self.ledger.refuse(sent)
            elif done.result().offset >= 0:
                self.ledger.acknowledge(sent, done.result().offset)

        delivery.add_done_callback(delivered)
