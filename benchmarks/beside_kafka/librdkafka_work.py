"""Work of librdkafka's clients, as their processes run it. Clients have default settings.

Times are those of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass
from statistics import quantiles
from time import perf_counter, sleep, time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_POOL_BYTES = 2**21
_STEP = 1000
_FLUSH_SECONDS = 120.0
_FULL_SECONDS = 0.05  # of waiting for a report when the queue is full: offering records again costs time
_TIME_BYTES = 8
_QUIET = {"log_level": 0}


@dataclass(frozen=True, slots=True)
class Span:
    """Records that were moved between two times, and their latencies in milliseconds."""

    records: int
    begin: float
    end: float
    p50_ms: float | None = None
    p99_ms: float | None = None


def _percentiles(latencies_ms: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    if not latencies_ms:
        return None, None
    if len(latencies_ms) == 1:
        return latencies_ms[0], latencies_ms[0]
    cuts = quantiles(latencies_ms, n=100, method="inclusive")
    return cuts[49], cuts[98]


def payloads(record_bytes: int) -> list[bytes]:
    """Return values of random capital letters, like those of Kafka's tool."""
    count = max(_POOL_BYTES // record_bytes, 2)
    letters = np.random.default_rng(1).integers(65, 91, (count, record_bytes), dtype=np.uint8)
    return [bytes(row) for row in letters]


def produce(
    wait_for_all: Callable[[], None],
    *,
    settings: Mapping[str, str],
    topic: str,
    records: int,
    record_bytes: int,
    codec: str,
) -> Span:
    """Produce records as fast as the client takes them, and wait until all are acknowledged."""
    latencies: list[float] = []
    errors: list[str] = []
    delivered = [0.0]

    def on_delivery(error: object, message: Message) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            latencies.append((message.latency() or 0.0) * 1000)
        delivered[0] = perf_counter()

    client = Producer({**_QUIET, **settings, "compression.codec": codec})
    values = payloads(record_bytes)
    batch = [{"value": each} for each in values]
    client.list_topics(topic, timeout=_FLUSH_SECONDS)
    wait_for_all()
    begin = perf_counter()
    queued = 0
    while queued < records:
        at = queued % (len(batch) - 1)
        step = min(_STEP, records - queued, len(batch) - at)
        plain = 0
        if step > 1:
            plain = _enqueue(client, topic, batch[at : at + step - 1])
        if plain == step - 1 and _enqueue_sampled(client, topic, values[at], on_delivery):
            plain += 1
        queued += plain
        client.poll(0 if plain else _FULL_SECONDS)
    left = client.flush(_FLUSH_SECONDS)
    end = perf_counter()
    if left or errors:
        raise RuntimeError(f"{left} records were not sent; {errors[:1]}")
    return Span(records, begin, end, *_percentiles(latencies))


def _enqueue(client: Producer, topic: str, batch: list[dict[str, Any]]) -> int:
    try:
        return client.produce_batch(topic, batch)
    except BufferError:
        return 0


def _enqueue_sampled(
    client: Producer, topic: str, value: bytes, on_delivery: Callable[[object, Message], None]
) -> bool:
    try:
        client.produce(topic, value, on_delivery=on_delivery)
    except BufferError:
        return False
    return True


def transact(
    wait_for_all: Callable[[], None],
    *,
    settings: Mapping[str, str],
    topic: str,
    transactional_id: str,
    partitions: int,
    transactions: int,
    records: int,
    record_bytes: int,
) -> Span:
    """Run transactions sequentially; the latencies are those of commits."""
    client = Producer({**_QUIET, **settings, "transactional.id": transactional_id})
    client.init_transactions(_FLUSH_SECONDS)
    value = bytes(record_bytes)
    commits: list[float] = []
    wait_for_all()
    begin = perf_counter()
    for _ in range(transactions):
        client.begin_transaction()
        for number in range(records):
            client.produce(topic, value, partition=number % partitions)
        called = perf_counter()
        client.commit_transaction(_FLUSH_SECONDS)
        commits.append((perf_counter() - called) * 1000)
    return Span(transactions, begin, perf_counter(), *_percentiles(commits))


def produce_steadily(
    wait_for_all: Callable[[], None],
    *,
    settings: Mapping[str, str],
    topic: str,
    record_bytes: int,
    per_second: int,
    seconds: float,
) -> Span:
    """Produce records at a steady rate; each begins with the time at which it was produced."""
    client = Producer({**_QUIET, **settings})
    padding = payloads(record_bytes)[0][_TIME_BYTES:]
    client.list_topics(topic, timeout=_FLUSH_SECONDS)
    wait_for_all()
    begin = perf_counter()
    total = int(per_second * seconds)
    for number in range(total):
        left = begin + number / per_second - perf_counter()
        if left > 0.0005:
            sleep(left)
        client.produce(topic, time_ns().to_bytes(_TIME_BYTES, "big") + padding)
        if number % 100 == 0:
            client.poll(0)
    if client.flush(_FLUSH_SECONDS):
        raise RuntimeError("records were not sent")
    return Span(total, begin, perf_counter())


def consume(
    wait_for_all: Callable[[], None],
    *,
    settings: Mapping[str, str],
    topic: str,
    partitions: int,
    records: int,
    clients: int,
    has_times: bool = False,
) -> list[Span]:
    """Read so many records from each client, in threads; with `has_times`, measure how old they are."""
    spans: list[Span] = []
    errors: list[str] = []
    begun = threading.Barrier(clients + 1)
    start = [TopicPartition(topic, number, 0) for number in range(partitions)]

    def read() -> None:
        try:
            with closing(_reader(settings, topic)) as client:
                begun.wait()
                spans.append(_read(client, start, records, has_times=has_times))
        except (KafkaException, RuntimeError, threading.BrokenBarrierError) as error:
            errors.append(str(error))
            begun.abort()

    threads = [threading.Thread(target=read) for _ in range(clients)]
    for thread in threads:
        thread.start()
    wait_for_all()
    begun.wait()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(errors[0])
    return spans


def _reader(settings: Mapping[str, str], topic: str) -> Consumer:
    client = Consumer({**_QUIET, **settings, "group.id": f"{topic}-readers", "enable.auto.commit": False})
    client.list_topics(topic, timeout=_FLUSH_SECONDS)
    return client


def _read(client: Consumer, start: Sequence[TopicPartition], records: int, *, has_times: bool) -> Span:
    ages: list[float] = []
    begin = last = perf_counter()
    client.assign(list(start))
    count = 0
    while count < records:
        messages = client.consume(_STEP, timeout=0.005)
        now = perf_counter()
        if not messages and now - last > _FLUSH_SECONDS:
            raise RuntimeError(f"{count} of {records} records were read")
        if messages:
            last = now
            count += len(messages)
            if has_times:
                ages += _ages(messages)
    return Span(count, begin, perf_counter(), *_percentiles(ages))


def _ages(messages: Sequence[Message]) -> list[float]:
    now = time_ns()
    return [(now - int.from_bytes((each.value() or b"")[:_TIME_BYTES], "big")) / 1e6 for each in messages]


class _Members:
    """The assignments of the members of a group, in one process."""

    def __init__(self, count: int, partitions: int) -> None:
        self._lock = threading.Lock()
        self._partitions = partitions
        self._held: list[set[int]] = [set() for _ in range(count)]
        self.first: dict[int, float] = {}
        self.changed = 0.0

    def assign(self, member: int, partitions: Sequence[TopicPartition]) -> None:
        """Note new partitions of a member."""
        with self._lock:
            self.changed = perf_counter()
            self.first.setdefault(member, self.changed)
            self._held[member] |= {each.partition for each in partitions}

    def revoke(self, member: int, partitions: Sequence[TopicPartition]) -> None:
        """Note partitions that a member has lost."""
        with self._lock:
            self.changed = perf_counter()
            self._held[member] -= {each.partition for each in partitions}

    def are_balanced(self) -> bool:
        """Return True if each partition has one member, and no member has two more than another."""
        with self._lock:
            sizes = [len(each) for each in self._held]
            held = set().union(*self._held)
        return (
            len(held) == self._partitions == sum(sizes)
            and len(self.first) == len(sizes)
            and max(sizes) - min(sizes) <= 1
        )


def join(
    wait_for_all: Callable[[], None],
    *,
    settings: Mapping[str, str],
    topic: str,
    partitions: int,
    group: str,
    members: int,
    seconds: float,
) -> Span:
    """Let new members join a new group until its assignment is balanced and has not changed for a second.

    The span ends with the last change. Its percentiles are the times until a member has partitions.
    """
    state = _Members(members, partitions)
    ended = threading.Event()

    def take_part(member: int) -> None:
        with closing(Consumer({**_QUIET, **settings, "group.id": group})) as client:
            client.subscribe(
                [topic],
                on_assign=lambda _, assigned: state.assign(member, assigned),
                on_revoke=lambda _, revoked: state.revoke(member, revoked),
                on_lost=lambda _, lost: state.revoke(member, lost),
            )
            while not ended.is_set():
                client.poll(0.1)

    threads = [threading.Thread(target=take_part, args=(number,)) for number in range(members)]
    wait_for_all()
    begin = perf_counter()
    for thread in threads:
        thread.start()
    while not (settled := state.are_balanced() and perf_counter() - state.changed > 1.0):
        if perf_counter() - begin > seconds:
            break
        sleep(0.02)
    changed = state.changed
    ended.set()
    for thread in threads:
        thread.join()
    if not settled:
        raise RuntimeError(f"the group was not balanced after {seconds:.0f} s")
    waits = [(at - begin) * 1000 for at in state.first.values()]
    return Span(members, begin, changed, *_percentiles(waits))
