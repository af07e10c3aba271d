"""What the pages for operators name is there, and what is there is named."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.app import Agent
from agent.settings import AgentSettings
from core.clock import SystemClock
from maintenance.fsck.report import DifferenceKind
from maintenance.garbage_collection import GarbageSettings
from planner.settings import PlannerSettings
from siltstone.compaction.watcher import WatcherStatus
from siltstone.compaction.watcher_metrics import WatcherCollector
from siltstone.settings.configuration import SETTINGS

if TYPE_CHECKING:
    from core.ids import Ids
    from tests.planner.system import System

DOCS: Final = Path(__file__).parents[2] / "docs"
PLANNER, OPERATIONS = ((DOCS / name).read_text() for name in ("explanation/planner.md", "how-to/operate.md"))


@pytest.fixture
def anyio_backend() -> str:
    """An agent is an asyncio process."""
    return "asyncio"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, without those of their heads."""
    (section,) = re.findall(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_bound_of_the_planner_is_explained() -> None:
    """By its name; those that no setting of the process changes also by their value."""
    bounds = [each for kind in (PlannerSettings, GarbageSettings) for each in fields(kind)]
    assert [each.name for each in bounds if f"`{each.name}`" not in PLANNER] == []
    told = {
        names(cells[0])[0]: int(cells[1]) for cells in rows(PLANNER, "Bounds, and why they are what they are")
    }
    assert told == {
        each.name: each.default
        for each in bounds
        if each.name not in SETTINGS and each.name not in {"force", "exact"}
    }


def test_settings_that_operators_are_told_of_exist() -> None:
    told = [
        name for cells in rows(OPERATIONS, "Settings that matter over the years") for name in names(cells[0])
    ]
    assert len(told) > 5
    assert [name for name in told if name not in SETTINGS] == []


@pytest.mark.anyio
async def test_metrics_that_operators_are_told_of_exist(system: System, ids: Ids) -> None:
    told = set(re.findall(r"`(siltstone_[a-z_]+)`", OPERATIONS))
    clock = SystemClock()
    agent = Agent(settings=AgentSettings(), store=system.store, catalog=system.catalog, clock=clock, ids=ids)
    families = [*agent.metrics.registry.collect(), *WatcherCollector(WatcherStatus()).collect()]
    agent.pools.close()
    served = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert len(told) > 12
    assert told - served == set()


def test_every_difference_that_fsck_finds_has_its_repair() -> None:
    told = {name for cells in rows(OPERATIONS, "Repairs") for name in names(cells[0])}
    assert told == {kind.value for kind in DifferenceKind}
