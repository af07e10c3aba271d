"""Small workloads, and planner settings for them."""

from __future__ import annotations

from typing import Final

from cost_model.workload.definition import TopicClass, Workload
from planner.settings import MIB, PlannerSettings

SETTINGS: Final = PlannerSettings(target_file_bytes=16 * MIB, max_job_input_bytes=64 * MIB)

MIXED: Final = Workload(
    name="mixed",
    days=0.5,
    agents=3,
    zones=3,
    flush_interval_ms=20_000,
    early_puts_per_gb=0,  # so that the interval divides that of plans, as the exact simulation needs it
    planning_seconds=60,
    topics=(
        TopicClass(name="events", partitions=4, mb_per_second=0.02, config={"retention.ms": "7200000"}),
        TopicClass(name="slow", partitions=2, mb_per_second=0.005, config={"retention.ms": "21600000"}),
        TopicClass(
            name="state",
            topics=2,
            partitions=3,
            mb_per_second=0.02,
            record_bytes=500,
            keys=2000,
            key_distribution="zipf",
            tombstone_ratio=0.05,
            config={"cleanup.policy": "compact", "delete.retention.ms": "3600000"},
        ),
    ),
)
"""Twelve partitions of three kinds; half a day is long enough for every kind of job to repeat."""

SHORT_SETTINGS: Final = PlannerSettings(
    target_file_bytes=2 * MIB,
    max_job_input_bytes=16 * MIB,
    max_job_files=12,
    merge_fan_in=4,
    section_bytes=MIB // 2,
    section_floor_bytes=4096,
)

SHORT: Final = Workload(
    name="short",
    days=0.2,
    agents=3,
    zones=3,
    flush_interval_ms=30_000,
    early_puts_per_gb=0,
    planning_seconds=60,
    topics=(
        TopicClass(name="plain", partitions=60, mb_per_second=0.06, config={"retention.ms": "10800000"}),
        TopicClass(
            name="table",
            topics=2,
            partitions=20,
            mb_per_second=0.04,
            keys=4000,
            config={"cleanup.policy": "compact"},
        ),
    ),
)
"""Partitions with short extents in large files; ingestion jobs have no space to clean them."""
