"""What early closes cost and gain: dollars per gigabyte against the latency of producers, by budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cost_model.rates.produce_latency import produce_figures, with_budget

if TYPE_CHECKING:
    from cost_model.report.prices import Prices
    from cost_model.workload.definition import Workload

BUDGETS: Final = (0, 500, 2000, 8000)
"""Values of `early_puts_per_gb` that are compared with that of the workload."""

COLUMNS: Final = (
    "early_puts_per_gb",
    "PUT/s of an agent",
    "PUT $/GB",
    "closed early",
    "p50 ms",
    "p99 ms",
    "acknowledged",
)


def early_close_report(workload: Workload, prices: Prices) -> list[dict[str, Any]]:
    """Return a JSON object for each budget. Dollars are those of PUTs on S3 Standard, per 10^9 bytes."""
    rows = []
    for budget in sorted({*BUDGETS, workload.early_puts_per_gb}):
        figures = produce_figures(with_budget(workload, budget))
        rows.append(
            {
                "early_puts_per_gb": budget,
                "puts_per_second": figures.puts_per_second,
                "dollars_per_gb": figures.puts_per_gb * prices.s3_standard.put_thousand / 1000,
                "early_share": figures.early_share,
                "p50_ms": figures.p50 * 1000,
                "p99_ms": figures.p99 * 1000,
                "acknowledged_share": figures.acknowledged,
            }
        )
    return rows


def early_close_rows(workload: Workload, prices: Prices) -> list[tuple[str, ...]]:
    """Return the rows of a table with `COLUMNS`."""
    return [
        (
            f"{row['early_puts_per_gb']:,}",
            f"{row['puts_per_second']:.1f}",
            f"{row['dollars_per_gb']:.4f}",
            f"{row['early_share']:.0%}",
            f"{row['p50_ms']:,.0f}",
            f"{row['p99_ms']:,.0f}",
            f"{row['acknowledged_share']:.0%}",
        )
        for row in early_close_report(workload, prices)
    ]


def early_close_markdown(workload: Workload, prices: Prices) -> str:
    """Return the table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---:|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row)} |" for row in early_close_rows(workload, prices)]
    return "\n".join(lines)
