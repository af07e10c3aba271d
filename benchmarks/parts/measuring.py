"""Measures steps alternately, so that load on the machine affects all of them equally."""

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


def seconds_by_round(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return processor seconds of each step in each round, after one round to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(rounds + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if round_number:
                taken[name].append(time.process_time() - start)
    return taken


def median_of_sums(*series: list[float]) -> float:
    """Return the median over rounds of the total of several steps."""
    return statistics.median(map(sum, zip(*series, strict=True)))


def processor_seconds_of_children() -> float:
    """Return the processor time of all processes below this one, including ended ones; 0 without /proc."""
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
    """Describe the machine of the measurement."""
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
