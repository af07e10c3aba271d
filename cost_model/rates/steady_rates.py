"""Rates of a workload within seconds, by formula.

The simulation of a year takes steps of two hours. This module computes what is faster: how many files and
extents agents write, how much of the log one ingestion job takes, how far the outputs of these jobs are
merged, and whether the planner keeps up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cost_model.rates.produce_latency import early_close_factor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cost_model.workload.definition import TopicClass, Workload
    from planner.settings import PlannerSettings

PLAN_SECONDS: Final = 0.2
PLAN_SECONDS_PER_EXTENT: Final = 40e-6
"""Assumed duration of a plan; a planner with more work plans again at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyRates:
    """Rates of the whole system per second; an ingestion job takes the files of `job_seconds`.

    An agent opens a file with its first batch, and closes it `flush_seconds` later: a file and the pause
    before it take `file_seconds`.
    `capacity` is the share of the written files that the planner can take; below 1 the backlog grows.
    `passes` is how often an ingestion job reads its input.
    """

    flush_seconds: float
    file_seconds: float
    files: float
    extents: float
    stored_bytes: float
    job_seconds: float
    capacity: float
    passes: int

    @property
    def job_bytes(self) -> float:
        """Bytes of the ingestion files of one job."""
        return self.stored_bytes * self.job_seconds

    @property
    def job_extents(self) -> float:
        """Extents of the ingestion files of one job."""
        return self.extents * self.job_seconds


def steady_rates_of(workload: Workload, settings: PlannerSettings) -> SteadyRates:
    """Return the rates of a workload under some settings."""
    flush = _flush_seconds(workload)
    stored = sum(stored_bytes_per_second(each) for each in workload.topics)
    batches = _batches_per_second(workload)
    file_seconds = flush + workload.agents / batches
    files = workload.agents / file_seconds
    extents = sum(sections_per_file(workload, each, flush) for each in workload.topics) * files
    planned = min(settings.max_plan_files, max(1.0, settings.max_plan_extents * files / extents))
    plan_seconds = PLAN_SECONDS + PLAN_SECONDS_PER_EXTENT * planned * extents / files
    bounds = (
        settings.max_job_input_bytes / stored,
        settings.max_job_files / files,
        settings.max_job_extents / extents,
    )
    interval = workload.planning_seconds
    if settings.paced:
        enough = (settings.min_ingestion_files / files, settings.min_ingestion_bytes / stored)
        interval = max(interval, min(settings.max_ingestion_age_ms / 1000, *enough))
    return SteadyRates(
        flush_seconds=flush,
        file_seconds=file_seconds,
        files=files,
        extents=extents,
        stored_bytes=stored,
        job_seconds=max(min(interval, *bounds), 1 / files),
        capacity=min(1.0, planned / plan_seconds / files),
        passes=2 if any(each.settings.compacts for each in workload.topics) else 1,
    )


def _flush_seconds(workload: Workload) -> float:
    """Return how long a file of an agent is open: for the interval, until it is full, or closed early."""
    stored = sum(stored_bytes_per_second(each) for each in workload.topics)
    by_size = workload.flush_bytes * workload.agents / stored
    return min(workload.flush_interval_ms / 1000, by_size) / early_close_factor(workload)


def sections_per_file(workload: Workload, topic: TopicClass, flush: float) -> float:
    """Return the mean number of sections of a class in a file that is open for `flush` seconds."""
    return partitions_of_agent(workload, topic) * presence(workload, topic, flush)


def partitions_of_agent(workload: Workload, topic: TopicClass) -> float:
    """Return how many partitions of a class one agent receives batches of."""
    return topic.partition_count * workload.agents_of_partition / workload.agents


def presence(workload: Workload, topic: TopicClass, flush: float) -> float:
    """Return the probability that a file has a section of a partition that its agent serves.

    The first batch of a file is of the partition, or one of the later ones is.
    """
    rate = topic.records_per_second / topic.batch_records / workload.agents_of_partition
    first = rate * workload.agents / _batches_per_second(workload)
    later = arrival_probability(topic, flush, workload.agents_of_partition)
    return first + (1 - first) * later


def _batches_per_second(workload: Workload) -> float:
    return sum(
        each.partition_count * each.records_per_second / each.batch_records for each in workload.topics
    )


def stored_bytes_per_second(topic: TopicClass) -> float:
    """Return the bytes that a class adds to segment files, without the overhead of sections."""
    return topic.partition_count * topic.records_per_second * topic.stored_record_bytes


def arrival_probability(topic: TopicClass, seconds: float, agents: int = 1) -> float:
    """Return the probability that a partition receives a batch from one of its agents in that time."""
    return -math.expm1(-topic.records_per_second / topic.batch_records / agents * seconds)


def merged_file_span(
    topics: Iterable[TopicClass], rates: SteadyRates, settings: PlannerSettings
) -> tuple[float, float]:
    """Return how many seconds of the log a merged file of these topics covers, and how many job outputs.

    Files are merged until they reach `full_bytes`, or have more extents than files that are merged may have.
    """
    classes = list(topics)
    stored = sum(stored_bytes_per_second(each) for each in classes)
    max_outputs = max(1.0, settings.full_bytes / (stored * rates.job_seconds))
    outputs = 1.0
    while outputs < max_outputs:
        extents = sum(
            each.partition_count * arrival_probability(each, outputs * rates.job_seconds) for each in classes
        )
        if extents > settings.max_merged_extents:
            break
        outputs = min(max_outputs, outputs * settings.merge_fan_in)
    return rates.job_seconds * outputs, outputs
