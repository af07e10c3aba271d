"""Producers with default settings, as fast as they can.

Each sample takes about `seconds`. The number of its records follows from the rate of the one before. The
first ones, which warm up client and server, do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.beside_kafka.comparison import Comparison, alternate
from benchmarks.beside_kafka.load import Load, LoadError
from benchmarks.beside_kafka.servers import topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.beside_kafka.servers import Server, Testbed

LIBRARIES = ("java", "librdkafka")
COUNTS = (1, 4, 16)
PARTITIONS = (1, 12, 100)
RECORD_BYTES = (100, 1024)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PUT_DELAYS = (0, 30, 100)
_GOAL, _GOAL_WITH_DELAY = 1.0, 0.5
_FIRST_RECORDS = 2000
_GROWTH = 10
_TIMES_LONGER = 8  # than planned, after which a sample has failed
_GRACE_SECONDS = 45.0


class ProducingClients(Protocol):
    """Producers of one kind."""

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
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the matrix."""

    library: str
    clients: int = 1
    partitions: int = 12
    record_bytes: int = 1024
    codec: str = "none"
    put_delay_ms: int = 0

    def described(self) -> dict[str, Any]:
        """Return what differs between cells."""
        return {
            "library": self.library,
            "clients": self.clients,
            "partitions": self.partitions,
            "record_bytes": self.record_bytes,
            "codec": self.codec,
            "put_delay_ms": self.put_delay_ms,
        }


def quick_cases() -> list[Case]:
    """Return few cells."""
    return [
        Case(library="java"),
        Case(library="librdkafka"),
        Case(library="java", put_delay_ms=30),
    ]


def default_cases() -> list[Case]:
    """Return cells that vary the parameters one or two at a time."""
    cases = []
    for library in LIBRARIES:
        cases += [Case(library=library, clients=count) for count in COUNTS]
        cases += [
            Case(library=library, partitions=1),
            Case(library=library, partitions=100),
            Case(library=library, clients=16, partitions=100),
        ]
        cases += [Case(library=library, clients=count, record_bytes=100) for count in (1, 16)]
        cases += [Case(library=library, clients=4, codec=codec) for codec in CODECS[1:]]
        for delay in PUT_DELAYS[1:]:
            cases += [Case(library=library, clients=count, put_delay_ms=delay) for count in COUNTS]
            cases.append(Case(library=library, partitions=1, put_delay_ms=delay))
    return by_delay(cases)


def full_cases() -> list[Case]:
    """Return the full cross product."""
    return by_delay(
        Case(
            library=library,
            clients=count,
            partitions=partitions,
            record_bytes=size,
            codec=codec,
            put_delay_ms=delay,
        )
        for library, count, partitions, size, codec, delay in product(
            LIBRARIES, COUNTS, PARTITIONS, RECORD_BYTES, CODECS, PUT_DELAYS
        )
    )


def by_delay(cases: Iterator[Case] | Sequence[Case]) -> list[Case]:
    """Return the cells in an order that needs few agents."""
    return sorted(cases, key=lambda each: each.put_delay_ms)


def compare(
    testbed: Testbed,
    cases: Sequence[Case],
    clients: Mapping[str, ProducingClients],
    *,
    rounds: int,
    seconds: float,
) -> Iterator[Comparison]:
    """Measure each cell with both servers."""
    for number, case in enumerate(cases):
        cell = _Cell(case, clients[case.library], f"produced-{number}", seconds)
        goal = _GOAL_WITH_DELAY if case.put_delay_ms else _GOAL
        try:
            servers = testbed.servers(case.put_delay_ms)
            with (
                topic(servers[0], cell.topic, case.partitions),
                topic(servers[1], cell.topic, case.partitions),
            ):
                for server in servers:
                    cell.warm_up(server)
                samples = alternate(servers, rounds, cell.sample)
            yield Comparison("producers", case.described(), samples, goal)
        except LoadError as error:
            yield Comparison("producers", case.described(), {}, goal, failure=str(error))


class _Cell:
    """One cell, and the rate of each server in it."""

    def __init__(self, case: Case, clients: ProducingClients, topic_name: str, seconds: float) -> None:
        self._case = case
        self._clients = clients
        self.topic = topic_name
        self._seconds = seconds
        self._per_second: dict[str, float] = {}

    def warm_up(self, server: Server) -> None:
        """Find the rate of a server, with loads that are sized like samples."""
        records = max(_FIRST_RECORDS // self._case.clients, 100)
        self._load(server, records)  # the first one is slow
        while self._load(server, records).seconds < self._seconds / 2:
            records = min(self._planned(server), records * _GROWTH)

    def sample(self, server: Server, _number: int) -> Load:
        """Produce for about the wanted time."""
        return self._load(server, self._planned(server))

    def _planned(self, server: Server) -> int:
        return max(int(self._per_second[server.name] * self._seconds), 100)

    def _load(self, server: Server, records: int) -> Load:
        try:
            load = self._clients.produce(
                server.client_settings,
                self.topic,
                clients=self._case.clients,
                records=records,
                record_bytes=self._case.record_bytes,
                codec=self._case.codec,
                seconds=self._seconds * _TIMES_LONGER + _GRACE_SECONDS,
            )
        except LoadError as error:
            raise LoadError(f"{server.name}, {records} records of each client: {error}") from error
        self._per_second[server.name] = records / load.seconds
        return load
