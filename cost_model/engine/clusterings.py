"""How the news of one partition are sorted, job by job, by the policy itself.

In a cell the news of a round are one extent. How many extents the catalog has for them in truth, and how
often their bytes are written anew, is found out once for each class of topics: a single partition gets an
extent after the other, all of one length, and `planner.clustering` chooses what becomes one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np

from catalog.model import Extent, FileKind, PartitionState
from planner.clustering import RUN_OF_FAN_IN, is_fragmented, short_run
from planner.snapshot import FileView, PartitionView, Snapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planner.settings import PlannerSettings
    from planner.snapshot import TopicRules

_MAX_ARRIVALS: Final = 5_000
_LONG_ONES: Final = 8
_AS_GOOD_AS_EVER: Final = 1e9
_FILE: Final = UUID(int=1)


@dataclass(frozen=True, slots=True)
class SortedNews:
    """What n extents of one length have become, by n: sums since the first of them came, and rows now.

    `rows` are extents that are there, `written` extents' score of bytes that were written anew, `taken` the
    extents that runs had, `runs` how many there were. Beyond what was tried out, all go on as they did;
    `long_rows` are the extents that came out of so many, and are not sorted again.
    """

    rows: NDArray[np.float64]
    written: NDArray[np.float64]
    taken: NDArray[np.float64]
    runs: NDArray[np.float64]
    long_rows: int = 0

    def of(self, curve: NDArray[np.float64], arrivals: float) -> float:
        """The value of one of the curves after so many arrivals."""
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
        """How many rows there are on average while so many extents come."""
        points = np.linspace(0.0, arrivals, 65)
        return float(np.mean([self.of(self.rows, each) for each in points]))

    def rate(self, curve: NDArray[np.float64], arrivals: float) -> float:
        """By how much a curve grows with each arrival, over so many of them."""
        most = min(arrivals, _AS_GOOD_AS_EVER)
        return self.of(curve, most) / most if most > 0 else 0.0


@lru_cache(maxsize=64)
def sorted_news(rules: TopicRules, length: float, settings: PlannerSettings) -> SortedNews:
    """Let extents of `length` bytes come until some long ones have come of them."""
    most = min(_MAX_ARRIVALS, round(_LONG_ONES * settings.section_bytes / max(length, 1.0)))
    newest = settings.max_seen_extents
    files = {
        _FILE: FileView(
            file_id=_FILE,
            object_name="",
            size=settings.full_bytes,
            kind=FileKind.COMPACTED,
            committed_ms=0,
        )
    }
    snapshot = Snapshot(now_ms=0, partitions=(), files=files)
    held: list[Extent] = []
    size = written = taken = runs = 0
    curves: list[tuple[float, float, float, float]] = [(0.0, 0.0, 0.0, 0.0)]
    one = max(1, round(length))
    for number in range(max(1, most)):
        held.append(_extent(rules, number, number, one))
        size += one
        if is_fragmented(len(held), size, settings):
            view = PartitionView(rules=rules, state=_state(rules, number + 1), extents=tuple(held[-newest:]))
            run = short_run(view, snapshot, settings, lambda _: False)
            if len(run) >= RUN_OF_FAN_IN * settings.merge_fan_in:
                total = sum(each.length for each in run)
                begin = held.index(run[0])
                held[begin : begin + len(run)] = [
                    _extent(rules, run[0].base_offset, run[-1].last_offset, total)
                ]
                written, taken, runs = written + total, taken + len(run), runs + 1
        curves.append((len(held), written / one, taken, runs))
    rows, writes, takes, counts = (np.array(each, dtype=np.float64) for each in zip(*curves, strict=True))
    long = sum(1 for each in held if each.length >= settings.section_bytes)
    return SortedNews(rows, writes, takes, counts, long)


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
