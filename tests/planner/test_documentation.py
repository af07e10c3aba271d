"""Pages for operators name every setting, metric and difference that exists, and no others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from maintenance.fsck.report import DifferenceKind
from maintenance.settings import MaintenanceSettings
from planner.settings import PlannerSettings
from siltstone.settings.configuration import SETTINGS

DOCS: Final = Path(__file__).parents[2] / "docs"
PLANNER, MAINTENANCE, OPERATIONS, TUNING, METRICS = (
    (DOCS / name).read_text()
    for name in (
        "explanation/planner.md",
        "explanation/maintenance.md",
        "how-to/operate.md",
        "how-to/tune.md",
        "reference/metrics.md",
    )
)


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the tables below a heading, without header rows."""
    (section,) = re.findall(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize(
    ("kind", "page"),
    [(PlannerSettings, PLANNER), (MaintenanceSettings, MAINTENANCE)],
    ids=["plan", "maintenance"],
)
def test_every_bound_is_explained(kind: type[PlannerSettings | MaintenanceSettings], page: str) -> None:
    """Fixed bounds are in a table with their values."""
    assert [each.name for each in fields(kind) if f"`{each.name}`" not in page] == []
    fixed = {names(cells[0])[0]: int(cells[1]) for cells in rows(page, "Fixed bounds")}
    assert fixed == {
        each.name: each.default
        for each in fields(kind)
        if each.name not in SETTINGS and each.name not in {"force", "exact", "paced"}
    }


def test_every_setting_of_the_planner_is_in_one_table() -> None:
    settings = [name for cells in rows(PLANNER, "Settings") for name in names(cells[0])]
    assert set(settings) == {each.name for each in fields(PlannerSettings) if each.name in SETTINGS}


def test_settings_for_operators_exist() -> None:
    """The page does not name settings that were renamed or removed."""
    documented = [name for cells in rows(TUNING, "Compaction") for name in names(cells[0])]
    assert len(documented) > 5
    assert [name for name in documented if name not in SETTINGS] == []


def test_metrics_for_operators_exist() -> None:
    """Agents and the watcher of compaction serve them: the reference page is generated from the code."""
    documented = set(re.findall(r"`(siltstone_[a-z_]+)`", OPERATIONS))
    served = {names(line)[0] for line in METRICS.splitlines() if line.startswith("| `")}
    assert len(documented) > 12
    assert documented - served == set()


def test_every_difference_of_fsck_has_a_repair() -> None:
    """The table of repairs has one row per kind of difference."""
    documented = {name for cells in rows(OPERATIONS, "Repairs") for name in names(cells[0])}
    assert documented == {kind.value for kind in DifferenceKind}
