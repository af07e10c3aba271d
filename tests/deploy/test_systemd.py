"""The units are valid, and name options, settings and an exit code that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.settings import AgentSettings
from core.exit_codes import FAILED, PART_FAILED, TEMPORARY_FAILURE, WRONG_SCHEMA, WRONG_USAGE
from siltstone.cli.compaction import compact
from siltstone.cli.operations import agent
from siltstone.settings.configuration import ENVIRONMENT_PREFIX, SETTINGS

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
GUIDE = (ROOT / "docs" / "how-to" / "production.md").read_text(encoding="utf-8")
PROGRAM = "/opt/siltstone/bin/siltstone"
COMMANDS = {"agent": agent.command, "compact": compact.command}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """It would also report a program that does not exist, so an existing one takes its place."""
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        (tmp_path / unit.name).write_text(text.replace(PROGRAM, sys.executable), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_a_command_with_its_options(unit: Path) -> None:
    (arguments,) = re.findall(rf"^ExecStart={re.escape(PROGRAM)} (.*)$", unit.read_text(), re.MULTILINE)
    name, *options = arguments.split()
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {each for each in options if each.startswith("--")} <= known


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_leaves_time_to_stop_and_is_not_restarted_if_that_repairs_nothing(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(seconds) * 1000 > AgentSettings().drain_ms + AgentSettings().stop_timeout_ms
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)
    assert codes.split() == [str(WRONG_USAGE), str(WRONG_SCHEMA)]


def test_the_guide_says_which_exit_codes_end_the_restarts() -> None:
    rows = dict(re.findall(r"^\| `(\d+)` \| [^|]+ \| (yes|no)\b[^|]*\|$", GUIDE, re.MULTILINE))
    ends = dict.fromkeys((WRONG_USAGE, WRONG_SCHEMA), "no")
    restarts = dict.fromkeys((FAILED, PART_FAILED, TEMPORARY_FAILURE), "yes")
    assert {int(code): is_restarted for code, is_restarted in rows.items()} == ends | restarts


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_crash_writes_no_memory_to_a_disk(unit: Path) -> None:
    assert re.findall(r"^LimitCORE=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE) == ["0"]


def test_the_guide_installs_the_units_and_sets_settings_that_exist() -> None:
    assert all(f"deploy/systemd/{unit.name}" in GUIDE for unit in UNITS)
    names = re.findall(rf"{ENVIRONMENT_PREFIX}([A-Z0-9_]+)", GUIDE)
    assert len(names) > 5
    assert [name for name in names if name.lower() not in SETTINGS] == []
