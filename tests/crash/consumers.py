"""Real Kafka consumers that read all the time, and tell the ledger what they find."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiokafka  # type: ignore[import-untyped]  # it brings no types
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.agent.kafka.in_process_clients import log_end_offset
from tests.agent.kafka.work import Work
from tests.crash.clients import IDENTITY, QUICK, TIMEOUT_SECONDS, start_client
from tests.crash.ledger import ReadRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from confluent_kafka import Message

    from tests.crash.clients import Workload
    from tests.crash.ledger import Ledger, Partition


_CLOSE_SECONDS: Final = 60.0
_MAX_LOG_BYTES: Final = 50_000_000
_UNASSIGNED_SECONDS: Final = 300.0  # no fault lasts that long, and every member has a share of the partitions


class GroupMember(Protocol):
    """A member of a consumer group that reads and commits until it is finished."""

    group: str
    seen: set[bytes]

    def check(self) -> None:
        """Raise the exception that ended the member, if one did."""

    def finish(self) -> None:
        """Leave the group."""

    def abandon(self) -> None:
        """Stop soon, because the test has failed."""


class _Member:
    """The thread of a member."""

    _ending: threading.Event
    _work: Work

    def check(self) -> None:
        """Raise the exception that ended the member, if one did."""
        self._work.check()
        assert self._work.is_running or self._ending.is_set(), f"{self._work.name} has ended"

    def finish(self) -> None:
        """Leave the group."""
        self._ending.set()
        self._work.finish()

    def abandon(self) -> None:
        """Stop soon, because the test has failed."""
        self._ending.set()


class ConfluentMember(_Member):
    """A member of librdkafka that commits what it has read.

    After a fatal error, or if it stays without partitions, it begins again as an application would. Both were
    seen rarely; `docs/reference/kafka.md` has what is known.
    """

    def __init__(self, group: str, protocol: str, ledger: Ledger, workload: Workload) -> None:
        self.group = group
        self.seen: set[bytes] = set()
        self._ledger = ledger
        self._ending = threading.Event()
        self._topics = list(workload.topics)
        self._logger = file_logger(workload.directory / f"{group}-{id(self)}.log")
        classic = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
        self._settings = {
            "bootstrap.servers": workload.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": 60_000,  # and the time in which a member must revoke partitions
            **QUICK,
            **(classic if protocol == "classic" else {}),
            "debug": "cgrp",
            "log_level": 7,
            "logger": self._logger,
        }
        self._work = Work(self._read_all, f"a member of the group {group!r}")

    def _read_all(self) -> None:
        while not self._ending.is_set():
            consumer = Consumer(self._settings)
            consumer.subscribe(self._topics)
            reason = self._read_until_failure(consumer)
            if reason is not None:
                self._ledger.refused[f"{self.group} group: {reason}"] += 1
            self._close(consumer)
        for handler in self._logger.handlers:
            handler.close()

    def _read_until_failure(self, consumer: Consumer) -> str | None:
        """Read until the member is finished. Return why it must begin again, if it must."""
        last_assigned = time.monotonic()
        while not self._ending.is_set():
            found = consumer.consume(200, 0.2)
            if any(error.name() == "_FATAL" for each in found if (error := each.error())):
                return "fatal error"
            messages = [each for each in found if each.error() is None]
            for message in messages:
                record = read_record(message)
                self.seen.add(record.identity)
                self._ledger.observe((str(message.topic()), message.partition() or 0), record)
            if messages:
                self._commit(consumer)
            if messages or consumer.assignment():
                last_assigned = time.monotonic()
            elif time.monotonic() - last_assigned > _UNASSIGNED_SECONDS:
                return "no partitions"
        return None

    def _close(self, consumer: Consumer) -> None:
        """Close the consumer; librdkafka never ends this after an assignment that it could not complete."""
        closing = threading.Thread(target=consumer.close, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            self._ledger.refused[f"{self.group} group: close"] += 1

    @staticmethod
    def _commit(consumer: Consumer) -> None:
        """Send a commit, and do not wait: a synchronous one of the classic protocol may never return."""
        try:
            consumer.commit(asynchronous=True)
        except KafkaException:
            return  # a later commit covers these records, or a member reads them again


def file_logger(path: Path) -> logging.Logger:
    """Return a logger of librdkafka that writes to a file, to find out why a member stopped reading."""
    logger = logging.Logger(path.stem)  # noqa: LOG001  # no configuration of other loggers applies to it
    handler = RotatingFileHandler(path, maxBytes=_MAX_LOG_BYTES, backupCount=1, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger


class AioMember(_Member):
    """A member of aiokafka that commits what it has read.

    aiokafka passes some errors on that Kafka calls retriable. It also fails an assertion in `getmany` if it
    holds records of a partition whose offset it is about to reset. The member then begins again.
    """

    def __init__(self, group: str, ledger: Ledger, workload: Workload) -> None:
        self.group = group
        self.seen: set[bytes] = set()
        self._ledger = ledger
        self._workload = workload
        self._ending = threading.Event()
        self._work = Work(lambda: asyncio.run(self._read_all()), f"a member of the group {group!r}")

    async def _read_all(self) -> None:
        while not self._ending.is_set():
            try:
                await self._read_until_failure()
            except (aiokafka.errors.KafkaError, AssertionError) as error:
                if isinstance(error, aiokafka.errors.KafkaError) and not error.retriable:
                    raise
                self._ledger.refused[f"{self.group} group: {type(error).__name__}"] += 1

    async def _read_until_failure(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            *self._workload.topics,
            bootstrap_servers=self._workload.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            request_timeout_ms=15_000,
            metadata_max_age_ms=1_000,
        )
        await start_client(consumer)
        try:
            while not self._ending.is_set():
                await self._read(consumer)
        finally:
            await consumer.stop()

    async def _read(self, consumer: Any) -> None:  # noqa: ANN401  # it has no types
        found = await consumer.getmany(timeout_ms=200)
        for partition, records in found.items():
            for each in records:
                identity = dict(each.headers)[IDENTITY]
                self.seen.add(identity)
                # aiokafka does not expose the leader epoch.
                record = ReadRecord(each.offset, -1, identity, each.key, each.value is None)
                self._ledger.observe((partition.topic, partition.partition), record)
        if found:
            try:
                await consumer.commit()
            except aiokafka.errors.KafkaError:
                return


def read_record(message: Message) -> ReadRecord:
    """Return a message that has no error."""
    headers: Mapping[str, Any] = dict(message.headers() or [])
    offset, key = message.offset(), message.key()
    epoch = message.leader_epoch()
    assert offset is not None
    assert key is not None
    return ReadRecord(
        offset,
        -1 if epoch is None else epoch,
        headers[IDENTITY],
        key,
        message.value() is None,
    )


class LogReader:
    """Reads whole partitions, their bounds, and the offsets that groups have committed."""

    def __init__(self, bootstrap: str) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            **QUICK,
        }

    def read(self, partition: Partition) -> tuple[int, list[ReadRecord]]:
        """Return the log start offset and all records of a partition."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while True:
            consumer = Consumer({**self._settings, "group.id": "unused"})
            try:
                start, _ = consumer.get_watermark_offsets(TopicPartition(*partition), timeout=120)
                consumer.assign([TopicPartition(*partition, start)])
                found = self._read_to_end(consumer, partition, end)
            finally:
                consumer.close()
            if found is not None:
                return start, found

    @staticmethod
    def _read_to_end(consumer: Consumer, partition: Partition, end: float) -> list[ReadRecord] | None:
        """Return all records, or None if retention removed the first ones before they were read."""
        found: list[ReadRecord] = []
        while True:
            assert time.monotonic() < end, f"{partition} was not read to its end in {TIMEOUT_SECONDS} s"
            for message in consumer.consume(500, 0.1):
                if (error := message.error()) is None:
                    found.append(read_record(message))
                elif error.name() == "_PARTITION_EOF":
                    return found
                elif error.name() == "_AUTO_OFFSET_RESET":
                    return None
                else:
                    assert error.retriable(), error

    def commits_ahead(self, group: str, partitions: Iterable[Partition]) -> list[str]:
        """Return a sentence for each offset that a group committed and the log does not reach."""
        consumer = Consumer({**self._settings, "group.id": group})
        try:
            wanted = [TopicPartition(*each) for each in partitions]
            committed = consumer.committed(wanted, timeout=120)
            ends = {(each.topic, each.partition): log_end_offset(consumer, each) for each in wanted}
        finally:
            consumer.close()
        return [
            f"{group} has committed {each.offset} of {each.topic}-{each.partition}, which ends at"
            f" {ends[each.topic, each.partition]}"
            for each in committed
            if each.offset > ends[each.topic, each.partition]
        ]
