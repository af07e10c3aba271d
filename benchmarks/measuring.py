"""Timing things in turns, so that what disturbs the machine disturbs them all alike."""

from __future__ import annotations

import os
import platform
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def seconds_in_turns(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each step in each round, after one round that only warms up."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(rounds + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if round_number:
                taken[name].append(time.process_time() - start)
    return taken


def median_of_sums(*series: list[float]) -> float:
    """The median over rounds of what several steps took together."""
    return statistics.median(map(sum, zip(*series, strict=True)))


def processor_seconds_of_children() -> float:
    """What all processes below this one have taken so far, ended ones included; 0 where there is no /proc."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(process.name))
            ticks[int(process.name)] = sum(map(int, fields[11:15]))
    found, waiting = 0, list(children.get(os.getpid(), ()))
    while waiting:
        process_id = waiting.pop()
        found += ticks[process_id]
        waiting += children.get(process_id, ())
    return found / os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {
        "cpu": cpu,
        "cpus": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
