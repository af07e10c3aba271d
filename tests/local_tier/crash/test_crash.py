"""Processes that are killed at every disk operation, and machines that lose power.

`SILTSTONE_CRASH_ROUNDS` sets the number of rounds; the default takes a few seconds.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import pytest
from typing_extensions import override

from core.clock import ManualClock
from tests.local_tier.crash.crash_check import Expectations
from tests.local_tier.crash.crash_workload import Journal, Workload, config_of, manager_of
from tests.local_tier.crash.power_loss import PowerLossFileSystem
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.manager.managers import PeriodicManualScheduler, crash
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from local_tier.files.file_system import FileSystem
    from local_tier.manager.log_manager import LogManager

ROUNDS: Final = int(os.environ.get("SILTSTONE_CRASH_ROUNDS", "60"))
THOROUGH: Final = ROUNDS > 60
STEPS: Final = 40
ROOT: Final = Path(__file__).parents[3]


class Zygote:
    """Successive processes on the same directories."""

    def __init__(self, process: subprocess.Popen[str], root: Path) -> None:
        self._process = process
        self.root = root
        self.disk = root / "disk"
        self.disk.mkdir()
        self.expectations = Expectations()
        self.counts = Counter[str]()

    def live(self, seed: int, **how: object) -> bool:
        """Run one process and check what it leaves. Return True if it was killed."""
        journal, counts = self.root / "journal", self.root / "counts"
        command = {
            "root": str(self.disk),
            "journal": str(journal),
            "counts": str(counts),
            "seed": seed,
            "steps": STEPS,
            **how,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        response = json.loads(self._process.stdout.readline())
        assert response["killed"] or response["code"] == 0, f"{command}: the process failed"
        if not response["killed"]:
            self.counts = Counter(json.loads(counts.read_text()))
        self.expectations.read(journal.read_bytes())
        self.check(seed)
        return bool(response["killed"])

    def check(self, seed: int) -> None:
        manager = start(self.disk, UnsyncedFileSystem())
        self.expectations.check(manager)
        if seed % 2:
            manager.close()
        else:
            crash(manager)


def start(disk: Path, files: FileSystem) -> LogManager:
    clock = ManualClock(1_700_000_000_000)
    scheduler = PeriodicManualScheduler(clock)
    manager = manager_of(disk, files, clock, scheduler)
    manager.start(config_of, clean=False)
    scheduler.advance(1_000)  # deletes the files that opening has dropped
    return manager


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.local_tier.crash.crash_zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        yield Zygote(process, tmp_path)
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def test_logs_survive_a_kill_at_any_disk_operation(zygote: Zygote) -> None:
    """The kill comes before, during or after every kind of write, sync, rename and unlink."""
    counts = Counter[str]()
    for seed in range(3):
        zygote.live(seed)
        counts += zygote.counts
    killed = Counter[str]()
    chance = random.Random(2)
    points = [
        (step, moment)
        for step in sorted(step for step in counts if not step.startswith(("read", "list")))
        for moment in (("before", "middle", "after") if step.startswith("write") else ("before", "after"))
    ]
    assert len({step for step, _ in points}) > 80
    for seed, (step, moment) in enumerate(points if THOROUGH else chance.sample(points, 60), start=3):
        how = (step, chance.randint(1, max(1, counts[step] // 6)), moment)
        killed[moment] += zygote.live(seed, kill=how)
    assert killed["before"] > 10
    assert killed["middle"]
    assert killed["after"] > 10


def test_logs_survive_a_kill_at_any_time(zygote: Zygote) -> None:
    chance = random.Random(5)
    killed = sum(zygote.live(1_000 + i, after_ms=chance.uniform(1, 60)) for i in range(ROUNDS))

    assert killed > ROUNDS // 4


class _EndedError(BaseException):
    """The power is lost."""


class _PowerLossError(DiskError):
    """Copies the state that survives a power loss before the `nth` step, and stops."""

    def __init__(self, nth: int) -> None:
        super().__init__("", nth)

    @override
    def cut(self, step: str) -> NoReturn:
        raise _EndedError(step)


@pytest.mark.parametrize("torn", [False, True])
def test_logs_survive_a_power_loss_at_any_disk_operation(tmp_path: Path, torn: bool) -> None:
    """Synced data is there. Other data may be there, be torn, or be lost."""
    expectations = Expectations()
    disk = tmp_path / "0"
    disk.mkdir()
    chance = random.Random(11)
    for life in range(1, 1 + max(ROUNDS // 2, 20)):
        files = PowerLossFileSystem(disk)
        switch = Switch(NoFaults())
        journal = tmp_path / "journal"
        descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        stepped = SteppedFileSystem(files, switch)
        workload = Workload(disk, stepped, Journal(descriptor), 5_000 + life)
        switch.faults = _PowerLossError(chance.randint(1, 700))
        with suppress(_EndedError):
            workload.run(STEPS)
        os.close(descriptor)
        expectations.read(journal.read_bytes())
        after = tmp_path / str(life)
        files.lose_power(after, chance.randint(0, 2**32) if torn else None)
        crash(workload.manager)
        disk = after
        manager = start(disk, UnsyncedFileSystem())
        expectations.check(manager, power_lost=True)
        crash(manager)
