"""The small workload that is run and simulated: its definition serves both.

Producers, consumers and planner settings follow from it, so both have the same rates. Files are below
`early_close_bytes`, and producers do not wait for acknowledgements, so no file is closed early.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cost_model.workload.definition import TopicClass, Workload
from planner.settings import PlannerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY_SECONDS: Final = 86_400
RECORD_BYTES: Final = 300
KEY_BYTES: Final = 16
BATCH_RECORDS: Final = 10
LOOK_SECONDS: Final = 1.0
FLUSH_INTERVAL_MS: Final = 1_000
"""Four times the default, so that processes and S3 server together leave most of two cores idle."""

SETTINGS: Final = PlannerSettings(min_ingestion_files=50, paced=True)
"""Settings of the watcher: a job every twenty seconds, so that ten minutes have some dozens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Length of a run: the counts of the warm-up, with its starting processes, are not compared."""

    warm_up_seconds: float
    measured_seconds: float

    @property
    def seconds(self) -> float:
        """Length of the whole run."""
        return self.warm_up_seconds + self.measured_seconds


def workload(duration: Duration, *, batches_per_second: float = 18.0, agents: int = 3) -> Workload:
    """Return three topics that receive a third of the batches each. Every agent is in another zone."""
    mb_per_second = batches_per_second / 3 * BATCH_RECORDS * RECORD_BYTES / 1e6
    kind = TopicClass(
        name="",
        partitions=6,
        mb_per_second=mb_per_second,
        record_bytes=RECORD_BYTES,
        key_bytes=KEY_BYTES,
        batch_records=BATCH_RECORDS,
        keys=2_000,
    )
    compacted = {"cleanup.policy": "compact"}
    return Workload(
        name="beside reality",
        days=duration.seconds / DAY_SECONDS,
        agents=agents,
        zones=agents,
        flush_interval_ms=FLUSH_INTERVAL_MS,
        planning_seconds=LOOK_SECONDS,
        topics=(
            replace(kind, name="events", config={"retention.ms": "180000"}),
            replace(kind, name="uniform", config=compacted),
            replace(kind, name="zipf", key_distribution="zipf", config=compacted),
        ),
    )


def partitions_of(defined: Workload) -> Iterator[tuple[TopicClass, int]]:
    """Yield each partition with its topic."""
    for topic in defined.topics:
        for partition in range(topic.partitions):
            yield topic, partition
