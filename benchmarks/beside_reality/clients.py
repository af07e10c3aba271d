"""Producers with known rates, and consumers at the tail: threads that speak Kafka's protocol.

Each agent has one producer, which sends batches of all partitions as a Poisson process, and one consumer for
a third of them (with three zones). A producer is idempotent and does not wait for acknowledgements. It draws
keys as the simulation does.
"""

from __future__ import annotations

import struct
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from agent.kafka.codec import Struct
from benchmarks.beside_reality.workload import BATCH_RECORDS, partitions_of
from benchmarks.parts.kafka_wire import FETCH, PRODUCE, Wire, request_frame
from cost_model.workload.keys import DrawnKeys
from object_format.record_batch.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cost_model.workload.definition import Workload

_INIT_PRODUCER_ID: Final = 2
_MAX_WAIT_MS: Final = 500
_JOIN_SECONDS: Final = 30.0
_BATCH_HEADER: Final = struct.Struct(">qi")  # base offset, length of the rest


class Clients:
    """All producers and consumers; `failures` has the error of each thread that ended with one."""

    def __init__(self, workload: Workload, agents: Sequence[tuple[str, int]], seed: int) -> None:
        self._stopped = threading.Event()
        self.failures: list[str] = []
        self.producers = [
            Producer(workload, agent, np.random.default_rng((seed, number)), self._stopped)
            for number, agent in enumerate(agents)
        ]
        self.consumers = [Consumer(workload, agent, zone, self._stopped) for zone, agent in enumerate(agents)]
        self._clients: list[Producer | Consumer] = [*self.producers, *self.consumers]
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for client in self._clients
            for work in client.threads
        ]

    @property
    def sent(self) -> int:
        """Number of batches that were sent."""
        return sum(each.sent for each in self.producers)

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged batches."""
        return sum(each.acknowledged for each in self.producers)

    @property
    def records_read(self) -> int:
        """Upper offsets minus first offsets of all consumers: the records that they have read."""
        return sum(sum(each.offsets.values()) for each in self.consumers)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all of them during the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join(_JOIN_SECONDS)
            for client in self._clients:
                client.close()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # any failure of a client makes the run invalid
            if not self._stopped.is_set():
                self.failures.append(repr(error))


class Producer:
    """Idempotent producer of an agent; it sends and receives in separate threads."""

    def __init__(
        self,
        workload: Workload,
        agent: tuple[str, int],
        generator: np.random.Generator,
        stopped: threading.Event,
    ) -> None:
        self.threads = (self._send, self._receive)
        self.sent = self.acknowledged = 0
        self._generator = generator
        self._stopped = stopped
        self._wire = Wire(agent)
        self._partitions = list(partitions_of(workload))
        rates = np.array([each.records_per_second / each.batch_records for each, _ in self._partitions])
        self._mean_pause = workload.agents / float(rates.sum())
        self._shares = rates / rates.sum()
        self._keys = [DrawnKeys(topic, generator) for topic, _ in self._partitions]
        self._sequences = [0] * len(self._partitions)
        self._wire.send(
            request_frame(
                "init_producer_id",
                _INIT_PRODUCER_ID,
                Struct(transactional_id=None, transaction_timeout=60_000),
            )
        )
        response = self._wire.response("init_producer_id", _INIT_PRODUCER_ID)
        self._identity = (int(response.producer_id), int(response.producer_epoch))

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def _send(self) -> None:
        due = time.monotonic()
        while True:
            due += self._generator.exponential(self._mean_pause)
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                return
            number = int(self._generator.choice(len(self._shares), p=self._shares))
            self._wire.send(self._request(number))
            self.sent += 1

    def _request(self, number: int) -> bytes:
        topic, partition = self._partitions[number]
        keys, _ = self._keys[number].draw(BATCH_RECORDS)
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch(
            [now_ms] * BATCH_RECORDS,
            [b"%0*d" % (topic.key_bytes, key) for key in keys.tolist()],
            [bytes(topic.record_bytes - topic.key_bytes)] * BATCH_RECORDS,
            producer=(*self._identity, self._sequences[number]),
        )
        self._sequences[number] += BATCH_RECORDS
        data = Struct(name=topic.name, partition_data=[Struct(index=partition, records=batch)])
        return request_frame("produce", PRODUCE, Struct(acks=-1, timeout=60_000, topic_data=[data]))

    def _receive(self) -> None:
        while not self._stopped.is_set():
            for topic in self._wire.response("produce", PRODUCE).responses:
                for each in topic.partition_responses:
                    if each.error_code:
                        raise RuntimeError(f"a batch was rejected with error {each.error_code}")
                    self.acknowledged += 1


class Consumer:
    """Reader of the partitions whose consumers are in one zone, at the tail, from the agent there."""

    def __init__(
        self, workload: Workload, agent: tuple[str, int], zone: int, stopped: threading.Event
    ) -> None:
        self.threads = (self._read,)
        mine = [
            each for number, each in enumerate(partitions_of(workload)) if number % workload.zones == zone
        ]
        self.offsets = {(topic.name, partition): 0 for topic, partition in mine}
        self._stopped = stopped
        self._wire = Wire(agent)

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def _read(self) -> None:
        while not self._stopped.is_set():
            self._wire.send(request_frame("fetch", FETCH, self._request()))
            for topic in self._wire.response("fetch", FETCH).responses:
                for each in topic.partitions:
                    if each.error_code:
                        raise RuntimeError(f"a fetch was rejected with error {each.error_code}")
                    offset = self.offsets[topic.topic, each.partition_index]
                    self.offsets[topic.topic, each.partition_index] = _end(each.records, offset)

    def _request(self) -> Struct:
        topics: dict[str, list[Struct]] = {}
        for (name, partition), offset in self.offsets.items():
            wanted = Struct(partition=partition, fetch_offset=offset, partition_max_bytes=2**20)
            topics.setdefault(name, []).append(wanted)
        return Struct(
            max_wait=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=2**26,
            session_id=0,
            session_epoch=-1,
            topics=[Struct(topic=name, partitions=parts) for name, parts in topics.items()],
        )


def _end(records: bytes | None, offset: int) -> int:
    """Return the offset after the last batch in the records of a response, whose last batch may be cut."""
    data, position = memoryview(records or b""), 0
    while len(data) - position >= 61:
        base, length = _BATCH_HEADER.unpack_from(data, position)
        if position + 12 + length > len(data):
            break
        (last_delta,) = struct.unpack_from(">i", data, position + 23)
        offset, position = max(offset, base + last_delta + 1), position + 12 + length
    return offset
