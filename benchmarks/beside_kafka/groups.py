"""How long a new consumer group needs until its partitions are assigned, with both group protocols.

All members start at the same time. The group has started when each partition has one member, the members have
equally many partitions, and nothing changes for a second, which does not count. Classic groups wait for
`group.initial.rebalance.delay.ms` on both servers, 3 s by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.beside_kafka.comparison import Comparison, alternate
from benchmarks.beside_kafka.load import Load, LoadError
from benchmarks.beside_kafka.servers import topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.beside_kafka.librdkafka_clients import LibrdkafkaClients
    from benchmarks.beside_kafka.servers import Server, Testbed

PROTOCOLS = ("classic", "consumer")
MEMBERS = (1, 10, 50)
PARTITIONS = 100
_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the matrix."""

    protocol: str
    clients: int

    def described(self) -> dict[str, Any]:
        """Return what differs between cells."""
        return {"protocol": self.protocol, "clients": self.clients, "partitions": PARTITIONS}


def default_cases() -> list[Case]:
    """Return all cells."""
    return [Case(protocol=protocol, clients=count) for protocol in PROTOCOLS for count in MEMBERS]


def quick_cases() -> list[Case]:
    """Return few cells."""
    return [Case(protocol="classic", clients=10)]


def compare(
    testbed: Testbed, cases: Sequence[Case], librdkafka: LibrdkafkaClients, *, rounds: int
) -> Iterator[Comparison]:
    """Measure each cell with both servers."""
    for case in cases:
        name = f"joined-{case.protocol}-{case.clients}"

        def start(server: Server, number: int, case: Case = case, name: str = name) -> Load:
            return librdkafka.join(
                {**server.client_settings, "group.protocol": case.protocol},
                name,
                group=f"{name}-{number}",
                clients=case.clients,
                partitions=PARTITIONS,
                seconds=_LIMIT_SECONDS,
            )

        try:
            servers = testbed.servers()
            with topic(servers[0], name, PARTITIONS), topic(servers[1], name, PARTITIONS):
                for server in servers:
                    librdkafka.find_coordinator(server.client_settings, name)
                samples = alternate(servers, rounds, start)
            yield Comparison("groups", case.described(), samples, unit="s")
        except LoadError as error:
            yield Comparison("groups", case.described(), {}, unit="s", failure=str(error))
