"""`siltstone simulate`: resources and cost of a workload over time, under the planner's own policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from core.clock import SystemClock
from core.errors import InvalidInputError
from cost_model.engine.events import simulate_events
from cost_model.engine.policies import policy_from_file, policy_from_text
from cost_model.engine.rounds import simulate_rounds
from cost_model.report.early_closes import early_close_report
from cost_model.report.figures import policy_report
from cost_model.report.plot import draw, require_matplotlib
from cost_model.report.prices import load_prices
from cost_model.workload.definition import load_workload, named_workloads
from cost_model.workload.from_catalog import recent_workload
from siltstone.cli.compaction.simulation_report import print_report
from siltstone.cli.options import json_option, with_settings
from siltstone.console import ProgressDisplay, emit_json
from siltstone.context import open_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from cost_model.engine.outcome import Outcome
    from cost_model.workload.definition import Workload
    from planner.settings import PlannerSettings
    from siltstone.settings.configuration import Settings

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("workload", required=False)
@click.option(
    "--live", is_flag=True, help="Derive the workload from what the catalog committed in the last day."
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    help="Simulated days.  [default: as the workload says]",
)
@click.option(
    "--policy",
    "policies",
    type=_PATH,
    multiple=True,
    metavar="FILE",
    help="TOML file of planner settings to compare with the current ones. May be repeated.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE[,…]",
    help="Planner settings to compare with the current ones. May be repeated.",
)
@click.option("--prices", type=_PATH, metavar="FILE", help="TOML file of prices.  [default: list prices]")
@click.option("--plot", type=_PATH, metavar="FILE", help="Draw the curves into this PNG file.")
@click.option("--exact", is_flag=True, help="Simulate every file, job and record; for small workloads.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random numbers of --exact.")
@json_option
@with_settings()
def command(
    settings: Settings,
    *,
    workload: str | None,
    live: bool,
    days: float | None,
    policies: tuple[Path, ...],
    changes: tuple[str, ...],
    prices: Path | None,
    plot: Path | None,
    exact: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Simulate the resources and the cost of a workload over time.

    WORKLOAD is a TOML file or the name of a built-in workload: changelog, clickstream, defaults, platform,
    trial. The simulation plans with the code and the current settings of the planner. Each --policy and --set
    adds a column to compare with. Nothing is changed.
    """
    if plot is not None:
        require_matplotlib()
    listed = load_prices(prices)
    chosen = _workload(settings, workload, live=live)
    if days is not None:
        chosen = replace(chosen, days=days)
    display = ProgressDisplay(SystemClock(), quiet=as_json)
    outcomes: list[Outcome] = []
    for name, policy in _policies(settings, policies, changes):
        with display.phase(f"Simulating {chosen.name}, policy {name}", total=1000) as advance:
            progress = _Steps(advance)
            if exact:
                outcomes.append(simulate_events(chosen, policy, name, seed=seed, progress=progress))
            else:
                outcomes.append(simulate_rounds(chosen, policy, name, progress=progress))
    if as_json:
        emit_json(
            {
                "workload": chosen.name,
                "policies": [policy_report(each, listed) for each in outcomes],
                "early_closes": early_close_report(chosen, listed),
            }
        )
    else:
        print_report(outcomes, listed)
    if plot is not None:
        draw(outcomes, listed, plot)


class _Steps:
    """Converter of the finished fraction of a simulation into steps of one thousandth."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._done = 0

    def __call__(self, part: float) -> None:
        done = int(part * 1000)
        self._advance(done - self._done)
        self._done = done


def _workload(settings: Settings, named: str | None, *, live: bool) -> Workload:
    if live == (named is not None):
        raise InvalidInputError(
            "simulate needs either a workload or --live",
            remedy=f"name a TOML file or one of {', '.join(named_workloads())}, or give --live",
        )
    if named is not None:
        is_file = named.endswith(".toml") or "/" in named
        return load_workload(named, Path(named) if is_file else None)
    with open_context(settings, check_binding=False, create=False) as context:
        return recent_workload(context.catalog)


def _policies(
    settings: Settings, files: tuple[Path, ...], changes: tuple[str, ...]
) -> list[tuple[str, PlannerSettings]]:
    """Return the current planner settings and those to compare with, each with its name.

    They are those of a watcher, which lets small amounts of new data wait.
    """
    base = replace(settings.planner, paced=True)
    return [
        ("current", base),
        *((file.stem, policy_from_file(file, base)) for file in files),
        *((text, policy_from_text(text, base)) for text in changes),
    ]
