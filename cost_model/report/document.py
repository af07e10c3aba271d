"""Simulation figures in docs/explanation/cost.md, between comments that name the workload."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from core.errors import InvalidInputError
from cost_model.report.figures import FIGURES, bills, human_count, rates_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_model.engine.outcome import Outcome
    from cost_model.report.prices import Prices


def markdown(outcomes: Sequence[Outcome], prices: Prices) -> str:
    """Return two tables, of figures and of dollars, with a column for each policy."""
    names = [each.policy for each in outcomes]
    lines = [
        rates_text(outcomes[0].rates),
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for figure in FIGURES:
        values = " | ".join(figure.write(figure.of(each)) for each in outcomes)
        lines.append(f"| {figure.label} | {values} |")
    lines += ["", f"| dollars per month | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for index, bill in enumerate(bills(outcomes[0], prices)):
        values = " | ".join(f"**{bills(each, prices)[index].dollars:,.0f}**" for each in outcomes)
        lines.append(f"| **{bill.name}** | {values} |")
        for row, line in enumerate(bill.lines):
            of_each = [bills(each, prices)[index].lines[row] for each in outcomes]
            if any(one.dollars >= 0.5 for one in of_each):
                values = " | ".join(human_count(one.dollars) for one in of_each)
                lines.append(f"| {line.term}: {line.calculation} | {values} |")
    return "\n".join(lines)


def block_of(text: str, name: str) -> str:
    """Return the figures of a workload in a document."""
    return _pattern(text, name)[2]


def with_block(text: str, name: str, block: str) -> str:
    """Return the document with the figures of a workload replaced."""
    found = _pattern(text, name)
    return f"{text[: found.start(2)]}{block}{text[found.end(2) :]}"


def _pattern(text: str, name: str) -> re.Match[str]:
    found = re.search(rf"(<!-- figures of {name} -->\n)(.*?)(\n<!-- end of {name} -->)", text, re.DOTALL)
    if found is None:
        raise InvalidInputError(
            f"the document has no figures of {name}",
            remedy=f"add <!-- figures of {name} --> and <!-- end of {name} -->",
        )
    return found
