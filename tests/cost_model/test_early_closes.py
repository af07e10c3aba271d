"""Early closes in the simulation: the agent's own rule, its settings, and a table of budgets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.settings import AgentSettings
from cost_model.rates.produce_latency import early_close_factor, produce_figures, with_budget
from cost_model.rates.steady_rates import steady_rates_of
from cost_model.report.early_closes import early_close_report
from cost_model.report.prices import load_prices
from cost_model.workload.definition import TopicClass, Workload, load_workload
from planner.settings import PlannerSettings
from tests.agent.write.test_early_close import run

if TYPE_CHECKING:
    from tests.agent.write.test_early_close import Scene

WAITING = Workload(
    name="waiting",
    agents=1,
    zones=1,
    early_close_bytes=16_384,
    put_ms=20,
    commit_ms=5,
    topics=(TopicClass(name="t", mb_per_second=0.5, batch_records=5, in_flight_bytes=60_000),),
)
"""Producers that can send 0.2 MB/s if each file waits for the flush interval."""


def test_a_workload_has_the_defaults_of_an_agent() -> None:
    workload, agent = load_workload("defaults"), AgentSettings()
    for name in (
        "flush_interval_ms",
        "flush_bytes",
        "early_close_bytes",
        "early_puts_per_second",
        "early_puts_per_gb",
    ):
        assert getattr(workload, name) == getattr(agent, name)


def test_producers_with_little_in_flight_need_early_closes() -> None:
    without, figures = produce_figures(with_budget(WAITING, 0)), produce_figures(WAITING)
    assert without.early_share == 0
    assert without.acknowledged < 0.5
    assert figures.acknowledged > without.acknowledged
    unlimited = produce_figures(with_budget(WAITING, 10**6))
    assert unlimited.acknowledged > 0.98
    assert unlimited.p99 < without.p50


def test_the_simulated_agent_writes_as_many_files_as_the_write_path() -> None:
    """The same producers send to the real write path over virtual time."""
    (topic,) = WAITING.topics
    size = round(topic.batch_records * topic.stored_record_bytes)

    async def produce(scene: Scene) -> None:
        await scene.produce(1500, size, window=60_000 // size, gap=0.0, turnaround=0.0)

    real = run(produce, early_close_bytes=16_384)
    simulated = produce_figures(replace(WAITING, topics=(replace(topic, mb_per_second=5),)))
    puts = len(real.store.sizes) / sum(real.store.sizes) * 1e9
    assert simulated.puts_per_gb == pytest.approx(puts, rel=0.05)


@pytest.mark.parametrize("name", ["trial", "changelog", "clickstream", "platform"])
def test_a_steady_flow_costs_hardly_more(name: str) -> None:
    assert 1 <= early_close_factor(load_workload(name)) < 1.1


def test_a_file_counts_in_all_figures() -> None:
    """Files, and what follows from them, grow by the factor of early closes."""
    workload = load_workload("defaults")
    rates, without = (
        steady_rates_of(each, PlannerSettings()) for each in (workload, with_budget(workload, 0))
    )
    assert without.flush_seconds == 0.25
    assert rates.flush_seconds == 0.25 / early_close_factor(workload)
    assert rates.files > without.files


def test_the_report_compares_budgets() -> None:
    rows = early_close_report(load_workload("defaults"), load_prices())
    assert [row["early_puts_per_gb"] for row in rows] == [0, 500, 2000, 8000]
    assert rows[2]["p99_ms"] < rows[0]["p50_ms"]
    assert rows[2]["dollars_per_gb"] < 1.25 * rows[0]["dollars_per_gb"]
