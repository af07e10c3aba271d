"""Compare an agent with a real Kafka broker, for clients with default settings.

    python -m benchmarks.beside_kafka [--quick | --full] [--json] [--only PART …] [filters]

The broker (KRaft, one node, one replica, `-Xmx512m`) and the agent (embedded catalog, local directory) are
processes on this machine, with default settings and their data on the same disk. They get the same load
alternately (A B A B). A row has the median of these samples, their least and greatest value, the ratio of the
medians, and the processor time of the server for each GB or transaction. All clients use acks=all.

Kafka acknowledges what is in its page cache. An agent acknowledges what is synced to its object store and
committed to its catalog.

With `--security SASL_SSL`, both servers have TLS with the same certificate, and clients log in with
SCRAM-SHA-512.

- `producers`: Kafka's own tool in one Java process, and librdkafka in a process for each producer. With
  `--put-delay`, each PUT to the object store takes so much longer.
- `consumers`: old records, recent ones, and those being produced.
- `groups`: time until a new group has its assignment.
- `cleaner`: processor time to clean the same log.
- `transactions`: transactions of 10 records over 3 partitions, and the time of their commits.

It needs Kafka's tools: `make kafka-tools`.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
import structlog

from benchmarks.beside_kafka import cleaner, consumers, groups, producers, transactions
from benchmarks.beside_kafka.comparison import table
from benchmarks.beside_kafka.java_process import JavaClients, JavaProcess, JavaTransactions
from benchmarks.beside_kafka.librdkafka_clients import LibrdkafkaClients
from benchmarks.beside_kafka.security import SecureListener
from benchmarks.beside_kafka.servers import Testbed
from benchmarks.beside_kafka.workers import Workers
from benchmarks.parts.measuring import machine
from tests.fixtures import kafka_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.beside_kafka.comparison import Comparison

_CLIENT_HEAP = "1g"  # 16 producers have 32 MiB of buffers each
_CLEANER_HEAP = "512m"
_SASL_SSL = "SASL_SSL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much to measure."""

    matrix: str
    rounds: int
    seconds: float
    share: float
    filters: Mapping[str, Sequence[Any]]

    def chosen(self, part: Any) -> list[Any]:  # noqa: ANN401  # a module with the cells of a part
        """Return the cells of a part that pass the filters."""
        cells = getattr(part, f"{self.matrix}_cases", part.default_cases)()
        return [cell for cell in cells if self._passes(cell.described())]

    def _passes(self, described: Mapping[str, Any]) -> bool:
        return all(
            not wanted or name not in described or described[name] in wanted
            for name, wanted in self.filters.items()
        )


class Run:
    """The processes of a run, and its parts."""

    def __init__(
        self, directory: Path, opened: ExitStack, options: Options, *, is_secure: bool = False
    ) -> None:
        self._directory = directory
        self._options = options
        self._opened = opened
        secure = SecureListener(directory / "certificates") if is_secure else None
        self._testbed = opened.enter_context(Testbed(directory, secure))
        self._librdkafka = LibrdkafkaClients(opened.enter_context(Workers()))
        self._java = JavaClients(opened.enter_context(JavaProcess("Loads.java", heap=_CLIENT_HEAP)))

    def producers(self) -> Iterator[Comparison]:
        """Compare producers."""
        options = self._options
        return producers.compare(
            self._testbed,
            options.chosen(producers),
            {each.name: each for each in (self._java, self._librdkafka)},
            rounds=options.rounds,
            seconds=options.seconds,
        )

    def consumers(self) -> Iterator[Comparison]:
        """Compare consumers."""
        readers = {each.name: each for each in (self._java, self._librdkafka)}
        comparison = consumers.Consumers(
            self._testbed,
            readers,
            self._librdkafka,
            rounds=self._options.rounds,
            share=self._options.share,
        )
        return comparison.compare(self._options.chosen(consumers))

    def groups(self) -> Iterator[Comparison]:
        """Compare the start of groups."""
        chosen = self._options.chosen(groups)
        return groups.compare(self._testbed, chosen, self._librdkafka, rounds=self._options.rounds)

    def cleaner(self) -> Iterator[Comparison]:
        """Compare cleaners."""
        options = self._options
        with JavaProcess("Cleaning.java", heap=_CLEANER_HEAP) as kafka:
            yield from cleaner.compare(
                self._directory / "cleaner",
                options.chosen(cleaner),
                kafka,
                rounds=options.rounds,
                share=options.share,
            )

    def transactions(self) -> Iterator[Comparison]:
        """Compare transactional producers."""
        options = self._options
        with JavaProcess("Transactions.java", heap=_CLIENT_HEAP) as java:
            yield from transactions.compare(
                self._testbed,
                options.chosen(transactions),
                {each.name: each for each in (JavaTransactions(java), self._librdkafka)},
                rounds=options.rounds,
                seconds=options.seconds,
            )


_PARTS: dict[str, Callable[[Run], Iterator[Comparison]]] = {
    "producers": Run.producers,
    "consumers": Run.consumers,
    "groups": Run.groups,
    "cleaner": Run.cleaner,
    "transactions": Run.transactions,
}


def measure(
    options: Options,
    parts: Sequence[str],
    found: list[dict[str, Any]],
    directory: Path | None,
    *,
    is_secure: bool = False,
) -> None:
    """Run parts, and add the figures of each cell to `found` at once, so that an early end loses none."""
    with tempfile.TemporaryDirectory(dir=directory) as name, ExitStack() as opened:
        run = Run(Path(name), opened, options, is_secure=is_secure)
        for part in parts:
            for comparison in _PARTS[part](run):
                found.append(comparison.figures())
                print(table([found[-1]]).splitlines()[-1], file=sys.stderr, flush=True)


def _end(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="Few cells, and little time for each: about two minutes.")
@click.option("--full", is_flag=True, help="All combinations of the parameters of producers: hours.")
@click.option("--only", "parts", type=click.Choice(list(_PARTS)), multiple=True, help="Run only these parts.")
@click.option("--library", type=click.Choice(producers.LIBRARIES), multiple=True, help="Only such clients.")
@click.option("--clients", type=int, multiple=True, help="Only cells with so many clients.")
@click.option("--partitions", type=int, multiple=True, help="Only cells with so many partitions.")
@click.option("--record-bytes", type=int, multiple=True, help="Only cells with records of this size.")
@click.option(
    "--codec", type=click.Choice(producers.CODECS), multiple=True, help="Only cells with this codec."
)
@click.option(
    "--put-delay", "put_delay_ms", type=int, multiple=True, help="Only cells with this many ms for each PUT."
)
@click.option("--kind", type=click.Choice(consumers.KINDS), multiple=True, help="Only such consumers.")
@click.option(
    "--security", type=click.Choice(["PLAINTEXT", _SASL_SSL]), default="PLAINTEXT", help="Of both servers."
)
@click.option("--rounds", type=int, help="Samples of each server.")
@click.option("--seconds", type=float, help="Approximate length of a producer's sample.")
@click.option(
    "--directory", type=click.Path(exists=True, path_type=Path), help="A directory on the disk to measure."
)
def main(
    *,
    as_json: bool,
    quick: bool,
    full: bool,
    parts: tuple[str, ...],
    security: str,
    rounds: int | None,
    seconds: float | None,
    directory: Path | None,
    **filters: Sequence[Any],
) -> None:
    """Run the benchmark and print the report."""
    if not kafka_tools.are_installed():
        raise click.ClickException(
            "Kafka's tools or Java are missing; install Java and run `make kafka-tools`"
        )
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    signal.signal(signal.SIGTERM, _end)
    options = Options(
        matrix="quick" if quick else "full" if full else "default",
        rounds=rounds or (2 if quick else 3),
        seconds=seconds or (1.0 if quick else 3.0),
        share=0.2 if quick else 1.0,
        filters=filters,
    )
    chosen = parts or tuple(_PARTS)
    found: list[dict[str, Any]] = []
    try:
        measure(options, chosen, found, directory, is_secure=security == _SASL_SSL)
    finally:
        if as_json:
            print(orjson.dumps({"benchmark": "beside_kafka", "machine": machine(), "rows": found}).decode())
        else:
            for part in chosen:
                print(f"\n{part}\n\n{table([row for row in found if row['part'] == part])}")


if __name__ == "__main__":
    main()
