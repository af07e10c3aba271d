"""How many sections several PostgreSQL servers commit, by the prototype of a sharded catalog.

    python -m benchmarks.catalog_shards [--json] [--quick] [--agents N …] [--partitions N …]

Every agent is a session that commits files one after the other, without data and notifications. A file has
one section for each of its partitions, each a batch of an idempotent producer. Agents have partitions of
their own. The layouts are measured in turns, and the table has medians over the rounds:

- `1 server`: all partitions in one shard, as today.
- `2 databases`: half of the partitions of each file in another database of the same server.
- `2 servers`: half of them in a database of another server.
- `2 servers, unmixed`: the same, but each file has partitions of one shard only, in turns.

The columns: `sections_s` with its least and greatest value, and `of_one`, its ratio to `1 server` in the same
round. `p50_ms`, `p99_ms`: duration of the commit of a file in all its shards. `pg_ms`: processor time of all
servers per 1,000 sections. `load_ms`: that of the agents. `cores`: of this machine that both use together.

Servers and agents share the cores of this machine, so two servers can be no faster once all cores are busy.
Look at `pg_ms` to extrapolate: it is the share of a server's core that a section takes.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import click
import orjson
import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.parts.catalog_load import RECORDS, file_of, run_threads, section_of, worker
from benchmarks.parts.measuring import machine
from benchmarks.parts.postgres_server import PostgresServer
from catalog.database.limits import DatabaseLimits
from catalog.model import ProducerStamp
from catalog.open import EmbeddedPostgres, migrate_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from prototypes.sharded_catalog import ShardedCommits, open_shards, sharded_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

    from catalog.model import FileCommit
    from core.ids import Ids

AGENTS = (1, 8)
PARTITIONS = (10, 100, 1000)
ONE = "1 server"
_UNMIXED = "2 servers, unmixed"
_START_SECONDS = 0.2
_MIN_FILES = 2  # of each agent in each case, however long they take
_PATIENT = DatabaseLimits(connect_seconds=60, lock_seconds=120)
_SETTINGS = {"max_connections": "300", "shared_buffers": "512MB", "max_wal_size": "8GB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Work of each agent from `begin` (a time of `time.monotonic`) on, for `seconds`."""

    begin: float
    seconds: float
    layout: str
    agents: int
    partitions: int


class Agent:
    """Session of one agent in the shards of one layout, with separate topics."""

    def __init__(self, urls: Sequence[str], ids: Ids, opened: ExitStack, number: int, *, mixed: bool) -> None:
        clock = SystemClock()
        shards = opened.enter_context(open_shards(urls, clock, ids, limits=_PATIENT))
        self._commits = opened.enter_context(closing(ShardedCommits(shards, clock, ids, retry_seconds=0)))
        self._ids = ids
        self._number = number
        self._mixed = mixed
        self._session_id = ids.new_uuid()
        shards.register(self._session_id, "benchmark")
        self._topic_ids = [
            shards.create_topic(shard.number, f"bench-{ids.new_uuid()}", max(PARTITIONS)).topic_id
            for shard in shards
        ]
        self._producer_id = 0
        self._files = 0
        self.taken: list[float] = []

    def run(self, case: Case) -> None:
        """Commit files; the building of their requests is not part of the durations."""
        self.taken = []
        self._producer_id = self._ids.new_uuid().int & (2**48 - 1)
        self._files = 0
        time.sleep(max(0.0, case.begin - time.monotonic()))
        while True:
            file = self._next_file(case.partitions)
            started = time.monotonic()
            if started >= case.begin + case.seconds and len(self.taken) >= _MIN_FILES:
                return
            self._commits.commit(file)
            self.taken.append(time.monotonic() - started)

    def _next_file(self, partitions: int) -> FileCommit:
        count = len(self._topic_ids)
        chosen = range(count) if self._mixed else [(self._number + self._files) % count]
        turn = self._files if self._mixed else self._files // count
        stamp = ProducerStamp(producer_id=self._producer_id, producer_epoch=0, base_sequence=turn * RECORDS)
        self._files += 1
        sections = [
            section_of(self._topic_ids[shard], partition, stamp, turn)
            for index, shard in enumerate(chosen)
            for partition in range(partitions // len(chosen) + (index < partitions % len(chosen)))
        ]
        file = file_of(self._session_id, self._ids, sections)
        return replace(file, object_name=sharded_name(self._session_id, file.file_id, chosen))


def serve_agents(pipe: Connection, layouts: Mapping[str, Sequence[str]], numbers: range) -> None:
    """Run the cases that come over `pipe` with these agents; send durations and processor time."""
    ids = SystemIds(SystemClock())
    with ExitStack() as opened:
        agents = {
            layout: [Agent(urls, ids, opened, number, mixed=layout != _UNMIXED) for number in numbers]
            for layout, urls in layouts.items()
        }
        pipe.send(None)
        while (case := pipe.recv()) is not None:
            before = time.process_time()
            active = [
                each
                for number, each in zip(numbers, agents[case.layout], strict=True)
                if number < case.agents
            ]
            run_threads([threading.Thread(target=each.run, args=(case,)) for each in active])
            pipe.send(([seconds for each in active for seconds in each.taken], time.process_time() - before))


class Cluster:
    """Workers with all agents, and the servers."""

    def __init__(self, servers: Sequence[PostgresServer], workers: Sequence[Connection]) -> None:
        self._servers = servers
        self._workers = workers

    def run(self, case: Case) -> dict[str, float]:
        """Run a case; return its figures."""
        before = self._server_seconds()
        case = replace(case, begin=time.monotonic() + _START_SECONDS)
        for pipe in self._workers:
            pipe.send(case)
        received = [pipe.recv() for pipe in self._workers]
        elapsed = time.monotonic() - case.begin
        server_seconds = self._server_seconds() - before
        seconds = [each for taken, _ in received for each in taken]
        load_seconds = sum(each for _, each in received)
        sections = len(seconds) * case.partitions
        return {
            "files_s": len(seconds) / elapsed,
            "sections_s": sections / elapsed,
            "p50_ms": median(seconds) * 1000,
            "p99_ms": quantiles(seconds, n=100)[98] * 1000,
            "pg_ms": server_seconds / sections * 1e6,
            "load_ms": load_seconds / sections * 1e6,
            "cores": (server_seconds + load_seconds) / elapsed,
        }

    def _server_seconds(self) -> float:
        return sum(server.processor_seconds() for server in self._servers)


def measure(
    layouts: Mapping[str, Sequence[str]],
    *,
    agents: Sequence[int] = AGENTS,
    partitions: Sequence[int] = PARTITIONS,
    seconds: float = 3.0,
    rounds: int = 3,
) -> dict[str, Any]:
    """Measure all cases; `layouts` has the addresses of the shards of each layout, empty catalogs."""
    report: dict[str, Any] = {
        "benchmark": "catalog_shards",
        "machine": machine(),
        "rounds": rounds,
        "cases": [],
    }
    processes = min(os.cpu_count() or 1, max(agents))
    share = -(-max(agents) // processes)
    with ExitStack() as opened:
        urls = {
            psycopg.conninfo.conninfo_to_dict(url)["host"]: url for each in layouts.values() for url in each
        }
        servers = [
            PostgresServer(opened.enter_context(psycopg.connect(url, autocommit=True)), None)
            for url in urls.values()
        ]
        workers = [
            opened.enter_context(worker(serve_agents, layouts, range(first, min(first + share, max(agents)))))
            for first in range(0, max(agents), share)
        ]
        cluster = Cluster(servers, workers)
        for count in agents:
            for size in partitions:
                case = Case(begin=0, seconds=seconds, layout="", agents=count, partitions=size)
                report["cases"] += _compare(cluster, layouts, case, rounds)
    return report


def _compare(
    cluster: Cluster, layouts: Mapping[str, Sequence[str]], case: Case, rounds: int
) -> list[dict[str, Any]]:
    """Measure the layouts in turns, after a short run of each; return the figures of each."""
    for layout in layouts:
        cluster.run(replace(case, layout=layout, seconds=case.seconds / 4))
    taken: dict[str, list[dict[str, float]]] = {layout: [] for layout in layouts}
    for _ in range(rounds):
        for layout in layouts:
            taken[layout].append(cluster.run(replace(case, layout=layout)))
    compared = []
    for layout, runs in taken.items():
        rates = [run["sections_s"] for run in runs]
        compared.append(
            {
                "agents": case.agents,
                "partitions": case.partitions,
                "layout": layout,
                **{name: median(run[name] for run in runs) for name in runs[0]},
                "least_sections_s": min(rates),
                "greatest_sections_s": max(rates),
                "of_one": median(
                    rate / one["sections_s"] for rate, one in zip(rates, taken[ONE], strict=True)
                ),
            }
        )
    return compared


def _print(report: dict[str, Any]) -> None:
    names = ("sections/s", "range", "of one", "p50 ms", "p99 ms", "pg ms/1000", "load ms/1000", "cores")
    print(f"{'agents':>6} {'partitions':>10} {'layout':<20} " + " ".join(f"{name:>15}" for name in names))
    for case in report["cases"]:
        figures = (
            f"{case['sections_s']:,.0f}",
            f"{case['least_sections_s']:,.0f}-{case['greatest_sections_s']:,.0f}",
            f"{case['of_one']:.2f}",
            f"{case['p50_ms']:.1f}",
            f"{case['p99_ms']:.1f}",
            f"{case['pg_ms']:.1f}",
            f"{case['load_ms']:.1f}",
            f"{case['cores']:.2f}",
        )
        print(
            f"{case['agents']:>6} {case['partitions']:>10} {case['layout']:<20} "
            + " ".join(f"{figure:>15}" for figure in figures)
        )


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="Fewer agents and partitions, and short cases.")
@click.option("--agents", type=click.IntRange(1), multiple=True, help="Numbers of agents.")
@click.option(
    "--partitions", type=click.IntRange(2, max(PARTITIONS)), multiple=True, help="Partitions per file."
)
@click.option("--seconds", type=click.FloatRange(0.1), help="Duration of a case.")
@click.option("--rounds", type=click.IntRange(1), help="Number of rounds.")
def main(
    *,
    as_json: bool,
    quick: bool,
    agents: tuple[int, ...],
    partitions: tuple[int, ...],
    seconds: float | None,
    rounds: int | None,
) -> None:
    """Run the benchmark and print the report."""
    clock = SystemClock()
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        first, second = (
            opened.enter_context(EmbeddedPostgres(directory / name, settings=_SETTINGS)).url
            for name in ("a", "b")
        )
        with psycopg.connect(first, autocommit=True) as connection:
            connection.execute(b"CREATE DATABASE other")
        other = make_conninfo(first, dbname="other")
        for url in (first, second, other):
            migrate_catalog(url, clock, SystemIds(clock))
        layouts = {
            ONE: [first],
            "2 databases": [first, other],
            "2 servers": [first, second],
            _UNMIXED: [first, second],
        }
        report = measure(
            layouts,
            agents=agents or ((1, 4) if quick else AGENTS),
            partitions=partitions or ((10, 100) if quick else PARTITIONS),
            seconds=seconds or (0.8 if quick else 3.0),
            rounds=rounds or (1 if quick else 3),
        )
    if as_json:
        print(orjson.dumps(report).decode())
    else:
        _print(report)


if __name__ == "__main__":
    main()
