"""Small workloads, and settings of their size."""

from __future__ import annotations

from typing import Final

from planner.settings import MIB, PlannerSettings
from planner.simulation.workload import TopicClass, Workload

SETTINGS: Final = PlannerSettings(target_file_bytes=16 * MIB, max_job_input_bytes=64 * MIB)

MIXED: Final = Workload(
    name="mixed",
    days=0.5,
    agents=3,
    zones=3,
    flush_interval_ms=20_000,
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
"""Twelve partitions of three kinds; half a day is long enough for everything to repeat itself."""

WIDE_SETTINGS: Final = PlannerSettings(target_file_bytes=8 * MIB, max_job_input_bytes=32 * MIB)

WIDE: Final = Workload(
    name="wide",
    days=0.2,
    agents=3,
    zones=3,
    flush_interval_ms=20_000,
    planning_seconds=60,
    topics=(
        TopicClass(
            name="t",
            topics=2,
            partitions=12,
            mb_per_second=0.04,
            keys=3000,
            config={"cleanup.policy": "compact"},
        ),
    ),
)
"""Compacted topics whose news are more than one job may read by the time that a partition is due."""
