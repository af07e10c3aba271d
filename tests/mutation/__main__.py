"""Mutation testing of the modules that decide about data: `make mutants`.

Cosmic Ray changes one thing at a time in a copy of the tree, and the tests of `targets` judge the change.
A mutant that they do not notice is a survivor. `explained.toml` lists survivors that do the same as the
original code, each with the reason, so that a run reports new ones only and fails if there are any.

mutmut was tried, too. It leaves decorated functions alone, and those are properties, dataclass methods and
all kernels.

Kernels cannot run as Python (NUMBA_DISABLE_JIT): they call libraries through LLVM intrinsics, read rows as
records, and rely on numba's integer types. So their target compiles them for each mutant. It takes hours, and
runs only if it is named.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import TestOutcome

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.targets import TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parents[2]
EXPLAINED: Final = Path(__file__).parent / "explained.toml"


def explained(path: Path = EXPLAINED) -> dict[tuple[str, str, str], str]:
    """Return the reasons of survivors that nothing can notice."""
    entries = tomllib.loads(path.read_text()).get("mutant", [])
    return {(each["module"], each["before"], each["after"]): each["reason"] for each in entries}


def copy_tree(target: Path) -> None:
    """Copy the files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)


def judge(mutant: Mutant, target: Target, copies: Path) -> str:
    """Run the tests of a target on a mutant in this process's copy of the tree; return the outcome."""
    copy = copies / str(os.getpid())
    if not copy.exists():
        copy_tree(copy)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    outcome = mutate_and_test(
        [mutant.spec], test_command(target.tests, copy), target.timeout_seconds
    ).test_outcome
    return str((outcome or TestOutcome.INCOMPETENT).value)


def require_sound(targets: Sequence[Target], copies: Path) -> None:
    """Run the tests of each target on the unchanged code. If they failed, no mutant could survive."""
    copy = copies / "unchanged"
    copy_tree(copy)
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    for target in targets:
        command = shlex.split(test_command(target.tests, copy))
        done = subprocess.run(command, cwd=copy, env=environment, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the tests fail without a mutation:\n{done.stdout[-20_000:]}")


def test_command(tests: Sequence[str], copy: Path) -> str:
    """Return the command that judges a mutant. Its examples are the same each time."""
    options = "-q -x -p no:randomly -p no:cacheprovider"
    directory = shlex.quote(f"{copy}-tests")
    return f"{shlex.quote(sys.executable)} -m pytest {options} --basetemp={directory} {shlex.join(tests)}"


def chosen_mutants(names: Sequence[str], most: int | None) -> Iterator[tuple[Mutant, Target]]:
    """Yield the mutants of some targets; a random part of each target if there are more than `most`."""
    for name in names:
        target = TARGETS[name]
        found = [mutant for module in target.modules for mutant in mutants_of(ROOT, module)]
        if most is not None and len(found) > most:
            found = sorted(random.Random(0).sample(found, most))
        for mutant in found:
            yield mutant, target


def main() -> int:
    """Judge the mutants of the chosen targets; return 1 if an unexplained one survives."""
    parser = argparse.ArgumentParser(prog="make mutants", description="Mutation testing; see tests/mutation.")
    parser.add_argument("targets", nargs="*", help="default: all but the slow ones", choices=[*TARGETS, []])
    parser.add_argument("--most", type=int, help="judge a random sample of that many mutants of each target")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    reasons = explained()
    names = options.targets or [name for name, each in TARGETS.items() if not each.is_slow]
    work = list(chosen_mutants(names, options.most))
    os.environ.setdefault("HYPOTHESIS_PROFILE", "ci")
    survivors: list[Mutant] = []
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as directory,
        ProcessPoolExecutor(options.processes) as pool,
    ):
        require_sound([TARGETS[name] for name in names], Path(directory))
        todo = [each for each in work if each[0].key not in reasons]
        outcomes = pool.map(partial(_judge_one, copies=Path(directory)), todo)
        for (mutant, _), outcome in zip(todo, outcomes, strict=True):
            if outcome == TestOutcome.SURVIVED:
                survivors.append(mutant)
                _say(f"{mutant.module}:{mutant.line}: {mutant.before}  ->  {mutant.after}")
    known, killed = len(work) - len(todo), len(todo) - len(survivors)
    _say(f"{len(work)} mutants: {killed} killed, {known} explained, {len(survivors)} survived")
    return bool(survivors)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _judge_one(work: tuple[Mutant, Target], *, copies: Path) -> str:
    return judge(*work, copies)


if __name__ == "__main__":
    sys.exit(main())
