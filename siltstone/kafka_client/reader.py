"""Reader of a topic with librdkafka, alone or as a member of a consumer group."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from core.errors import InvalidInputError, NotFoundError
from siltstone.kafka_client.connection import (
    ClientErrors,
    Purpose,
    connect,
    fetch_partitions,
    to_siltstone_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import Message

    from core.clock import Clock

_BATCH_RECORDS = 1_000
_POLL_SECONDS = 0.1
_REQUEST_SECONDS = 30.0
# Special timestamps of ListOffsets.
_LATEST = -1
_EARLIEST = -2
DEFAULTS = {
    "enable.partition.eof": "true",
    # Only members of groups commit. They commit stored offsets periodically, when they lose a partition, and
    # when they leave. An offset is stored after the caller has processed its record, never before.
    "enable.auto.offset.store": "false",
    # If the next records were deleted, report it instead of silently continuing elsewhere.
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": "500",
}


class StartPosition(NamedTuple):
    """Position: `earliest`, `latest`, `offset`, `last` (`value` records before the end), `timestamp`."""

    kind: str
    value: int = 0


class Reader:
    """Consumer of one topic: call `start_at` or `join`, iterate over `batches`, then call `close`."""

    def __init__(self, configuration: Mapping[str, Any], topic: str, clock: Clock) -> None:
        if configuration.get("group.id") == "":  # confluent-kafka would abort the process
            raise InvalidInputError(
                "the name of the consumer group is empty",
                remedy="name one with --group or with the property group.id, or give neither",
            )
        self._topic = topic
        self._purpose = Purpose(topic, "Read", group=configuration.get("group.id", "GROUP"))
        self._clock = clock
        self._errors = ClientErrors()
        self._consumer = connect(Consumer, {**DEFAULTS, **configuration}, self._errors)
        self._log_end_offsets: dict[int, int] = {}
        self._at_end: set[int] = set()
        self._is_member = False
        self._is_assigned = False
        self.next_offsets: dict[int, int] = {}
        self.count = 0

    def start_at(self, partition: int | None, start: StartPosition) -> None:
        """Read one partition, or all of them, without a group."""
        known = self._partitions()
        if partition is not None and partition not in known:
            raise NotFoundError(
                f"topic {self._topic!r} has no partition {partition}",
                remedy=f"see: siltstone topics describe {self._topic}",
            )
        chosen = known if partition is None else [partition]
        log_start_offsets, self._log_end_offsets = (
            self._offsets(chosen, _EARLIEST),
            self._offsets(chosen, _LATEST),
        )
        self.next_offsets = self._first_offsets(start, log_start_offsets)
        self._at_end = {each for each in chosen if self.next_offsets[each] >= self._log_end_offsets[each]}
        self._consumer.assign([TopicPartition(self._topic, each, self.next_offsets[each]) for each in chosen])
        self._is_assigned = True

    def join(self) -> None:
        """Read the partitions that a consumer group assigns, from its committed offsets."""
        self._partitions()
        self._is_member = True
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)

    def _partitions(self) -> list[int]:
        return fetch_partitions(self._consumer, self._purpose, self._errors, self._clock)

    def _offsets(self, partitions: list[int], time: int) -> dict[int, int]:
        """Return offsets by timestamp (milliseconds, or a special one); -1 if no record is that late."""
        asked = [TopicPartition(self._topic, each, time) for each in partitions]
        try:
            found = self._consumer.offsets_for_times(asked, timeout=_REQUEST_SECONDS)
        except KafkaException as failure:
            raise to_siltstone_error(failure, self._purpose) from failure
        for each in found:
            if each.error is not None:
                raise to_siltstone_error(each.error, self._purpose)
        return {each.partition: each.offset for each in found}

    def _first_offsets(self, start: StartPosition, log_start_offsets: dict[int, int]) -> dict[int, int]:
        match start.kind:
            case "earliest":
                return log_start_offsets
            case "latest":
                return dict(self._log_end_offsets)
            case "last":
                return {
                    each: max(log_start_offsets[each], self._log_end_offsets[each] - start.value)
                    for each in log_start_offsets
                }
            case "timestamp":
                found = self._offsets(list(log_start_offsets), start.value)
                return {each: self._log_end_offsets[each] if at < 0 else at for each, at in found.items()}
            case _:
                for each, first in log_start_offsets.items():
                    if not first <= start.value <= self._log_end_offsets[each]:
                        raise InvalidInputError(
                            f"offset {start.value} is outside of {self._topic}-{each}, "
                            f"which has {first} to {self._log_end_offsets[each]}",
                            remedy="start at one of these, at earliest or at latest",
                        )
                return dict.fromkeys(log_start_offsets, start.value)

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_assigned = True
        self._at_end -= {each.partition for each in partitions}

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._at_end -= {each.partition for each in partitions}

    @property
    def is_at_end(self) -> bool:
        """Return True if every partition was read to its end.

        Without a group, the end is that of the start; in a group, the one that the client last saw.
        """
        mine = (
            {each.partition for each in self._consumer.assignment()}
            if self._is_member
            else set(self._log_end_offsets)
        )
        return self._is_assigned and mine <= self._at_end

    def batches(self, *, follow: bool, max_records: int | None) -> Iterator[list[Message]]:
        """Yield records as they arrive, at most `max_records`; without `follow`, stop at the end.

        The caller passes each batch to `mark_consumed` before it requests the next one.
        """
        waiting: deque[Message] = deque()
        while max_records is None or self.count < max_records:
            left = _BATCH_RECORDS if max_records is None else min(_BATCH_RECORDS, max_records - self.count)
            if not waiting:
                if not follow and self.is_at_end:
                    return
                waiting.extend(self._consume())
            records = self._take_records(waiting, left)
            if records:
                yield records
            elif self._errors.fatal is not None:
                raise to_siltstone_error(self._errors.fatal, self._purpose)

    def _consume(self) -> list[Message]:
        """Wait a moment for records. The client raises a fatal error from this call."""
        try:
            return self._consumer.consume(_BATCH_RECORDS, _POLL_SECONDS)
        except KafkaException as failure:
            raise to_siltstone_error(failure, self._purpose) from failure

    def _take_records(self, waiting: deque[Message], max_records: int) -> list[Message]:
        records: list[Message] = []
        while waiting and len(records) < max_records:
            message = waiting.popleft()
            error = message.error()
            if error is None:
                records.append(message)
            else:
                self._handle_error(error, message)
        return records

    def _handle_error(self, error: KafkaError, message: Message) -> None:
        partition = message.partition()
        if error.code() == KafkaError._PARTITION_EOF and partition is not None:  # noqa: SLF001 - its public name
            self._at_end.add(partition)
            return
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - its public name
            raise InvalidInputError(
                f"{self._topic}-{partition} cannot be read further: {error.str()}",
                remedy="its next records were deleted; start again at earliest",
            )
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._is_member:
            return  # librdkafka looks up the coordinator even of a group that nothing uses
        if not error.retriable():
            raise to_siltstone_error(error, self._purpose)

    def mark_consumed(self, records: list[Message]) -> None:
        """Count records that the caller has processed; a member of a group may commit them from now on."""
        self.count += len(records)
        latest: dict[int, int] = {}
        for message in records:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            latest[partition] = offset + 1
        self.next_offsets.update(latest)
        self._at_end |= {each for each, at in latest.items() if at >= self._log_end_offsets.get(each, at + 1)}
        if self._is_member:
            with suppress(KafkaException):  # a revoked partition is committed by its new consumer
                self._consumer.store_offsets(
                    offsets=[TopicPartition(self._topic, each, at) for each, at in latest.items()]
                )

    def close(self) -> None:
        """Close the consumer; a member of a group commits what was consumed and leaves."""
        self._consumer.close()
