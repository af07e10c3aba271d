"""Many schedules on several cores, and the rate of schedules.

    python -m tests.simulation [--schedules 3000] [--first 0] [--processes 2] [--json]

The exit code is 1 if an invariant did not hold in one of them; SILTSTONE_SEED runs that one again
(`test_simulation.py`). Each process has its own database on one server, and takes every n-th seed.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path

import click
import orjson

from catalog.open import EmbeddedPostgres
from tests.fixtures.postgres import NOT_DURABLE, PostgresForTests
from tests.simulation.seed_runner import run_seeds


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.option("--schedules", type=click.IntRange(min=1), default=3000, help="Number of schedules.")
@click.option("--first", default=0, help="First seed.")
@click.option("--processes", type=click.IntRange(min=1), default=os.cpu_count() or 1, help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(*, schedules: int, first: int, processes: int, as_json: bool) -> None:
    """Run the schedules and print the result."""
    seeds = range(first, first + schedules)
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedPostgres(Path(directory) / "catalog", settings=NOT_DURABLE) as server,
        multiprocessing.get_context("spawn").Pool(processes) as pool,
    ):
        postgres = PostgresForTests(server.url)
        work = [(postgres.create(), seeds[number::processes]) for number in range(processes)]
        results = pool.starmap(run_seeds, work)
    violations = [each for result in results for each in result.violations]
    done = sum(result.schedules for result in results)
    report = {
        "schedules": done,
        "processes": processes,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "schedules_a_minute": round(sum(60 * result.schedules / result.seconds for result in results)),
        "python_ms_each": round(1000 * sum(result.processor_seconds for result in results) / done, 1),
        "calls_each": round(sum(result.calls for result in results) / done),
        "violations": violations,
    }
    for each in violations:
        click.echo(each, err=True)
    if as_json:
        click.echo(orjson.dumps(report))
    else:
        click.echo(
            f"{done:,} schedules, {report['schedules_a_minute']:,} a minute in {processes} processes on "
            f"{report['cores']} cores (load {report['load']}); each made {report['calls_each']} calls, "
            f"and took {report['python_ms_each']} ms of CPU time outside PostgreSQL"
        )
    if violations:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
