"""What happens within seconds, by formula: how agents write files, and how jobs empty them.

The simulation of a year looks every two hours. What comes and goes in between is computed here, from the
rates: files and extents an agent writes, the stretch of log that one ingestion job takes (by the bounds of
the planner's settings, whichever is met first), how far small outputs are merged within a round, which the
real policy itself is asked, and whether the planner keeps up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cost_model.workload.workload import TopicClass, Workload
    from planner.settings import PlannerSettings

PLAN_SECONDS: Final = 0.2
PLAN_SECONDS_OF_AN_EXTENT: Final = 40e-6
"""What a plan is taken to cost; a planner that has more to do looks again at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Steady rates of the whole system, a second; `job_seconds` is the stretch of log in one ingestion job.

    `capacity` is the part of what comes in that planners take at their fastest; below 1 a backlog grows.
    """

    files: float
    extents: float
    stored_bytes: float
    job_seconds: float
    capacity: float
    passes: int

    @property
    def job_bytes(self) -> float:
        """Bytes of ingestion files that one job takes."""
        return self.stored_bytes * self.job_seconds

    @property
    def job_extents(self) -> float:
        """Extents of ingestion files that one job takes."""
        return self.extents * self.job_seconds


def front_of(workload: Workload, settings: PlannerSettings) -> Front:
    """The rates of a workload under some settings."""
    flush = flush_seconds(workload)
    stored = sum(stored_bytes_per_second(each) for each in workload.topics)
    batches = sum(
        each.partition_count * each.records_per_second / each.batch_records for each in workload.topics
    )
    files = workload.agents / flush * -math.expm1(-batches / workload.agents * flush)
    agents = workload.agents_of_partition
    extents = sum(
        each.partition_count * agents * presence(each, flush, agents) / flush for each in workload.topics
    )
    planned = min(settings.max_plan_files, max(1.0, settings.max_plan_extents * files / extents))
    plan_seconds = PLAN_SECONDS + PLAN_SECONDS_OF_AN_EXTENT * planned * extents / files
    bounds = (
        settings.max_job_input_bytes / stored,
        settings.max_job_files / files,
        settings.max_job_extents / extents,
    )
    waits = max(
        workload.planning_seconds,
        min(settings.max_ingestion_age_ms / 1000, settings.min_ingestion_files / files),
    )
    return Front(
        files=files,
        extents=extents,
        stored_bytes=stored,
        job_seconds=max(min(waits, *bounds), 1 / files),
        capacity=min(1.0, planned / plan_seconds / files),
        passes=2 if any(each.settings.compacts for each in workload.topics) else 1,
    )


def flush_seconds(workload: Workload) -> float:
    """How often an agent writes a file: by time, or by size where that comes first."""
    stored = sum(stored_bytes_per_second(each) for each in workload.topics)
    by_size = workload.flush_bytes * workload.agents / stored
    return min(workload.flush_interval_ms / 1000, by_size)


def stored_bytes_per_second(topic: TopicClass) -> float:
    """What a class adds to segment files, before sections' own bytes."""
    return topic.partition_count * topic.records_per_second * topic.stored_record_bytes


def presence(topic: TopicClass, seconds: float, agents: int = 1) -> float:
    """The chance that a partition gets anything within some seconds, by one of its agents."""
    return -math.expm1(-topic.records_per_second / topic.batch_records / agents * seconds)


def merged_seconds(
    topics: Iterable[TopicClass], front: Front, settings: PlannerSettings
) -> tuple[float, float]:
    """How long a stretch of log a merged file of these topics covers, and of how many job outputs.

    A file is large at `full_bytes`, unless before that it has more extents than files have that are merged.
    """
    classes = list(topics)
    stored = sum(stored_bytes_per_second(each) for each in classes)
    most = max(1.0, settings.full_bytes / (stored * front.job_seconds))
    outputs = 1.0
    while outputs < most:
        extents = sum(each.partition_count * presence(each, outputs * front.job_seconds) for each in classes)
        if extents > settings.max_merged_extents:
            break
        outputs = min(most, outputs * settings.merge_fan_in)
    return front.job_seconds * outputs, outputs
