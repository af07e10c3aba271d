"""Loads of librdkafka for the Kafka benchmark."""

from __future__ import annotations

import threading
from contextlib import closing
from statistics import median, quantiles
from time import perf_counter, sleep, time_ns
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.parts.kafka_process import AgentProcess

RECORD_BYTES = 1024
PARTITIONS = 12
_TIME_BYTES = 8
_MAX_UNANSWERED = 200
_PARTS = ("buffer", "put", "commit", "wake_up")


def producer(agent: AgentProcess, **changes: object) -> Producer:
    """Return a producer with batches of 1 MB."""
    return Producer(
        {
            "bootstrap.servers": agent.kafka,
            "batch.size": 1_000_000,
            "batch.num.messages": 1_000_000,
            "linger.ms": 20,
            "acks": "all",
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            **changes,
        }
    )


def consumer(agent: AgentProcess, **changes: object) -> Consumer:
    """Return a consumer outside of groups, with fetches of 1 MiB per partition."""
    return Consumer(
        {
            "bootstrap.servers": agent.kafka,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 4 * 1024 * 1024,
            "fetch.max.bytes": 48 * 1024 * 1024,
            "queued.max.messages.kbytes": 256 * 1024,
            "check.crcs": False,
            **changes,
        }
    )


def produce(agent: AgentProcess, topic: str, megabytes: int, *, idempotent: bool) -> dict[str, float]:
    """Produce records of 1 KiB to 12 partitions, all acknowledged."""
    agent.create_topic(topic, PARTITIONS)
    each = megabytes * 1_000_000 // RECORD_BYTES // PARTITIONS
    client = producer(agent, **{"enable.idempotence": idempotent})
    payload = b"x" * RECORD_BYTES
    _warm_up(topic, client)
    cpu = agent.cpu_seconds()
    begin = perf_counter()
    for start in range(0, each, 1000):
        for partition in range(PARTITIONS):
            _enqueue(client, topic, partition, payload, min(1000, each - start))
    left = client.flush(120)
    seconds = perf_counter() - begin
    cpu = agent.cpu_seconds() - cpu
    records = each * PARTITIONS
    acknowledged = log_end(agent, topic) - PARTITIONS
    if left or acknowledged != records:
        raise RuntimeError(f"{left} of {records} records were not sent, {acknowledged} are in the log")
    return _rates(records, seconds, cpu)


def _enqueue(client: Producer, topic: str, partition: int, payload: bytes, count: int) -> None:
    """Add `count` records to the client's queue as it has space."""
    left = count
    while left:
        taken = client.produce_batch(topic, [{"value": payload}] * left, partition=partition)
        left -= taken
        if left:
            client.poll(0.005)


def _warm_up(topic: str, client: Producer) -> None:
    """Produce a record to each partition."""
    for partition in range(PARTITIONS):
        client.produce(topic, b"x" * RECORD_BYTES, partition=partition)
    client.flush(60)


def log_end(agent: AgentProcess, topic: str) -> int:
    """Return the number of records that were ever written to a topic."""
    with closing(consumer(agent)) as client:
        return _records_in(client, topic)


def _records_in(client: Consumer, topic: str) -> int:
    return sum(
        client.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[1]
        for partition in range(PARTITIONS)
    )


def consume(agent: AgentProcess, topic: str) -> dict[str, float]:
    """Consume a whole topic with a connected client.

    It requests few records at a time, because librdkafka waits until it has the requested number.
    """
    with closing(consumer(agent)) as client:
        expected = _records_in(client, topic)
        cpu = agent.cpu_seconds()
        begin = perf_counter()
        client.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        records = 0
        while records < expected:
            records += len(client.consume(500, timeout=0.005))
        seconds = perf_counter() - begin
    return _rates(records, seconds, agent.cpu_seconds() - cpu)


def _rates(records: int, seconds: float, cpu: float) -> dict[str, float]:
    megabytes = records * RECORD_BYTES / 1e6
    return {
        "megabytes": round(megabytes, 1),
        "seconds": round(seconds, 3),
        "mb_per_second": round(megabytes / seconds, 1),
        "agent_cpu_seconds": round(cpu, 3),
        "mb_per_agent_cpu_second": round(megabytes / max(cpu, 1e-9), 1),
    }


def many(agent: AgentProcess, *, partitions: int, clients: int, seconds: float) -> dict[str, Any]:
    """Produce small records from many clients to every partition; return their number, and every error."""
    agent.create_topic("many", partitions)
    errors: list[str] = []
    delivered = [0] * clients
    deadline = perf_counter() + seconds
    threads = [
        threading.Thread(
            target=_produce_for_a_while, args=(agent, number, partitions, deadline, delivered, errors)
        )
        for number in range(clients)
    ]
    cpu, begin = agent.cpu_seconds(), perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu, taken = agent.cpu_seconds() - cpu, perf_counter() - begin
    return {
        "partitions": partitions,
        "clients": clients,
        "seconds": round(taken, 1),
        "records": sum(delivered),
        "records_per_second": round(sum(delivered) / taken),
        "errors": len(errors),
        "first_errors": errors[:3],
        "agent_cpu_share": round(cpu / taken, 2),
        "agent_cpu_us_per_record": round(cpu / max(sum(delivered), 1) * 1e6),
    }


def _produce_for_a_while(
    agent: AgentProcess,
    number: int,
    partitions: int,
    deadline: float,
    delivered: list[int],
    errors: list[str],
) -> None:
    def on_delivery_report(error: KafkaError | None, _: object) -> None:
        if error is None:
            delivered[number] += 1
        else:
            errors.append(str(error))

    client = producer(agent, **{"linger.ms": 100, "error_cb": lambda error: errors.append(str(error))})
    partition = number
    while perf_counter() < deadline:
        for _ in range(20):
            partition = (partition + 37) % partitions
            try:
                client.produce("many", b"x" * 200, partition=partition, on_delivery=on_delivery_report)
            except KafkaException as error:
                errors.append(str(error))
        client.poll(0.1)
        # Otherwise the queue would be unbounded, and requests would exceed the client's timeout.
        while len(client) > _MAX_UNANSWERED:
            client.poll(0.1)
    if client.flush(60):
        errors.append("records were left in the queue")


def latency(agent: AgentProcess, topic: str, *, records: int) -> dict[str, Any]:
    """Measure milliseconds from producer to consumer, in total and by part."""
    agent.create_topic(topic, 1)
    sender = producer(agent, **{"linger.ms": 0})
    sender.produce(topic, bytes(_TIME_BYTES), partition=0)
    sender.flush(60)
    taken: list[float] = []
    reading = threading.Thread(target=_read_latencies, args=(agent, topic, records, taken.append))
    reading.start()
    before = agent.metrics()
    for number in range(records):
        sender.produce(topic, time_ns().to_bytes(_TIME_BYTES, "big"), partition=0)
        sender.poll(0)
        sleep(0.011 + number % 7 / 1000)
    sender.flush(60)
    reading.join()
    after = agent.metrics()
    percentiles = quantiles(taken, n=100)
    return {
        "records": records,
        "p50_ms": round(median(taken), 1),
        "p99_ms": round(percentiles[98], 1),
        "mean_parts_ms": {part: _mean_ms(before, after, part) for part in _PARTS},
    }


def _mean_ms(before: dict[str, float], after: dict[str, float], part: str) -> float:
    name = {
        "buffer": "siltstone_ingestion_buffer_seconds",
        "put": "siltstone_ingestion_put_seconds",
        "commit": "siltstone_ingestion_commit_seconds",
        "wake_up": "siltstone_fetch_wake_up_seconds",
    }[part]
    count = after.get(f"{name}_count", 0.0) - before.get(f"{name}_count", 0.0)
    total = after.get(f"{name}_sum", 0.0) - before.get(f"{name}_sum", 0.0)
    return round(total / count * 1000, 2) if count else 0.0


def _read_latencies(agent: AgentProcess, topic: str, records: int, note: Callable[[float], None]) -> None:
    with closing(consumer(agent)) as client:
        client.assign([TopicPartition(topic, 0, 1)])
        for _ in range(records):
            message = None
            while message is None:
                message = client.poll(30)
            note((time_ns() - int.from_bytes(message.value() or b"", "big")) / 1e6)
