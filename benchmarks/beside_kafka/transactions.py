"""Sequential transactions of each producer with default settings, as fast as possible.

A transaction has 10 records over 3 partitions. The time of a commit begins with the call, so it includes what
was not sent before. Each sample takes about `seconds`: the number of transactions follows from the rate of
the one before. The first ones, which warm up client and server, do not count. `statements_per_end` are the
statements of the catalog for each EndTxn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.beside_kafka.comparison import Comparison, alternate
from benchmarks.beside_kafka.load import Load, LoadError
from benchmarks.beside_kafka.servers import topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.beside_kafka.servers import Server, Testbed

LIBRARIES = ("java", "librdkafka")
COUNTS = (1, 4, 16)
PARTITIONS = 3
RECORDS = 10
RECORD_BYTES = 100
_GOAL = 1.0
_FIRST = 10
_LIMIT_SECONDS = 120.0


class TransactingClients(Protocol):
    """Transactional producers of one kind."""

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
        """Run as many transactions with each client, one client at a time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the matrix."""

    library: str
    clients: int = 1

    def described(self) -> dict[str, Any]:
        """Return what differs between cells."""
        return {"library": self.library, "clients": self.clients}


def default_cases() -> list[Case]:
    """Return all cells."""
    return [Case(library=library, clients=count) for library in LIBRARIES for count in COUNTS]


def quick_cases() -> list[Case]:
    """Return few cells."""
    return [Case(library=library, clients=4) for library in LIBRARIES]


def compare(
    testbed: Testbed,
    cases: Sequence[Case],
    clients: Mapping[str, TransactingClients],
    *,
    rounds: int,
    seconds: float,
) -> Iterator[Comparison]:
    """Measure each cell with both servers."""
    for case in cases:
        name = f"transactions-{case.library}-{case.clients}"
        per_second: dict[str, float] = {}

        def transact(
            server: Server, _: int, case: Case = case, name: str = name, rates: dict[str, float] = per_second
        ) -> Load:
            count = max(int(rates.get(server.name, _FIRST) * seconds), _FIRST)
            try:
                load = clients[case.library].transact(
                    server.client_settings,
                    name,
                    clients=case.clients,
                    partitions=PARTITIONS,
                    transactions=count,
                    records=RECORDS,
                    record_bytes=RECORD_BYTES,
                    seconds=_LIMIT_SECONDS,
                )
            except LoadError as error:
                raise LoadError(f"{server.name}, {count} transactions of each client: {error}") from error
            rates[server.name] = count / load.seconds
            return load

        try:
            servers = testbed.servers()
            with topic(servers[0], name, PARTITIONS), topic(servers[1], name, PARTITIONS):
                alternate(servers, 2, transact)
                samples = alternate(servers, rounds, transact)
            yield Comparison("transactions", case.described(), samples, _GOAL, unit="tx/s")
        except LoadError as error:
            yield Comparison("transactions", case.described(), {}, _GOAL, unit="tx/s", failure=str(error))
