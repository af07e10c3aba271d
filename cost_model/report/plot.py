"""Curves of a simulation as a PNG, drawn by matplotlib if it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.errors import InvalidInputError
from cost_model.report.figures import CURVES, amplification_over_time, bills

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cost_model.engine.outcome import Outcome
    from cost_model.report.prices import Prices


def require_matplotlib() -> None:
    """Raise InvalidInputError with a remedy if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - an optional dependency
    except ImportError:
        raise InvalidInputError(
            "--plot needs matplotlib, which is not installed",
            remedy="install siltstone[plot], or leave it out",
        ) from None


def draw(outcomes: Sequence[Outcome], prices: Prices, file: Path) -> None:
    """Write a PNG with a panel for each curve and for the cost, and a line for each policy."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(15, 16), layout="constrained")
    axes = figure.subplots(4, 3).flatten()
    for axis, curve in zip(axes, CURVES, strict=False):
        for outcome in outcomes:
            days = [sample.day for sample in outcome.samples]
            axis.plot(days, [curve.of(sample) for sample in outcome.samples], label=outcome.policy)
        _label(axis, curve.label)
    written, read, costs = axes[len(CURVES) : len(CURVES) + 3]
    for outcome in outcomes:
        points = amplification_over_time(outcome)
        days = [day for day, _, _ in points]
        written.plot(days, [write for _, write, _ in points], label=outcome.policy)
        read.plot(days, [reads for _, _, reads in points], label=outcome.policy)
    _label(written, "write amplification")
    _label(read, "bytes read by jobs / bytes written by agents")
    _bars(costs, outcomes, prices)
    axes[0].legend()
    figure.suptitle(f"{outcomes[0].workload.name}: {outcomes[0].workload.description}")
    try:
        figure.savefig(file, format="png", dpi=100)
    except OSError as failure:
        raise InvalidInputError(
            f"{file} cannot be written: {failure.strerror}", remedy="name another file with --plot"
        ) from None


def _label(axis: Any, label: str) -> None:  # noqa: ANN401 - matplotlib's Axes
    axis.set_title(label)
    axis.set_xlabel("days")
    axis.set_ylim(bottom=0)


def _bars(axis: Any, outcomes: Sequence[Outcome], prices: Prices) -> None:  # noqa: ANN401 - matplotlib's Axes
    height = 0.8 / len(outcomes)
    names = [bill.name for bill in bills(outcomes[0], prices)]
    for number, outcome in enumerate(outcomes):
        dollars = [bill.dollars for bill in bills(outcome, prices)]
        axis.barh([position + number * height for position in range(len(names))], dollars, height=height)
    axis.set_yticks(range(len(names)), names)
    axis.set_title("dollars per month")
