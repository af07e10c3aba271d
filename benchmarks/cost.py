"""Simulate the named workloads and write their figures to docs/explanation/cost.md: `make cost`.

The table of early closes is written each time.

    python -m benchmarks.cost [trial|changelog|clickstream|platform …]
    python -m benchmarks.cost --beside-reality [--help] [OPTIONS …]

Each workload takes a few minutes. Arguments select workloads; the default is all of them. `--beside-reality`
compares the simulation with a running system instead (`benchmarks.beside_reality.run`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import click

from benchmarks.beside_reality import run as beside_reality
from cost_model.engine.policies import policy_from_text
from cost_model.engine.rounds import simulate_rounds
from cost_model.report.document import markdown, with_block
from cost_model.report.early_closes import early_close_markdown
from cost_model.report.prices import load_prices
from cost_model.workload.definition import load_workload
from planner.settings import PlannerSettings

WORKLOADS: Final = ("trial", "changelog", "clickstream", "platform")
COMPARED: Final = {"platform": "section_bytes=1"}
"""Policy to compare with the default, by workload: it never merges short extents."""

BESIDE_REALITY: Final = "--beside-reality"
_DOCUMENT: Final = Path(__file__).parent.parent / "docs" / "explanation" / "cost.md"


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(WORKLOADS), metavar="[WORKLOAD]...")
def main(names: tuple[str, ...]) -> None:
    """Write the figures of the named workloads, or of all."""
    prices = load_prices()
    table = early_close_markdown(load_workload("defaults"), prices)
    _DOCUMENT.write_text(with_block(_DOCUMENT.read_text(), "early closes", table))
    for name in names or WORKLOADS:
        workload, base = load_workload(name), PlannerSettings(paced=True)
        policies = [("default", base)]
        if name in COMPARED:
            policies.append(("unclustered", policy_from_text(COMPARED[name], base)))
        begun, busy = time.perf_counter(), time.process_time()
        outcomes = [simulate_rounds(workload, policy, label) for label, policy in policies]
        text = with_block(_DOCUMENT.read_text(), name, markdown(outcomes, prices))
        _DOCUMENT.write_text(text)
        wall, processor = time.perf_counter() - begun, time.process_time() - busy
        took = f"{wall:.0f} s ({processor:.0f} s of processor)"
        print(f"{name}: {len(policies)} policies, {workload.days:g} days in {took}")


if __name__ == "__main__":
    if BESIDE_REALITY in sys.argv:
        sys.exit(beside_reality.main([each for each in sys.argv[1:] if each != BESIDE_REALITY]))
    main()
