"""The command that writes the figures of named workloads rejects what it does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks import cost

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("argument", "exit_code", "text"),
    [("--help", 0, "trial"), ("nothing", 2, "'nothing'"), ("--typo", 2, "")],
)
def test_arguments_are_checked_before_figures_are_written(
    argument: str, exit_code: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "_DOCUMENT", tmp_path / "missing.md")

    done = CliRunner().invoke(cost.main, [argument])

    assert done.exit_code == exit_code
    assert text in done.output
