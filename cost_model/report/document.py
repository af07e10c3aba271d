"""Figures of simulations in docs/explanation/cost.md, between comments that name the workload."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from core.errors import InvalidInputError
from cost_model.report.figures import FIGURES, bills, many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_model.engine.outcome import Outcome
    from cost_model.report.prices import Prices


def markdown(outcomes: Sequence[Outcome], prices: Prices) -> str:
    """Two tables, of figures and of dollars, with a column for each policy."""
    front = outcomes[0].front
    names = [each.policy for each in outcomes]
    lines = [
        (
            f"Agents write {front.files:,.1f} files a second with {front.extents:,.0f} extents and "
            f"{front.stored_bytes / 1e6:,.1f} MB; an ingestion job takes {front.job_seconds:.2f} s of that."
        ),
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for figure in FIGURES:
        values = " | ".join(figure.write(figure.of(each)) for each in outcomes)
        lines.append(f"| {figure.words} | {values} |")
    lines += ["", f"| dollars a month | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for index, bill in enumerate(bills(outcomes[0], prices)):
        values = " | ".join(f"**{bills(each, prices)[index].dollars:,.0f}**" for each in outcomes)
        lines.append(f"| **{bill.name}** | {values} |")
        for number, line in enumerate(bill.lines):
            of_each = [bills(each, prices)[index].lines[number] for each in outcomes]
            if any(one.dollars >= 0.5 for one in of_each):
                values = " | ".join(many(one.dollars) for one in of_each)
                lines.append(f"| {line.term}: {line.how} | {values} |")
    return "\n".join(lines)


def block_of(text: str, name: str) -> str:
    """What a document has for a workload."""
    return _pattern(text, name)[2]


def with_block(text: str, name: str, block: str) -> str:
    """The document with something else in that place."""
    found = _pattern(text, name)
    return f"{text[: found.start(2)]}{block}{text[found.end(2) :]}"


def _pattern(text: str, name: str) -> re.Match[str]:
    found = re.search(rf"(<!-- figures of {name} -->\n)(.*?)(\n<!-- end of {name} -->)", text, re.DOTALL)
    if found is None:
        raise InvalidInputError(
            f"the document has no place for the figures of {name}",
            remedy=f"add <!-- figures of {name} --> and <!-- end of {name} -->",
        )
    return found
