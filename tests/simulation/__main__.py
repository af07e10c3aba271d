"""Many schedules on several cores, and how many that was a minute.

    python -m tests.simulation [--schedules 3000] [--first 0] [--processes 2] [--json]

The exit code is 1 when an invariant did not hold in one of them; SILTSTONE_SEED runs that one again
(`test_simulation.py`). Each process has a database of its own, on one server, and takes every n-th seed.
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
from tests.simulation.shares import run_share


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.option("--schedules", type=click.IntRange(min=1), default=3000, help="How many.")
@click.option("--first", default=0, help="The first seed.")
@click.option("--processes", type=click.IntRange(min=1), default=os.cpu_count() or 1, help="Side by side.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
def main(*, schedules: int, first: int, processes: int, as_json: bool) -> None:
    """Run and print."""
    seeds = range(first, first + schedules)
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedPostgres(Path(directory) / "catalog", settings=NOT_DURABLE) as server,
        multiprocessing.get_context("spawn").Pool(processes) as pool,
    ):
        postgres = PostgresForTests(server.url)
        work = [(postgres.create(), seeds[number::processes]) for number in range(processes)]
        shares = pool.starmap(run_share, work)
    violations = [each for share in shares for each in share.violations]
    done = sum(share.schedules for share in shares)
    report = {
        "schedules": done,
        "processes": processes,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "schedules_a_minute": round(sum(60 * share.schedules / share.seconds for share in shares)),
        "python_ms_each": round(1000 * sum(share.processor_seconds for share in shares) / done, 1),
        "calls_each": round(sum(share.calls for share in shares) / done),
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
            f"and took {report['python_ms_each']} ms of a processor besides PostgreSQL's"
        )
    if violations:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
