"""Latency of small Produce requests to topics with storage.mode=local at a steady rate, durable and not.

    python -m benchmarks.local_topics [--quick] [--json] [--rate 1000] [--seconds 10]

One connection to one agent sends a request with one 100-byte record at each tick, without waiting for
responses. Latencies count from the tick. In the same run, the loopback transport alone and a write with fsync
on the same disk are measured for comparison.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from agent.kafka.codec import Struct
from benchmarks.parts.kafka_process import Cluster, bare_server
from benchmarks.parts.kafka_wire import PRODUCE, Wire, request_frame
from benchmarks.parts.measuring import machine
from object_format.record_batch.records import Record, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WARM_UP = 0.2  # share of the requests


def main() -> None:
    """Run the benchmark and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seconds each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rate", type=int, default=1000, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    seconds = 2.0 if options.quick else options.seconds
    figures = measure(options.rate, seconds)
    if options.json:
        print(orjson.dumps({"machine": machine(), "rate": options.rate, "latency_ms": figures}).decode())
        return
    print(f"{options.rate} requests a second for {seconds:g} s; milliseconds")
    for name, row in figures.items():
        print(f"{name:32}  p50 {row['p50']:8.2f}  p99 {row['p99']:8.2f}  worst {row['max']:8.2f}")


def measure(rate: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return latencies in milliseconds by case."""
    figures = {}
    with tempfile.TemporaryDirectory() as name, Cluster(Path(name)) as cluster:
        directory = Path(name)
        with bare_server(64) as server, Wire(server.address) as wire:
            figures["bare loopback"] = _summary(_paced(wire, _frame("none"), rate, seconds))
        figures["write and fsync"] = _summary(_synced_writes(directory / "synced", 200))
        with cluster.agent(local_directories=(directory / "disk",)) as agent:
            for topic, flush in (("page_cache", str(2**63 - 1)), ("durable", "1")):
                agent.create_topic(topic, 1, storage_mode="local", flush_messages=flush)
                with Wire(agent.address) as wire:
                    wire.send(_frame(topic))
                    _require_taken(wire)
                    taken = _paced(wire, _frame(topic), rate, seconds)
                figures[f"flush.messages {'1' if flush == '1' else 'unset'}"] = _summary(taken)
    return figures


def _frame(topic: str) -> bytes:
    batch = bytes(encode_records([Record(0, 1, None, bytes(100))]))
    parts = [Struct(index=0, records=batch)]
    request = Struct(acks=-1, timeout=60_000, topic_data=[Struct(name=topic, partition_data=parts)])
    return request_frame("produce", PRODUCE, request)


def _require_taken(wire: Wire) -> None:
    (topic,) = wire.response("produce", PRODUCE).responses
    (partition,) = topic.partition_responses
    if partition.error_code:
        raise RuntimeError(f"produce was rejected: {partition}")


def _paced(wire: Wire, frame: bytes, rate: int, seconds: float) -> list[float]:
    """Send at a fixed rate; another thread receives the responses in order."""
    count = int(rate * seconds)
    due: deque[float] = deque()
    taken: list[float] = []

    def receive() -> None:
        for _ in range(count):
            wire.receive()
            taken.append(time.perf_counter() - due.popleft())

    receiver = threading.Thread(target=receive)
    begin = time.perf_counter()
    receiver.start()
    for number in range(count):
        at = begin + number / rate
        left = at - time.perf_counter()
        if left > 0:
            time.sleep(left)
        due.append(at)
        wire.send(frame)
    receiver.join()
    return taken[int(count * _WARM_UP) :]


def _synced_writes(path: Path, count: int) -> list[float]:
    taken = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for _ in range(count):
            begin = time.perf_counter()
            os.write(descriptor, struct.pack("171x"))
            os.fsync(descriptor)
            taken.append(time.perf_counter() - begin)
    finally:
        os.close(descriptor)
    return taken


def _summary(seconds: Sequence[float]) -> dict[str, float]:
    percentiles = statistics.quantiles(seconds, n=100)
    to_ms: Callable[[float], float] = lambda value: round(value * 1000, 3)  # noqa: E731
    return {"p50": to_ms(percentiles[49]), "p99": to_ms(percentiles[98]), "max": to_ms(max(seconds))}


if __name__ == "__main__":
    main()
