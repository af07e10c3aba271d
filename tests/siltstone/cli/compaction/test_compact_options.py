"""Options of `siltstone compact`: combinations that are rejected, and the options that a run receives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from core.errors import InvalidInputError
from siltstone.cli.compaction import compact as module
from siltstone.cli.operations import maintain
from siltstone.compaction.compactor import CompactionOptions, CompactionRun
from siltstone.settings.configuration import Settings
from spark_jobs.shuffle.plan import PlanChoice

if TYPE_CHECKING:
    from pathlib import Path

    from click import Command


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--watch", "--once"], "--once cannot be combined with --watch"),
        (["--watch", "--rounds", "2"], "--rounds cannot be combined with --watch"),
        (["--watch", "--dry-run"], "--dry-run cannot be combined with --watch"),
        (["--interval", "5"], "--interval needs --watch"),
        (["--metrics", "127.0.0.1:0"], "--metrics needs --watch"),
        (["--watch", "--metrics", "nine"], "'nine' is not HOST:PORT"),
        (["--watch", "--interval", "0"], "0.0 is not in the range"),
        (["--once", "--rounds", "3"], "--once means --rounds 1"),
        (["--dry-run", "--plan", "task"], "--plan has no effect"),
        (["--plan", "fastest"], "'fastest' is not one of 'auto', 'task', 'shuffle'"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    """The error comes before anything is opened or created."""
    data_dir = tmp_path / "data"

    ran = CliRunner().invoke(module.command, [*arguments, "--data-dir", str(data_dir)])

    assert ran.exit_code == 2
    assert sentence in " ".join(ran.output.replace("│", " ").split())
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], CompactionOptions()),
        (["--plan", "task", "--force"], CompactionOptions(force=True, plan=PlanChoice.TASK)),
        (["--plan", "Shuffle", "--rounds", "7"], CompactionOptions(max_rounds=7, plan=PlanChoice.SHUFFLE)),
        (["--once"], CompactionOptions(max_rounds=1)),
    ],
)
def test_options_are_passed_to_the_run(
    arguments: list[str], expected: CompactionOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[CompactionOptions] = []

    def compact(_settings: object, options: CompactionOptions, **_options: object) -> CompactionRun:
        made.append(options)
        return CompactionRun()

    monkeypatch.setattr(module, "_compact", compact)
    (tmp_path / "catalog").mkdir()

    ran = CliRunner().invoke(module.command, [*arguments, "--data-dir", str(tmp_path)])

    assert ran.exit_code == 0, ran.output
    assert made == [expected]


def test_no_exact_jobs_are_planned_if_every_job_runs_as_one_task(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    exact = {choice: CompactionOptions(plan=choice).planner(settings).exact for choice in PlanChoice}
    assert exact == {PlanChoice.AUTO: True, PlanChoice.TASK: False, PlanChoice.SHUFFLE: True}


@pytest.mark.parametrize("command", [module.command, maintain.command])
def test_metrics_outside_loopback_need_a_setting(command: Command, tmp_path: Path) -> None:
    arguments = ["--watch", "--metrics", "0.0.0.0:0", "--data-dir", str(tmp_path / "data")]
    ran = CliRunner().invoke(command, arguments)
    assert isinstance(ran.exception, InvalidInputError)
    assert "allow_insecure_listeners" in str(ran.exception)
    assert not (tmp_path / "data").exists()
