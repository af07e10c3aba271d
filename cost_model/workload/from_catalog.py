"""A workload like the recent one of a catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import NotFoundError
from cost_model.workload.definition import MEGABYTE, TopicClass, Workload

if TYPE_CHECKING:
    from catalog.model import Topic
    from catalog.open import Catalog
    from catalog.topics.history import TopicGrowth

WINDOW_MS: Final = 24 * 60 * 60 * 1000
_BROKER_SILENT_MS: Final = 60_000
_MIN_WINDOW_MS: Final = 1_000


def recent_workload(catalog: Catalog) -> Workload:
    """Return a workload with one class for each topic and the rates of the last day.

    Records count by the times of their commits, not by their timestamps. If the first commit is younger than
    a day, its time begins the period. Records have their stored size, so the compression ratio is 1. The
    number of keys is what the last cleaning left in a partition, with a uniform distribution. Raise
    NotFoundError if nothing was produced in that time.
    """
    now_ms = catalog.clock.now_ms()
    topics = {topic.topic_id: topic for topic in catalog.topics.list()}
    found = [each for each in catalog.topic_history.since(now_ms - WINDOW_MS) if each.topic_id in topics]
    found = [each for each in found if each.records > 0 and each.live_records > 0]
    if not found:
        raise NotFoundError(
            "no topic of the catalog received records in the last day",
            remedy="simulate a workload from a TOML file, or a built-in one",
        )
    window_ms = max(_MIN_WINDOW_MS, now_ms - min(each.first_ms for each in found))
    racks = {broker.rack for broker in catalog.brokers.live(_BROKER_SILENT_MS) if broker.rack is not None}
    zones = max(1, len(racks))
    return Workload(
        name="live",
        description=f"Topics of the catalog in the last {window_ms / 3_600_000:.1f} hours",
        agents=max(zones, len(catalog.sessions.active())),
        zones=zones,
        zone_aware=zones > 1,
        topics=tuple(_class_of(topics[each.topic_id], each, window_ms) for each in found),
    )


def _class_of(topic: Topic, history: TopicGrowth, window_ms: int) -> TopicClass:
    record_bytes = max(1, round(history.live_bytes / history.live_records))
    per_second = history.records / (window_ms / 1000)
    batch = history.ingestion_records / history.ingestion_extents if history.ingestion_extents else 1.0
    keys = history.unique_records or history.live_records
    return TopicClass(
        name=topic.name,
        partitions=topic.partition_count,
        mb_per_second=per_second * record_bytes / MEGABYTE,
        record_bytes=record_bytes,
        batch_records=max(1, round(batch)),
        keys=max(1, round(keys / topic.partition_count)),
        config=topic.config.as_strings(),
    )
