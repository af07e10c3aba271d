"""Loads of librdkafka, which run in separate processes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.beside_kafka import librdkafka_work
from benchmarks.beside_kafka.load import Load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from benchmarks.beside_kafka.librdkafka_work import Span
    from benchmarks.beside_kafka.workers import Workers

_COORDINATOR_SECONDS = 60.0
_MAX_PROCESSES = 4  # of consumers; each has a share of the clients


class LibrdkafkaClients:
    """Clients of librdkafka. Producers are alone in their processes."""

    name = "librdkafka"

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def produce(
        self,
        settings: Mapping[str, str],
        topic: str,
        *,
        clients: int,
        records: int,
        record_bytes: int,
        codec: str,
        seconds: float,
    ) -> Load:
        """Produce as many records from each client, and wait until all are acknowledged."""
        work = {
            "settings": settings,
            "topic": topic,
            "records": records,
            "record_bytes": record_bytes,
            "codec": codec,
        }
        return _load(self._workers.run(librdkafka_work.produce, [work] * clients, seconds), record_bytes)

    def consume(
        self,
        settings: Mapping[str, str],
        topic: str,
        *,
        clients: int,
        partitions: int,
        records: int,
        record_bytes: int,
        seconds: float,
    ) -> Load:
        """Read a topic from its start with each client."""
        common = {"settings": settings, "topic": topic, "partitions": partitions, "records": records}
        work = [{**common, "clients": count} for count in _shares(clients)]
        found = self._workers.run(librdkafka_work.consume, work, seconds)
        return _load((span for spans in found for span in spans), record_bytes)

    def transact(
        self,
        settings: Mapping[str, str],
        topic: str,
        *,
        clients: int,
        partitions: int,
        transactions: int,
        records: int,
        record_bytes: int,
        seconds: float,
    ) -> Load:
        """Run this number of transactions with each client, sequentially."""
        common = {
            "settings": settings,
            "topic": topic,
            "partitions": partitions,
            "transactions": transactions,
            "records": records,
            "record_bytes": record_bytes,
        }
        work = [{**common, "transactional_id": f"{topic}-{number}"} for number in range(clients)]
        load = _load(self._workers.run(librdkafka_work.transact, work, seconds), 0)
        return replace(load, transactions=transactions * clients)

    def follow(
        self,
        settings: Mapping[str, str],
        topic: str,
        *,
        clients: int,
        partitions: int,
        record_bytes: int,
        per_second: int,
        seconds: float,
        limit: float,
    ) -> Load:
        """Read a topic with each client while one producer writes to it at a steady rate."""
        records = int(per_second * seconds)
        common = {"settings": settings, "topic": topic}
        reading = {**common, "partitions": partitions, "records": records, "has_times": True}
        produce = {
            **common,
            "record_bytes": record_bytes,
            "per_second": per_second,
            "seconds": seconds,
        }
        work: list[tuple[Callable[..., Any], Mapping[str, Any]]] = [
            (librdkafka_work.produce_steadily, produce)
        ]
        work += [(librdkafka_work.consume, {**reading, "clients": count}) for count in _shares(clients)]
        _, *found = self._workers.run_each(work, limit)
        return _load((span for spans in found for span in spans), record_bytes)

    def find_coordinator(self, settings: Mapping[str, str], group: str) -> None:
        """Let the server prepare for groups, as it does once."""
        with closing(Consumer({"log_level": 0, **settings, "group.id": group})) as client:
            deadline = perf_counter() + _COORDINATOR_SECONDS
            while True:
                try:
                    client.committed([TopicPartition(group, 0)], timeout=_COORDINATOR_SECONDS)
                except KafkaException:
                    if perf_counter() > deadline:
                        raise
                    sleep(0.1)
                else:
                    return

    def join(
        self,
        settings: Mapping[str, str],
        topic: str,
        *,
        group: str,
        clients: int,
        partitions: int,
        seconds: float,
    ) -> Load:
        """Start a group."""
        work = {
            "settings": settings,
            "topic": topic,
            "group": group,
            "partitions": partitions,
            "members": clients,
            "seconds": seconds,
        }
        return _load(self._workers.run(librdkafka_work.join, [work], seconds + 60), 0)


def _shares(clients: int) -> list[int]:
    processes = min(clients, _MAX_PROCESSES)
    return [clients // processes + (number < clients % processes) for number in range(processes)]


def _load(spans: Iterable[Span], record_bytes: int) -> Load:
    """Return the time from the first beginning to the last end."""
    every = list(spans)
    return Load(
        megabytes=sum(each.records for each in every) * record_bytes / 1e6,
        seconds=max(each.end for each in every) - min(each.begin for each in every),
        p50_ms=_median(each.p50_ms for each in every),
        p99_ms=_median(each.p99_ms for each in every),
    )


def _median(values: Iterable[float | None]) -> float | None:
    found = [each for each in values if each is not None]
    return median(found) if found else None
