"""How fast an agent serves readers of old records from a store that responds slowly.

    python -m benchmarks.cold_readers [--json] [--quick]

One agent writes topics of 1 and of 12 partitions in ingestion files of 8 MiB, records of 1 KiB. Then, for
each row, another agent starts with empty caches, and readers with librdkafka's defaults read a topic from its
start, all at the same time, in threads of this process. Each GET to the object store, a local directory,
takes `delay_ms` longer.

- `mb_s` is what all readers receive together, in MB/s. `ratio` divides it by the rate without a delay, for
  the same topic, readers and prefetching, in the same round.
- `gets_per_100_mb` counts GETs per 100 MB of the topic, however many readers there are. `read_factor` is the
  number of bytes that the agent read from the store, divided by the topic's.
- `hits` is the share of the ranges that fetches needed and found in memory; `joined` the share that another
  read was loading.
- `read_ahead_bytes` is the agent's setting; 0 turns prefetching off. `windows` counts prefetched windows.
  Only sections of more than 1 MiB are prefetched, here those of the topic with one partition.

Figures are medians over the rounds, with least and greatest in brackets.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import click
import orjson
from confluent_kafka import Consumer, TopicPartition

from benchmarks.parts.kafka_loads import RECORD_BYTES, producer
from benchmarks.parts.kafka_process import Cluster
from benchmarks.parts.measuring import machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.parts.kafka_process import AgentProcess

MIB: Final = 1 << 20
_PARTITIONS: Final = (1, 12)
_READERS: Final = (1, 10, 50)
_DELAYS_MS: Final = (0, 30)
_READ_AHEAD_BYTES: Final = (8 * MIB, 0)
_CACHE: Final = ("hits", "joined", "misses")


@dataclass(frozen=True, slots=True)
class Case:
    """One row."""

    partitions: int
    readers: int
    read_ahead_bytes: int
    delay_ms: int

    @property
    def topic(self) -> str:
        """The topic that it reads."""
        return f"old-{self.partitions}"


def cases(readers: Sequence[int]) -> list[Case]:
    """Return all rows."""
    found = [Case(*each) for each in product(_PARTITIONS, readers, _READ_AHEAD_BYTES, _DELAYS_MS)]
    return [each for each in found if each.partitions == 1 or each.read_ahead_bytes]


def write(agent: AgentProcess, partitions: int, records: int) -> None:
    """Write so many records to a topic, all acknowledged."""
    topic = Case(partitions, 0, 0, 0).topic
    agent.create_topic(topic, partitions)
    client = producer(agent, **{"enable.idempotence": True})
    for number in range(records):
        while True:
            try:
                client.produce(topic, bytes(RECORD_BYTES), partition=number % partitions)
            except BufferError:
                client.poll(0.005)
            else:
                break
    if client.flush(120):
        raise RuntimeError("some records were not acknowledged")


def measure(cluster: Cluster, case: Case, records: int) -> dict[str, Any]:
    """Read the topic once with each reader, from an agent with empty caches."""
    options = {"read_ahead_bytes": case.read_ahead_bytes, "get_delay_ms": case.delay_ms}
    with cluster.agent(**options) as agent, ThreadPoolExecutor(case.readers) as threads:
        gets, read_bytes = agent.requests_to_store("get", "fetch")
        before = agent.metrics()
        cpu = agent.cpu_seconds()
        begin = perf_counter()
        for done in [threads.submit(_read, agent, case, records) for _ in range(case.readers)]:
            done.result()
        seconds = perf_counter() - begin
        cpu = agent.cpu_seconds() - cpu
        after_gets, after_bytes = agent.requests_to_store("get", "fetch")
        grown = {name: value - before.get(name, 0.0) for name, value in agent.metrics().items()}
    ranges = {name: grown[f"siltstone_cache_{name}_total"] for name in _CACHE}
    needed = max(1.0, sum(ranges.values()))
    received = records * RECORD_BYTES * case.readers / 1e6
    return {
        "mb_s": received / seconds,
        "gets_per_100_mb": (after_gets - gets) / (records * RECORD_BYTES / 1e8),
        "read_factor": (after_bytes - read_bytes) / (records * RECORD_BYTES),
        "hits": ranges["hits"] / needed,
        "joined": ranges["joined"] / needed,
        "agent_cpu_s_per_gb": cpu / (received / 1000),
        "windows": grown.get("siltstone_read_ahead_total", 0.0),
    }


def _read(agent: AgentProcess, case: Case, records: int) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": agent.kafka,
        "group.id": "cold",
        "enable.auto.commit": False,
        "queued.max.messages.kbytes": 16 * 1024,  # 50 readers share this process
        "fetch.queue.backoff.ms": 10,  # a full queue waits for a second by default, although it is empty soon
    }
    with closing(Consumer(settings)) as client:
        client.assign([TopicPartition(case.topic, partition, 0) for partition in range(case.partitions)])
        left = records
        while left > 0:
            for message in client.consume(1000, timeout=0.02):
                if message.error() is not None:
                    raise RuntimeError(f"a reader failed: {message.error()}")
                left -= 1


def compare(cluster: Cluster, rows: Sequence[Case], records: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Measure all rows in turns, and yield the figures of each."""
    samples: dict[Case, list[dict[str, Any]]] = {case: [] for case in rows}
    for _ in range(rounds):
        for case in rows:
            sample = measure(cluster, case, records)
            base = samples[replace(case, delay_ms=0)]
            sample["ratio"] = sample["mb_s"] / base[len(samples[case])]["mb_s"] if case.delay_ms else 1.0
            samples[case].append(sample)
    for case, found in samples.items():
        yield {
            **asdict(case),
            **{name: [round(each[name], 3) for each in found] for name in found[0]},
        }


def _table(rows: Sequence[dict[str, Any]]) -> str:
    names = [field.name for field in fields(Case)]
    figures = [name for name in rows[0] if name not in names]
    lines = [f"| {' | '.join([*names, *figures])} |", "|" + "---:|" * (len(names) + len(figures))]
    for row in rows:
        texts = [*(str(row[name]) for name in names), *(_with_spread(row[name]) for name in figures)]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def _with_spread(values: Sequence[float]) -> str:
    middle, low, high = (f"{each:.3g}" for each in (median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--quick", is_flag=True, help="Less data, one round, and fewer rows.")
def main(*, as_json: bool, quick: bool) -> None:
    """Write the topic, and measure all rows."""
    megabytes, rounds, readers = (20, 1, (1, 10)) if quick else (60, 3, _READERS)
    records = megabytes * 1_000_000 // RECORD_BYTES
    with (
        tempfile.TemporaryDirectory(prefix="siltstone-bench-") as directory,
        Cluster(Path(directory)) as cluster,
    ):
        with cluster.agent() as agent:
            for partitions in _PARTITIONS:
                write(agent, partitions, records)
        rows = list(compare(cluster, cases(readers), records, rounds))
    report = {"machine": machine(), "megabytes": megabytes, "rounds": rounds, "rows": rows}
    click.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() if as_json else _table(rows))


if __name__ == "__main__":
    main()
