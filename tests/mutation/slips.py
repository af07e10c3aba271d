"""Slips by hand in places where tests have missed some: `make slips`.

`slips.toml` lists them. Each is made in a copy of the code, and the tests that must notice it run there.
Unlike mutants, they may change several lines, and SQL, and tests that start agents may judge them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.mutation.judge import ROOT

SLIPS: Final = Path(__file__).parent / "slips.toml"
_NOT_COPIED: Final = shutil.ignore_patterns(".*", "node_modules", "build", "site")
_OPTIONS: Final = ("-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider")


class Slip(NamedTuple):
    """A change of a file that the tests in some files must notice; `what` says what the code then does."""

    what: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


def read_slips() -> list[Slip]:
    """Return all slips."""
    entries = tomllib.loads(SLIPS.read_text())["slip"]
    return [Slip(**{**each, "tests": tuple(each["tests"])}) for each in entries]


def judge(slip: Slip, copy: Path, work: Path) -> str | None:
    """Make a slip in a copy of the code; return the test that failed, or None."""
    path = copy / slip.file
    source = path.read_text()
    path.write_text(source.replace(slip.before, slip.after))
    environment = {**os.environ, "PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "ci"}
    if "@njit" in source:  # all kernels are compiled again; those of the unchanged code stay in the copy
        environment["NUMBA_CACHE_DIR"] = str(work / "kernels")
    command = [sys.executable, "-m", "pytest", *_OPTIONS, f"--basetemp={work / 'tests'}", *slip.tests]
    try:
        ended = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        path.write_text(source)
    if ended.returncode == pytest.ExitCode.OK:
        return None
    failed = [line for line in ended.stdout.splitlines() if line.startswith("FAILED ")]
    if ended.returncode != pytest.ExitCode.TESTS_FAILED or not failed:
        sys.exit(f"the tests of a slip cannot run: {slip.what}\n{ended.stdout[-20_000:]}{ended.stderr}")
    return failed[0].split()[1]


def main() -> int:
    """Judge the slips in the files that contain one of the arguments; return 1 if tests missed one."""
    parser = argparse.ArgumentParser(prog="make slips", description="Slips by hand; see tests/mutation.")
    parser.add_argument("files", nargs="*", help="part of the name of a changed file; default: all")
    options = parser.parse_args()
    chosen = [
        each for each in read_slips() if not options.files or any(one in each.file for one in options.files)
    ]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="slips-") as name:
        work = Path(name)
        copy = Path(shutil.copytree(ROOT, work / "copy", ignore=_NOT_COPIED))
        for slip in chosen:
            begun = time.monotonic()
            test = judge(slip, copy, work)
            missed += test is None
            seconds = time.monotonic() - begun
            sys.stdout.write(f"{slip.what} {slip.file}: {test or 'MISSED'} ({seconds:.0f} s)\n")
            sys.stdout.flush()
    sys.stdout.write(f"{missed} of {len(chosen)} slips were missed\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
