"""docs/explanation/cost.md, beside what the command says."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from cost_model.engine.rounds import simulate_rounds
from cost_model.report.document import block_of, markdown, with_block
from cost_model.report.prices import load_prices
from cost_model.workload.workload import TopicClass, Workload, load_workload
from planner.settings import PlannerSettings

_PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "cost.md"


def test_the_page_has_the_figures_of_a_run() -> None:
    """Those of the small workload; `make cost` writes them all."""
    outcome = simulate_rounds(load_workload("trial"), PlannerSettings(), "default")
    page = _PAGE.read_text()
    assert block_of(page, "trial") == markdown([outcome], load_prices())
    assert block_of(with_block(page, "trial", "other"), "trial") == "other"


def test_the_page_names_every_key_and_every_workload() -> None:
    """And those that come along have their figures there."""
    page = _PAGE.read_text()
    for kind in (Workload, TopicClass):
        for field in fields(kind):
            assert f"`{field.name}`" in page or field.name == "topics"
    for name in ("changelog", "clickstream", "platform"):
        assert "Kafka, three zones" in block_of(page, name)
