"""Effect of clustering jobs on the extents of one partition.

In a scaled model, a partition's extents of one round are a single extent. The catalog really has several rows
for them, and clustering jobs rewrite their bytes several times. Both numbers are measured once for each class
of topics: a single partition receives extents of equal length one by one, and `planner.jobs.clustering`
chooses which of them become one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np

from catalog.model import Extent, FileKind, PartitionState
from planner.jobs.clustering import RUN_OF_FAN_IN, is_fragmented, short_run
from planner.snapshot import FileView, PartitionView, Snapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planner.settings import PlannerSettings
    from planner.snapshot import TopicRules

_MAX_ARRIVALS: Final = 5_000
_LONG_EXTENTS: Final = 8
_UNBOUNDED_ARRIVALS: Final = 1e9
_FILE: Final = UUID(int=1)


@dataclass(frozen=True, slots=True)
class ClusteredArrivals:
    """Result of clustering after n extents of equal length have arrived, as curves over n.

    `rows` is the number of extents left. The other curves are sums since the first arrival: `written` is the
    number of rewritten bytes in units of one arriving extent, `taken` the number of extents that clustering
    jobs took, `runs` the number of those jobs' runs of extents. Beyond the last measured n, the curves are
    extrapolated. `long_rows` is the number of extents that are long enough never to be clustered again.
    """

    rows: NDArray[np.float64]
    written: NDArray[np.float64]
    taken: NDArray[np.float64]
    runs: NDArray[np.float64]
    long_rows: int = 0

    def of(self, curve: NDArray[np.float64], arrivals: float) -> float:
        """Return the value of one of the curves after a number of arrivals."""
        last = len(curve) - 1
        if arrivals <= last:
            below = min(int(arrivals), last - 1)
            return float(curve[below] + (arrivals - below) * (curve[below + 1] - curve[below]))
        half = last // 2
        if curve is self.rows:
            return float(np.mean(curve[half:]) + self.long_rows / last * (arrivals - 0.75 * last))
        slope = (curve[last] - curve[half]) / max(1, last - half)
        return float(curve[last] + slope * (arrivals - last))

    def mean_rows(self, arrivals: float) -> float:
        """Return the mean of `rows` while that number of extents arrives."""
        points = np.linspace(0.0, arrivals, 65)
        return float(np.mean([self.of(self.rows, each) for each in points]))

    def rate(self, curve: NDArray[np.float64], arrivals: float) -> float:
        """Return the mean growth of a curve per arrival."""
        max_arrivals = min(arrivals, _UNBOUNDED_ARRIVALS)
        return self.of(curve, max_arrivals) / max_arrivals if max_arrivals > 0 else 0.0


@lru_cache(maxsize=64)
def clustered_arrivals(rules: TopicRules, length: float, settings: PlannerSettings) -> ClusteredArrivals:
    """Add extents of `length` bytes until several long extents exist, and return the curves."""
    max_arrivals = min(_MAX_ARRIVALS, round(_LONG_EXTENTS * settings.section_bytes / max(length, 1.0)))
    newest = settings.max_seen_extents
    files = {
        _FILE: FileView(
            file_id=_FILE,
            object_name="",
            size=settings.full_bytes,
            kind=FileKind.COMPACTED,
            committed_ms=0,
            extents=0,
            whole_extents=0,
        )
    }
    snapshot = Snapshot(now_ms=0, partitions=(), files=files)
    extents: list[Extent] = []
    size = written = taken = runs = 0
    curves: list[tuple[float, float, float, float]] = [(0.0, 0.0, 0.0, 0.0)]
    extent_bytes = max(1, round(length))
    for offset in range(max(1, max_arrivals)):
        extents.append(_extent(rules, offset, offset, extent_bytes))
        size += extent_bytes
        if is_fragmented(len(extents), size, settings):
            view = PartitionView(
                rules=rules, state=_state(rules, offset + 1), extents=tuple(extents[-newest:])
            )
            run = short_run(view, snapshot, settings, lambda _: False)
            if len(run) >= RUN_OF_FAN_IN * settings.merge_fan_in:
                total = sum(each.length for each in run)
                begin = extents.index(run[0])
                extents[begin : begin + len(run)] = [
                    _extent(rules, run[0].base_offset, run[-1].last_offset, total)
                ]
                written, taken, runs = written + total, taken + len(run), runs + 1
        curves.append((len(extents), written / extent_bytes, taken, runs))
    rows, writes, takes, counts = (np.array(each, dtype=np.float64) for each in zip(*curves, strict=True))
    long_rows = sum(1 for each in extents if each.length >= settings.section_bytes)
    return ClusteredArrivals(rows, writes, takes, counts, long_rows)


def _extent(rules: TopicRules, base: int, last: int, length: int) -> Extent:
    return Extent(
        topic_id=rules.topic_id,
        partition=0,
        base_offset=base,
        last_offset=last,
        record_count=last - base + 1,
        min_timestamp=0,
        max_timestamp=0,
        file_id=_FILE,
        object_name="",
        file_kind=FileKind.COMPACTED,
        position=0,
        length=length,
        index_position=0,
        index_length=0,
        offset_shift=0,
        leader_epoch=0,
        unique_keys=False,
        committed_ms=0,
    )


def _state(rules: TopicRules, end: int) -> PartitionState:
    return PartitionState(
        topic_id=rules.topic_id,
        partition=0,
        log_start_offset=0,
        last_stable_offset=end,
        high_watermark=end,
        log_end_offset=end,
        first_dirty_offset=0,
        leader_epoch=0,
    )
