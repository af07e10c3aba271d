"""`siltstone demo`: run real data through the whole system and report."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from core.clock import SystemClock
from siltstone.cli.options import json_option, with_settings
from siltstone.console import ProgressDisplay, emit_json, report_console
from siltstone.context import check_store, create_data_dir
from siltstone.demo.report import render
from siltstone.demo.walkthrough import run_walkthrough
from siltstone.interrupts import Interrupts

if TYPE_CHECKING:
    from siltstone.settings.configuration import Settings


@click.command()
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    help="Use only this many flights, and a proportional part of the weather.  [default: all 336,776]",
)
@json_option
@with_settings("spark_master")
def command(settings: Settings, *, rows: int | None, as_json: bool) -> None:
    """Run a year of real flight data through the whole system and check every record.

    The demo starts an agent and produces the 336,776 flights that left New York City in 2013 and 26,115 hours
    of weather. It compacts them on Spark, reads everything back and compares it with an independent oracle.
    The exit code is 1 if there is any difference. The data is kept until the next run, which recreates the
    two topics.
    """
    create_data_dir(settings)
    check_store(settings)
    display = ProgressDisplay(SystemClock())
    with Interrupts() as interrupts:  # the agent, Spark and PostgreSQL are stopped on the way out
        report = run_walkthrough(
            settings, display, rows=rows, options=_options(settings), interrupts=interrupts
        )
    if as_json:
        emit_json(report.as_dict())
    else:
        report_console().print(render(report))
    if report.differences:
        click.get_current_context().exit(1)


def _options(settings: Settings) -> str:
    """Return the options with which another command finds the data; a catalog's URL may hold a password."""
    arguments = ["--data-dir", str(settings.data_dir)]
    for name in ("object_store", "s3_endpoint", "s3_region"):
        value = getattr(settings, name)
        if value is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    catalog = "" if settings.catalog is None else " --catalog …"
    return shlex.join(arguments) + catalog
