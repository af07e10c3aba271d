"""Agreement of docs/explanation/cost.md with the simulation."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from cost_model.engine.rounds import simulate_rounds
from cost_model.report.document import block_of, markdown, with_block
from cost_model.report.early_closes import early_close_markdown
from cost_model.report.prices import load_prices
from cost_model.workload.definition import TopicClass, Workload, load_workload
from planner.settings import PlannerSettings

_PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "cost.md"


def test_the_page_shows_the_simulated_figures() -> None:
    """Only the smallest workload is simulated; `make cost` updates all."""
    outcome = simulate_rounds(load_workload("trial"), PlannerSettings(paced=True), "default")
    page = _PAGE.read_text()
    assert block_of(page, "trial") == markdown([outcome], load_prices())
    assert block_of(with_block(page, "trial", "other"), "trial") == "other"


def test_the_page_shows_the_table_of_early_closes() -> None:
    table = early_close_markdown(load_workload("defaults"), load_prices())
    assert block_of(_PAGE.read_text(), "early closes") == table


def test_the_page_names_every_key_and_every_workload() -> None:
    """The built-in workloads have their figures on the page."""
    page = _PAGE.read_text()
    for kind in (Workload, TopicClass):
        for field in fields(kind):
            assert f"`{field.name}`" in page or field.name == "topics"
    for name in ("changelog", "clickstream", "platform"):
        assert "Kafka, three zones" in block_of(page, name)
