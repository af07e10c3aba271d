"""Text report of a simulation: figures with one column for each policy, curves, and bills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.quantities import count
from cost_model.report.early_closes import COLUMNS, early_close_rows
from cost_model.report.figures import CURVES, FIGURES, bills, rates_text
from siltstone.console import report_console, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cost_model.engine.outcome import Outcome
    from cost_model.report.bill import Bill
    from cost_model.report.prices import Prices

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 60


def print_report(outcomes: Sequence[Outcome], prices: Prices) -> None:
    """Print the report on standard output."""
    console = report_console()
    workload = outcomes[0].workload
    console.print(f"{workload.name}: {workload.description}", style="bold", markup=False)
    console.print(_sentence(outcomes[0]), markup=False)
    console.print(figures_table(outcomes))
    for outcome in outcomes:
        _print_curves(console, outcome)
        _print_warning(console, outcome)
    console.print(early_closes_table(outcomes[0], prices))
    console.print(bills_table(outcomes, prices))
    for bill in bills(outcomes[0], prices):
        console.print(terms_table(bill, outcomes[0].policy if len(outcomes) > 1 else None))
    console.print(f"List prices of {prices.region} as of {prices.date}; check them before you rely on them:")
    for name, source in prices.sources.items():
        console.print(f"  {name}: {source}", markup=False, soft_wrap=True)


def _sentence(outcome: Outcome) -> str:
    workload = outcome.workload
    how = "every event" if outcome.exact else "aggregated"
    return (
        f"{count(workload.partition_count, 'partition')}, {count(workload.agents, 'agent')} in "
        f"{count(workload.zones, 'zone')}, "
        f"{workload.mb_per_second:,.1f} MB/s before compression; {_days(outcome)} simulated, {how}.\n"
        f"{rates_text(outcome.rates)} Figures are those of the last month."
    )


def _days(outcome: Outcome) -> str:
    return f"{outcome.days:g} day{'' if outcome.days == 1 else 's'}"


def figures_table(outcomes: Sequence[Outcome]) -> object:
    """Return the figures, with one column for each policy."""
    rows = [(figure.label, *(figure.write(figure.of(each)) for each in outcomes)) for figure in FIGURES]
    return table(None, "figure", *(f">{each.policy}" for each in outcomes), rows=rows)


def early_closes_table(outcome: Outcome, prices: Prices) -> object:
    """Return dollars for PUTs against the latency of producers, with one row for each budget."""
    rows = early_close_rows(outcome.workload, prices)
    return table("Early closes: cost against latency", *(f">{each}" for each in COLUMNS), rows=rows)


def bills_table(outcomes: Sequence[Outcome], prices: Prices) -> object:
    """Return the monthly cost of each system, with one column for each policy."""
    by_policy = [bills(each, prices) for each in outcomes]
    rows = [
        (each.name, *(f"{bills_of[index].dollars:,.0f}" for bills_of in by_policy))
        for index, each in enumerate(by_policy[0])
    ]
    return table("Dollars per month", "system", *(f">{each.policy}" for each in outcomes), rows=rows)


def terms_table(bill: Bill, policy: str | None) -> object:
    """Return the terms of one bill."""
    title = bill.name if policy is None else f"{bill.name}, policy {policy}"
    rows = [(line.term, line.calculation, f"{line.dollars:,.0f}") for line in bill.lines]
    rows.append(("total", "", f"{bill.dollars:,.0f}"))
    return table(title, "term", "calculation", ">dollars", rows=rows)


def _print_curves(console: Console, outcome: Outcome) -> None:
    console.print(f"Over {_days(outcome)}, policy {outcome.policy}", style="bold", markup=False)
    rows = []
    for curve in CURVES:
        values = [curve.of(sample) for sample in outcome.samples]
        rows.append(
            (curve.label, sparkline(values, _WIDTH), curve.write(min(values)), curve.write(max(values)))
        )
    console.print(table(None, "", "from 0 to its maximum", ">minimum", ">maximum", rows=rows))


def _print_warning(console: Console, outcome: Outcome) -> None:
    if outcome.rates.capacity < 1:
        console.print(
            f"Policy {outcome.policy}: planners take only {outcome.rates.capacity:.0%} of the files that "
            f"agents write, and the backlog grows: raise max_plan_files, or flush_interval_ms of agents.",
            style="yellow",
            markup=False,
        )


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve as one line of text, scaled from 0 to its maximum; a column shows its largest value."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return _BLOCKS[0] * min(width, len(values))
    columns = min(width, len(values))
    line = []
    for column in range(columns):
        begin = column * len(values) // columns
        end = max(begin + 1, (column + 1) * len(values) // columns)
        share = max(values[begin:end]) / highest
        line.append(_BLOCKS[min(len(_BLOCKS) - 1, int(share * (len(_BLOCKS) - 1) + 0.5))])
    return "".join(line)
