"""The limit on open files."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from agent.runtime import open_files


def test_open_files_are_counted(tmp_path: Path) -> None:
    """One that is opened is one more."""
    before = open_files.count()
    with (tmp_path / "file").open("wb"):
        assert open_files.count() == before + 1


def test_the_soft_limit_becomes_the_hard_one() -> None:
    """As far as the system lets it: in a process that was given less than it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource; from agent import open_files;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard}));"
        "print(open_files.raise_limit(), open_files.limit())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, cwd=Path(__file__).parents[3]
    )
    assert told.stdout.split() == [str(hard).encode()] * 2
