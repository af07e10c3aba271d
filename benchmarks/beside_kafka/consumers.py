"""Consumers with default settings: of old records, of recent ones, and of those being produced.

- `cold`: the records are in no memory. Each sample reads a topic that no client has read before. Since it was
  written, an agent's memory was filled with other records, and its pages were removed from the page cache.
- `recent`: the records were produced just before, so both servers have them in memory.
- `tail`: consumers follow a producer with a steady rate. Latency is measured from producer to consumer.

Each client reads the whole topic, outside of the groups of others.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.beside_kafka.comparison import Comparison, alternate
from benchmarks.beside_kafka.load import Load, LoadError
from benchmarks.beside_kafka.servers import evict_pages, topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.beside_kafka.librdkafka_clients import LibrdkafkaClients
    from benchmarks.beside_kafka.servers import Server, Testbed

KINDS = ("cold", "recent", "tail")
COUNTS = (1, 10, 50)
PARTITIONS = 12
RECORD_BYTES = 1024
_MEGABYTES = {"cold": {1: 200, 10: 60, 50: 24}, "recent": {1: 100, 10: 60, 50: 24}}
_OTHER_MEGABYTES = 250  # more than an agent keeps of what it has written
_JAVA_COUNTS = (1, 10)  # 50 need gigabytes for their buffers
_TAIL_PER_SECOND = 2000
_LIMIT_SECONDS = 120.0
_FILLERS = 4
_GOAL = 1.0


class ConsumingClients(Protocol):
    """Consumers of one kind."""

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
        """Read so many records of a topic from its start with each client."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the matrix."""

    kind: str
    library: str = "librdkafka"
    clients: int = 1

    def described(self) -> dict[str, Any]:
        """Return what differs between cells."""
        return {"kind": self.kind, "library": self.library, "clients": self.clients}

    def records(self, share: float) -> int:
        """Return the number of records that each client reads, for this share of the usual amount."""
        sizes = _MEGABYTES[self.kind]
        size = sizes[min(known for known in sizes if known >= min(self.clients, max(sizes)))]
        return int(size * share * 1e6) // RECORD_BYTES


def default_cases() -> list[Case]:
    """Return all cells."""
    cases = [Case(kind=kind, clients=count) for kind in KINDS for count in COUNTS]
    return cases + [
        Case(kind=kind, library="java", clients=count)
        for kind in ("cold", "recent")
        for count in _JAVA_COUNTS
    ]


def quick_cases() -> list[Case]:
    """Return few cells."""
    return [Case(kind=kind, clients=10) for kind in KINDS]


class Consumers:
    """The comparison, with a share of the usual amount of records."""

    def __init__(
        self,
        testbed: Testbed,
        readers: Mapping[str, ConsumingClients],
        librdkafka: LibrdkafkaClients,
        *,
        rounds: int,
        share: float,
    ) -> None:
        self._testbed = testbed
        self._readers = readers
        self._librdkafka = librdkafka
        self._rounds = rounds
        self._share = share

    def compare(self, cases: Sequence[Case]) -> Iterator[Comparison]:
        """Measure each cell with both servers."""
        for case in cases:
            goal = None if case.kind == "tail" else _GOAL
            try:
                with ExitStack() as topics:
                    servers = self._testbed.servers()
                    measure = self._follow if case.kind == "tail" else self._read
                    yield measure(case, servers, topics, goal)
            except LoadError as error:
                yield Comparison("consumers", case.described(), {}, goal, failure=str(error))

    def _read(
        self, case: Case, servers: Sequence[Server], topics: ExitStack, goal: float | None
    ) -> Comparison:
        records, cold = case.records(self._share), case.kind == "cold"
        names = [f"{case.kind}-{case.library}-{case.clients}-{n}" for n in range(self._rounds if cold else 1)]
        for server in servers:
            for name in names:
                topics.enter_context(topic(server, name, PARTITIONS))
                self._fill(server, name, records)
            if cold:
                other = topics.enter_context(topic(server, f"{names[0]}-other", PARTITIONS))
                self._fill(server, other, _OTHER_MEGABYTES * 1_000_000 // RECORD_BYTES)

        def read(server: Server, number: int) -> Load:
            if cold:
                evict_pages(server)
            return self._readers[case.library].consume(
                server.client_settings,
                names[number if cold else 0],
                clients=case.clients,
                partitions=PARTITIONS,
                records=records,
                record_bytes=RECORD_BYTES,
                seconds=_LIMIT_SECONDS,
            )

        return Comparison("consumers", case.described(), alternate(servers, self._rounds, read), goal)

    def _fill(self, server: Server, name: str, records: int) -> None:
        self._librdkafka.produce(
            server.client_settings,
            name,
            clients=_FILLERS,
            records=-(-records // _FILLERS),
            record_bytes=RECORD_BYTES,
            codec="none",
            seconds=_LIMIT_SECONDS,
        )

    def _follow(
        self, case: Case, servers: Sequence[Server], topics: ExitStack, goal: float | None
    ) -> Comparison:
        names = [f"tail-{case.clients}-{number}" for number in range(self._rounds)]
        for server in servers:
            for name in names:
                topics.enter_context(topic(server, name, PARTITIONS))

        def follow(server: Server, number: int) -> Load:
            return self._librdkafka.follow(
                server.client_settings,
                names[number],
                clients=case.clients,
                partitions=PARTITIONS,
                record_bytes=RECORD_BYTES,
                per_second=_TAIL_PER_SECOND,
                seconds=5 * self._share,
                limit=_LIMIT_SECONDS,
            )

        return Comparison("consumers", case.described(), alternate(servers, self._rounds, follow), goal)
