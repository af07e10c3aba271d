"""Mutation testing of the modules that decide about data: `make mutants`.

Cosmic Ray changes one thing at a time, and the tests of `targets` judge the change. A mutant that they do not
notice is a survivor. `explained.toml` lists survivors that do the same as the original code, each with the
reason. A run lists the others, and fails if they are too many.

mutmut was tried, too. It leaves decorated functions alone, and those are properties, dataclass methods and
all kernels.

Kernels cannot all run as Python (NUMBA_DISABLE_JIT): some call libraries through LLVM intrinsics, and some
rely on numba's integer types. A target names those that can (`interpreted`). All others are compiled for each
mutant of a sample.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.open import EmbeddedPostgres
from tests.fixtures.memory import directory_in_memory
from tests.fixtures.postgres import NOT_DURABLE, SHARED_SERVER, PostgresForTests
from tests.mutation.judge import ROOT, Outcome, collect, measure, outcomes, require_survival_of_unchanged
from tests.mutation.mutants import mutant_at, positions_of
from tests.mutation.targets import TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tests.mutation.mutants import Mutant, Position

EXPLAINED: Final = Path(__file__).parent / "explained.toml"
MIN_SCORE: Final = 0.95
_SURVIVOR: Final = re.compile(r"(\S+\.py):\d+: (.*)  ->  (.*)  \(\d+ tests\)")  # the line that `judge` prints


class Row(NamedTuple):
    """Result of a target: `judged` of its `found` mutants are in the sample."""

    target: str
    found: int
    judged: int
    explained: int
    survived: int

    @property
    def score(self) -> float:
        """Return the part of the judged mutants that were killed or are explained."""
        return 1 - self.survived / max(self.judged, 1)

    def line(self) -> str:
        """Return the row of the table."""
        killed = self.judged - self.explained - self.survived
        counts = (self.found, self.judged, killed, self.explained, self.survived)
        return f"| {self.target} | {' | '.join(map(str, counts))} | {self.score:.1%} |"


def explained(path: Path = EXPLAINED) -> dict[tuple[str, str, str], str]:
    """Return the reasons of survivors that nothing can notice."""
    entries = tomllib.loads(path.read_text()).get("mutant", [])
    return {(each["module"], each["before"], each["after"]): each["reason"] for each in entries}


def survivors(path: Path) -> set[tuple[str, str, str]]:
    """Return the keys of the survivors in the output of an earlier run."""
    found = map(_SURVIVOR.fullmatch, path.read_text().splitlines())
    return {(each[1], each[2], each[3]) for each in found if each is not None}


def sample(positions: list[Position], most: int | None, seed: int) -> list[Position]:
    """Return at most that many positions of a module, the same in each run with a seed."""
    if most is None or len(positions) <= most:
        return positions
    return sorted(random.Random(seed).sample(positions, most))


def judge(
    name: str,
    target: Target,
    directory: Path,
    *,
    processes: int,
    seed: int,
    again: Collection[tuple[str, str, str]] | None = None,
) -> Row:
    """Judge the mutants of a target, or only those with the keys `again`, and print the survivors."""
    begun = time.monotonic()
    collect(target.tests, target.interpreted)
    baseline = measure(target.modules, target.tests, directory)
    for module in target.modules:
        require_survival_of_unchanged(module, baseline, directory)
    found = [list(positions_of(ROOT, module)) for module in target.modules]
    chosen = [position for each in found for position in sample(each, target.most, seed)]
    mutants = [each for each in (mutant_at(ROOT, position) for position in chosen) if each is not None]
    if again is not None:
        mutants = [each for each in mutants if each.key in again]
    prepared = time.monotonic()
    _say(
        f"{name}: {len(mutants)} mutants, {len(baseline.seconds)} tests; prepared in {prepared - begun:.0f} s"
    )
    reasons, known = explained(), 0

    def unexplained() -> Iterator[Mutant]:
        nonlocal known
        for mutant in mutants:
            if mutant.key in reasons:
                known += 1
            else:
                yield mutant

    ends: Counter[Outcome] = Counter()
    for mutant, outcome in outcomes(unexplained(), baseline, directory, processes):
        ends[outcome] += 1
        if outcome is Outcome.SURVIVED:
            tests = len(baseline.of(mutant))
            _say(f"{mutant.module}:{mutant.line}: {mutant.before}  ->  {mutant.after}  ({tests} tests)")
    seconds = (time.monotonic() - prepared) / max(ends.total(), 1)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(ends.items()))
    _say(f"{name}: {seconds:.1f} s for each mutant; {counts}")
    return Row(name, sum(map(len, found)), known + ends.total(), known, ends[Outcome.SURVIVED])


def main() -> int:
    """Judge the chosen targets and print a table; return 1 if the score of one is too low."""
    parser = argparse.ArgumentParser(prog="make mutants", description="Mutation testing; see tests/mutation.")
    parser.add_argument("targets", nargs="*", help="default: all", choices=[*TARGETS, []])
    parser.add_argument("--most", type=int, help="judge a random sample of that many mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="each seed has another random sample")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="judge the survivors that FILE lists again"
    )
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    again = survivors(options.again) if options.again else None
    rows = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as name, directory_in_memory() as memory:
        directory = Path(name)
        with EmbeddedPostgres(memory, settings=NOT_DURABLE) as server:
            PostgresForTests(server.url)
            os.environ[SHARED_SERVER] = server.url
            for target in options.targets or TARGETS:
                chosen = TARGETS[target]
                rows.append(
                    judge(
                        target,
                        chosen._replace(most=None if again else options.most or chosen.most),
                        directory,
                        processes=options.processes,
                        seed=options.seed,
                        again=again,
                    )
                )
    _say("| target | mutants | judged | killed | explained | survived | score |")
    _say("|---|---|---|---|---|---|---|")
    for row in rows:
        _say(row.line())
    return int(any(row.score < MIN_SCORE for row in rows))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
