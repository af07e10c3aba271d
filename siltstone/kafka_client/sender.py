"""Sender of records with librdkafka that counts each as acknowledged, rejected or unconfirmed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from core.clock import SystemClock
from siltstone.kafka_client.connection import ClientErrors, Purpose, connect, to_siltstone_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import Message

    from siltstone.kafka_client.text_records import OutgoingRecord

Tag = TypeVar("Tag")
DEFAULTS = {
    # The default partitioner of Kafka's Java producer.
    "partitioner": "murmur2_random",
    # As in Kafka's Java producer: two minutes for a record, including retries.
    "message.timeout.ms": "120000",
    # The limit that matters is the topic's max.message.bytes, which the broker applies.
    "message.max.bytes": str(16 * 1024 * 1024),
    # A misspelt name is an error, and creates no topic.
    "allow.auto.create.topics": "false",
}
_POLL_SECONDS = 0.1
_PAUSE_SECONDS = 0.01
_NOTICE_SECONDS = 5.0
_REASON_SECONDS = 5.0
_SEND_TIME = 0  # librdkafka replaces timestamp 0 by the time of sending
_HINTS = {
    KafkaError.INVALID_RECORD: " (a compacted topic rejects a batch that has a record without a key)",
    KafkaError.MSG_SIZE_TOO_LARGE: " (the topic's max.message.bytes bounds a batch)",
    KafkaError._UNKNOWN_PARTITION: " (siltstone topics describe lists the topic's partitions)",  # noqa: SLF001 - its public name
}
# After these errors the record may or may not be in the log; after all others it is not.
_UNCONFIRMED = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - its public names for errors of the client's own
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001 - as above
        KafkaError._PURGE_QUEUE,  # noqa: SLF001 - as above
        KafkaError._TIMED_OUT,  # noqa: SLF001 - as above
        KafkaError._TRANSPORT,  # noqa: SLF001 - as above
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


@dataclass(slots=True)
class DeliveryCounts:
    """Number of records of one topic by outcome; `partitions` has the offset range of acknowledged ones."""

    topic: str
    accepted: int = 0
    rejected: int = 0
    unconfirmed: int = 0
    partitions: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(self, partition: int, offset: int) -> None:
        """Count an acknowledged record; with acks 0 its offset is unknown, and negative."""
        self.accepted += 1
        acknowledged = self.partitions.get(partition)
        if acknowledged is None:
            acknowledged = {"records": 0, "first_offset": offset, "last_offset": offset}
            self.partitions[partition] = acknowledged
        acknowledged["records"] += 1
        acknowledged["first_offset"] = min(acknowledged["first_offset"], offset)
        acknowledged["last_offset"] = max(acknowledged["last_offset"], offset)

    def report(self) -> dict[str, Any]:
        """Return the counts for `--json`."""
        return {
            "topic": self.topic,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "unconfirmed": self.unconfirmed,
            "partitions": {str(number): counts for number, counts in sorted(self.partitions.items())},
        }


class Sender(Generic[Tag]):
    """Producer for one topic.

    `on_failure` is called for each failed record with its tag, the reason, and True if the record is
    unconfirmed; `raise_if_unable` raises its error. `denial` is the last error of authorization that rejected
    a record. While the context is open, a thread receives delivery reports, also while the caller waits for
    input. Leaving the context drops undelivered records: call `finish` before.
    """

    def __init__(
        self,
        configuration: Mapping[str, Any],
        topic: str,
        on_failure: Callable[[Tag, str, bool], None],
    ) -> None:
        self.errors = ClientErrors()
        self.producer: Producer = connect(Producer, {**DEFAULTS, **configuration}, self.errors)
        self.counts = DeliveryCounts(topic)
        self.purpose = Purpose(topic, "Write", transactional_id=configuration.get("transactional.id", "ID"))
        self.denial: KafkaError | None = None
        self._on_failure = on_failure
        self._clock = SystemClock()
        self._failure: Exception | None = None
        self._ending = threading.Event()
        self._done = threading.Event()
        self._polling = threading.Thread(target=self._poll, name="delivery reports", daemon=True)

    def __enter__(self) -> Sender[Tag]:
        self._polling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._polling.join()

    def _poll(self) -> None:
        """Receive delivery reports until the context is left; no other thread does.

        The client raises a fatal error from this call, and not to its `error_cb`. It is noted before the
        reports of the records that it fails. `flush` sends what lingers for more records.
        """
        while not self._done.is_set():
            try:
                (self.producer.flush if self._ending.is_set() else self.producer.poll)(_POLL_SECONDS)
            except KafkaException as failure:
                self.errors.note(failure.args[0])
            except Exception as failure:  # noqa: BLE001 - of a callback; the caller waits for the other reports
                self._failure = self._failure or failure

    def _drain(self, seconds: float | None) -> int:
        """Wait until all delivery reports have arrived or time is up; return how many are missing."""
        deadline = None if seconds is None else self._clock.monotonic() + seconds
        while len(self.producer) and (deadline is None or self._clock.monotonic() < deadline):
            self._clock.sleep(_PAUSE_SECONDS)
        return len(self.producer)

    def send(self, tag: Tag, record: OutgoingRecord, partition: int | None = None) -> None:
        """Queue one record; waits while the client's queue is full."""
        chosen = record.partition if partition is None else partition
        delivered = partial(self._delivered, tag)
        while True:
            try:
                self.producer.produce(
                    self.counts.topic,
                    value=record.value,
                    key=record.key,
                    partition=-1 if chosen is None else chosen,
                    timestamp=_SEND_TIME if record.timestamp is None else record.timestamp,
                    headers=list(record.headers),
                    on_delivery=delivered,
                )
            except BufferError:
                self._clock.sleep(_PAUSE_SECONDS)
            except KafkaException as failure:
                self._failed(tag, self._reason_of(failure.args[0]))
                return
            else:
                return

    def _reason_of(self, error: KafkaError) -> KafkaError:
        """Return the error that was fatal, if `error` only says that there was one.

        The polling thread receives it soon.
        """
        if error.code() != KafkaError._FATAL:  # noqa: SLF001 - its public name
            return error
        deadline = self._clock.monotonic() + _REASON_SECONDS
        while self.errors.fatal is None and self._clock.monotonic() < deadline:
            self._clock.sleep(_PAUSE_SECONDS)
        return self.errors.fatal or error

    def _delivered(self, tag: Tag, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset, partition = message.offset(), message.partition()
            self.counts.add(-1 if partition is None else partition, -1 if offset is None else offset)
        else:
            self._failed(tag, error)

    def _failed(self, tag: Tag, error: KafkaError) -> None:
        is_unconfirmed = error.code() in _UNCONFIRMED
        if is_unconfirmed:
            self.counts.unconfirmed += 1
        else:
            self.counts.rejected += 1
            if self.purpose.missing_right(error.code()):
                self.denial = error
        self._on_failure(tag, f"{error.name()}: {error.str()}{_HINTS.get(error.code(), '')}", is_unconfirmed)

    def finish(self, seconds: float | None = None, waiting: Callable[[int], None] | None = None) -> None:
        """Wait for the outcome of every record; after `seconds`, records without one are unconfirmed.

        Without `seconds`, the client's `message.timeout.ms` is the limit. The client reports nothing while it
        retries, so `waiting` is called once, after a few seconds, with the number of outstanding records.
        """
        self._ending.set()
        if seconds is None and waiting is not None:
            left = self._drain(_NOTICE_SECONDS)
            if left:
                waiting(left)
        if self._drain(seconds):
            self.producer.purge()
            self._drain(None)
        self._ending.clear()

    def raise_if_unable(self) -> None:
        """Raise what ended delivery: a fatal error of the client, or an error of `on_failure`."""
        if self._failure is not None:
            raise self._failure
        if self.errors.fatal is not None:
            raise to_siltstone_error(self.errors.fatal, self.purpose)
