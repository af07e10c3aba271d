"""How fast an offset is found in an index; part of `benchmarks.local_tier`."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from local_tier.files.file_system import RealFileSystem
from local_tier.segment.offset_index import OffsetIndex

if TYPE_CHECKING:
    from pathlib import Path


def measure_lookups(root: Path, entries: int, lookups: int, rounds: int) -> dict[str, float]:
    """Return microseconds per lookup of any offset, and of the latest ones."""
    path = root / "lookup.index"
    table = np.empty((entries, 2), ">i4")
    table[:, 0] = np.arange(entries) * 3
    table[:, 1] = np.arange(entries) * 50
    path.write_bytes(table.tobytes())
    index = OffsetIndex(RealFileSystem(), path, 0, 8 * entries)
    random = np.random.default_rng(3)
    anywhere = random.integers(0, 3 * entries, lookups).tolist()
    tail = random.integers(3 * entries - 1000, 3 * entries, lookups).tolist()
    taken: dict[str, list[float]] = {"anywhere": [], "tail": []}
    for _ in range(rounds + 1):
        for name, offsets in (("anywhere", anywhere), ("tail", tail)):
            start = time.perf_counter()
            for offset in offsets:
                index.lookup(offset)
            taken[name].append((time.perf_counter() - start) / lookups * 1e6)
    index.close_without_trimming()
    path.unlink()
    return {name: statistics.median(each[1:]) for name, each in taken.items()}
