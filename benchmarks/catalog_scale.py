"""How many files a catalog commits from many agents, and what limits it.

    python -m benchmarks.catalog_scale [--json] [--quick] [--agents N …] [--partitions N …] [--rate R]
                                       [--readers N] [--apart] [--rounds N] [--hour]
                                       [--catalog postgresql://…]

Every agent is a session that commits and announces files one after the other, without data, and a watcher
of commits. `--readers` of the agents (one by default) have readers, which wait for ten partitions each:
of those to which their agent commits, or, with `--apart`, to which another one does. A file has one
section for each of its partitions. `disjoint` agents have partitions of their own, `shared` agents all
commit to the same ones. With `idempotent`, every section is a batch of an idempotent producer. The load
comes from processes on the same machine, which compete with PostgreSQL for its cores; so look at
processor times to extrapolate.

- `commits_s`, `rows_s`: files and sections per second. `p50_ms`, `p99_ms`: duration of a commit. A figure is
  the median of the rounds; `least_s` and `most_s` are the least and the greatest `commits_s`.
- `of_plain`: `rows_s` divided by that of the limit, which was measured right after it: sessions that update
  and insert the same rows in copies of the tables, in one round trip, and check nothing.
- `wal_bytes`: WAL per section, without images of full pages. `image_bytes`: those images, per section.
- `pg_ms`: processor time of PostgreSQL per commit, with its announcement. `watchers_ms`: that of all watchers
  per commit. `load_ms`: that of the sessions.
- `notify_bytes`: bytes of notifications per commit. `connections`: to the catalog, during the case.

With `--rate`, each agent commits that many files per second; otherwise as many as it can. `--hour` commits an
hour's worth of one agent as fast as it can, four files a second with 100 partitions each and idempotent
producers, and reports the sizes of the tables.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, median_low, quantiles
from typing import TYPE_CHECKING, Any

import click
import orjson
import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.parts.catalog_load import Case, Taken, serve_sessions, serve_watchers, worker
from benchmarks.parts.measuring import machine
from benchmarks.parts.postgres_server import PostgresServer
from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.open import EmbeddedPostgres, migrate_catalog, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from uuid import UUID

AGENTS = (1, 10, 50, 100)
PARTITIONS = (10, 100, 1000)
_HOUR_FILES = 4 * 3600
_HOUR_PARTITIONS = 100
_START_SECONDS = 0.2
_WARM_UP_FILES = 8  # of each session: psycopg prepares statements after some executions
_MAX_WARM_UP_SECONDS = 120.0
_SETTINGS = {
    "max_connections": "500",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "wal_keep_size": "8GB",  # pg_waldump reads the WAL of each case
}


class Cluster:
    """Workers with the sessions and watchers of all agents."""

    def __init__(
        self, server: PostgresServer, sessions: Sequence[Connection], watchers: Connection | None
    ) -> None:
        self._server = server
        self._sessions = sessions
        self._watchers = watchers

    def run(self, case: Case) -> list[Taken]:
        """Run a case in all sessions; return what each worker has taken."""
        case = replace(case, begin=time.monotonic() + _START_SECONDS)
        for pipe in self._sessions:
            pipe.send(case)
        return [pipe.recv() for pipe in self._sessions]

    def watched_seconds(self) -> float:
        """Return the processor time of all watchers so far."""
        if self._watchers is None:
            return 0.0
        self._watchers.send("processor time")
        return float(self._watchers.recv())

    def measure(self, case: Case) -> dict[str, Any]:
        """Run a case, then the same with plain rows; return the figures."""
        self.run(replace(case, seconds=case.seconds / 4))  # begins the leader epoch, and fills caches
        server, processor, watched = self._server, self._server.processor_seconds(), self.watched_seconds()
        begin = server.position()
        taken = self.run(case)
        end = server.position()
        processor = server.processor_seconds() - processor
        watched = self.watched_seconds() - watched
        record_bytes, image_bytes = server.wal_bytes(begin, end)
        figures = _figures(case, [seconds for each in taken for seconds in each.seconds])
        plain_case = replace(case, seconds=case.seconds / 2, plain=True)
        self.run(replace(plain_case, seconds=case.seconds / 4))
        plain_begin, plain_processor = server.position(), server.processor_seconds()
        plain_taken = self.run(plain_case)
        plain = _figures(plain_case, [seconds for each in plain_taken for seconds in each.seconds])
        plain_bytes, _ = server.wal_bytes(plain_begin, server.position())
        plain_processor = server.processor_seconds() - plain_processor
        commits, sections = figures["commits"], figures["commits"] * case.partitions
        return {
            "agents": case.sessions,
            "partitions": case.partitions,
            "shared": case.shared,
            "idempotent": case.idempotent,
            **figures,
            "of_plain": round(figures["rows_s"] / plain["rows_s"], 2),
            "wal_bytes": round(record_bytes / sections),
            "image_bytes": round(image_bytes / sections),
            "pg_ms": round(processor / commits * 1000, 2),
            "watchers_ms": round(watched / commits * 1000, 2),
            "load_ms": round(sum(each.processor_seconds for each in taken) / commits * 1000, 2),
            "notify_bytes": round(sum(each.notified_bytes for each in taken) / commits),
            "connections": server.value(
                b"SELECT count(*) FROM pg_stat_activity"
                b" WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ),
            "plain": {
                **plain,
                "wal_bytes": round(plain_bytes / plain["commits"] / case.partitions),
                "pg_ms": round(plain_processor / plain["commits"] * 1000, 2),
            },
        }


def _figures(case: Case, seconds: list[float]) -> dict[str, Any]:
    if len(seconds) < 2:
        raise RuntimeError(f"{len(seconds)} commits within {case.seconds:g} s: give a case more time")
    return {
        "commits": len(seconds),
        "commits_s": round(len(seconds) / case.seconds, 1),
        "rows_s": round(len(seconds) * case.partitions / case.seconds),
        "p50_ms": round(median(seconds) * 1000, 2),
        "p99_ms": round(quantiles(seconds, n=100)[98] * 1000, 2),
    }


def _hour(cluster: Cluster, server: PostgresServer, files: int) -> dict[str, Any]:
    """Commit the files of an hour with one session; return the growth of the tables in bytes."""
    before = server.table_bytes()
    case = Case(begin=0, seconds=3600, partitions=_HOUR_PARTITIONS, sessions=1, idempotent=True, files=files)
    taken = [seconds for each in cluster.run(case) for seconds in each.seconds]
    grown = {name: size - before[name] for name, size in server.table_bytes().items()}
    return {"files": len(taken), "seconds": round(sum(taken), 1), "grown_bytes": grown}


@contextmanager
def _cluster(
    server: PostgresServer,
    url: str,
    topic_ids: Sequence[UUID],
    agents: int,
    readers: int | None,
    apart: int = 0,
) -> Iterator[Cluster]:
    processes = min(os.cpu_count() or 1, agents)
    share = -(-agents // processes)
    with ExitStack() as opened:
        sessions = [
            opened.enter_context(
                worker(serve_sessions, url, topic_ids, range(first, min(first + share, agents)))
            )
            for first in range(0, agents, share)
        ]
        watching = (
            None
            if readers is None
            else opened.enter_context(worker(serve_watchers, url, topic_ids, readers, apart))
        )
        yield Cluster(server, sessions, watching)


def measure(  # the options of the command
    url: str,
    directory: Path | None,
    *,
    agents: Sequence[int] = AGENTS,
    partitions: Sequence[int] = PARTITIONS,
    seconds: float = 6.0,
    rate: float = 0.0,
    readers: int = 1,
    apart: bool = False,
    rounds: int = 1,
    hour_files: int = 0,
) -> dict[str, Any]:
    """Measure all cases on a server, each in some rounds; `readers` of the agents have readers."""
    clock = SystemClock()
    ids = SystemIds(clock)
    migrate_catalog(url, clock, ids)
    report: dict[str, Any] = {"benchmark": "catalog_scale", "machine": machine(), "rate": rate, "cases": []}
    conninfo = connection_string(url, DatabaseLimits(statement_seconds=600))
    with psycopg.connect(conninfo, autocommit=True) as connection:
        server = PostgresServer(connection, directory)
        for count in agents:
            with open_catalog(url, clock, ids) as catalog:
                topic_ids = [
                    catalog.topics.create(f"bench-{ids.new_uuid()}", max(partitions)).topic_id
                    for _ in range(count)
                ]
            server.copy_tables()
            with _cluster(server, url, topic_ids, count, readers, int(apart)) as cluster:
                cluster.run(
                    Case(
                        begin=0,
                        seconds=_MAX_WARM_UP_SECONDS,
                        partitions=min(partitions),
                        sessions=count,
                        idempotent=True,
                        files=_WARM_UP_FILES,
                    )
                )
                for size, shared, idempotent in _cases(count, partitions):
                    case = Case(
                        begin=0,
                        seconds=seconds,
                        partitions=size,
                        sessions=count,
                        shared=shared,
                        idempotent=idempotent,
                        rate=rate,
                    )
                    report["cases"].append(_summary([cluster.measure(case) for _ in range(rounds)]))
            server.drop_tables()
        if hour_files:
            with open_catalog(url, clock, ids) as catalog:
                topic_id = catalog.topics.create(f"bench-{ids.new_uuid()}", _HOUR_PARTITIONS).topic_id
            with _cluster(server, url, [topic_id], 1, None) as cluster:
                report["hour"] = _hour(cluster, server, hour_files)
    return report


def _summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of a case's figures over its rounds, and the range of its rate."""
    rates = [each["commits_s"] for each in rounds]
    return {**_medians(rounds), "least_s": min(rates), "most_s": max(rates), "rounds": len(rounds)}


def _medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure, also of those of the limit."""
    return {
        name: _medians([each[name] for each in rounds])
        if isinstance(value, dict)
        else median_low(each[name] for each in rounds)
        for name, value in rounds[0].items()
    }


def _cases(agents: int, partitions: Sequence[int]) -> list[tuple[int, bool, bool]]:
    """Return partitions, shared and idempotent of each case; a single agent shares nothing."""
    return [
        (size, shared, idempotent)
        for size in partitions
        for shared in ((False, True) if agents > 1 else (False,))
        for idempotent in (False, True)
    ]


_COLUMNS = (
    "commits_s",
    "least_s",
    "most_s",
    "rows_s",
    "p50_ms",
    "p99_ms",
    "of_plain",
    "wal_bytes",
    "image_bytes",
    "pg_ms",
    "watchers_ms",
    "load_ms",
    "notify_bytes",
    "connections",
)


def _print(report: dict[str, Any]) -> None:
    print(f"{'agents':>6} {'partitions':>10} {'case':<20} " + " ".join(f"{name:>12}" for name in _COLUMNS))
    for case in report["cases"]:
        what = ("shared" if case["shared"] else "disjoint") + (" idempotent" if case["idempotent"] else "")
        figures = " ".join(f"{case[name]:>12}" for name in _COLUMNS)
        print(f"{case['agents']:>6} {case['partitions']:>10} {what:<20} {figures}")
    if "hour" in report:
        hour = report["hour"]
        print(f"{hour['files']} files of {_HOUR_PARTITIONS} partitions in {hour['seconds']} s")
        for name, grown in hour["grown_bytes"].items():
            print(f"{name:<16} {grown / 2**20:8.1f} MiB")


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="Fewer agents and partitions, and short cases.")
@click.option("--agents", type=click.IntRange(1), multiple=True, help="Numbers of agents.")
@click.option("--partitions", type=click.IntRange(1), multiple=True, help="Partitions per file.")
@click.option("--rate", type=click.FloatRange(0), default=0.0, help="Files per second of each agent.")
@click.option("--readers", type=click.IntRange(0), default=1, help="Number of agents with readers.")
@click.option("--apart", is_flag=True, help="Let readers wait for partitions of other agents.")
@click.option("--seconds", type=click.FloatRange(0.1), help="Duration of a case.")
@click.option("--rounds", type=click.IntRange(1), default=1, help="Number of measurements of each case.")
@click.option("--hour", is_flag=True, help="Measure the sizes of tables after an hour's worth of one agent.")
@click.option(
    "--catalog", "url", help="URL of a PostgreSQL database on this machine, instead of a private one."
)
def main(  # the options of the command
    *,
    as_json: bool,
    quick: bool,
    agents: tuple[int, ...],
    partitions: tuple[int, ...],
    rate: float,
    readers: int,
    apart: bool,
    seconds: float | None,
    rounds: int,
    hour: bool,
    url: str | None,
) -> None:
    """Run the benchmark and print the report."""
    with ExitStack() as opened:
        directory = None
        if url is None:
            directory = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "catalog"
            url = make_conninfo(opened.enter_context(EmbeddedPostgres(directory, settings=_SETTINGS)).url)
        report = measure(
            url,
            directory,
            agents=agents or ((1, 4) if quick else AGENTS),
            partitions=partitions or ((10, 100) if quick else PARTITIONS),
            seconds=seconds or (0.8 if quick else 6.0),
            rate=rate,
            readers=readers,
            apart=apart,
            rounds=rounds,
            hour_files=(_HOUR_FILES // 100 if quick else _HOUR_FILES) if hour or quick else 0,
        )
    if as_json:
        print(orjson.dumps(report).decode())
    else:
        _print(report)


if __name__ == "__main__":
    main()
