"""Makes a cell of a workload: every partition where all is simulated, a few of each class otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.model import PartitionId
from cost_model.engine.clusterings import sorted_news
from cost_model.engine.scaled_model import CellLog, Part, Scale
from cost_model.engine.steady_state import merged_seconds, presence, stored_bytes_per_second
from cost_model.workload.keys import DrawnKeys, ExpectedKeys
from cost_model.workload.records import DrawnRecords, ExpectedRecords
from planner.snapshot import TopicRules

if TYPE_CHECKING:
    import numpy as np

    from cost_model.engine.clusterings import SortedNews
    from cost_model.engine.steady_state import Front
    from cost_model.workload.records import Records
    from cost_model.workload.workload import TopicClass, Workload
    from planner.settings import PlannerSettings

CELL_PARTITIONS: Final = 48
_MIN_OF_A_CLASS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What stands for the topics of one kind of cleanup policy, with the settings that fit its size."""

    log: CellLog
    classes: tuple[TopicClass, ...]
    settings: PlannerSettings
    outputs: float
    extents_per_output: float


def every_partition(workload: Workload, settings: PlannerSettings, generator: np.random.Generator) -> CellLog:
    """All partitions with all their records, for a simulation event by event."""
    parts: dict[PartitionId, Part] = {}
    number = 0
    for topic in workload.topics:
        keys = ExpectedKeys(topic)
        for _ in range(topic.topics):
            rules = _rules(topic, number)
            number += 1
            for partition in range(topic.partitions):
                drawn = DrawnRecords(DrawnKeys(topic, generator), keys, rules.delete_retention_ms)
                part = _part(topic, rules, partition, drawn)
                parts[part.key] = part
    return CellLog(parts, Scale(full_bytes=settings.full_bytes))


def cell_of(
    workload: Workload,
    front: Front,
    settings: PlannerSettings,
    round_seconds: float,
    *,
    compacted: bool,
    cell_partitions: int = CELL_PARTITIONS,
) -> Cell | None:
    """The cell for compacted topics, or for the others; None where there are none.

    Thinned: each partition of the cell stands for as many real ones of its class, and sizes of files and jobs
    are divided by the same number. Dilated: where the real system fills files several times a round, one file
    of the cell is all of them, and sizes are multiplied by their number. Shares of what is dead, dirty or
    read do not change by either.
    """
    classes = tuple(each for each in workload.topics if each.settings.compacts is compacted)
    if not classes:
        return None
    real = sum(each.partition_count for each in classes)
    chosen = [_chosen(each, real, cell_partitions) for each in classes]
    thinning = real / sum(chosen)
    span, outputs = merged_seconds(classes, front, settings)
    stored = sum(stored_bytes_per_second(each) for each in classes)
    dilation = max(1.0, round_seconds / span)
    full = min(settings.full_bytes, max(stored * span, 1.0))
    scale = Scale(thinning=thinning, dilation=dilation, full_bytes=full)
    parts: dict[PartitionId, Part] = {}
    for number, (topic, count) in enumerate(zip(classes, chosen, strict=True)):
        keys = ExpectedKeys(topic)
        rules = _rules(topic, number)
        weight = topic.partition_count / count
        news: SortedNews | None = None
        for partition in range(count):
            expected = ExpectedRecords(topic, keys, rules.delete_retention_ms)
            part = _part(topic, rules, partition, expected)
            part.weight, part.share = weight, weight / thinning
            part.arrivals_per_second = presence(topic, span) / span
            per_second = stored_bytes_per_second(topic) / topic.partition_count
            part.arrival_bytes = per_second / part.arrivals_per_second
            if dilation > 1:
                news = news or sorted_news(rules, part.arrival_bytes, settings)
                part.news = news
            parts[part.key] = part
    return Cell(
        log=CellLog(parts, scale),
        classes=classes,
        settings=_scaled(settings, front, scale, stored * round_seconds, len(parts), round_seconds),
        outputs=min(outputs, round_seconds / front.job_seconds),
        extents_per_output=front.job_extents * stored / front.stored_bytes,
    )


def _chosen(topic: TopicClass, real: int, cell_partitions: int) -> int:
    if real <= cell_partitions:
        return topic.partition_count
    wanted = max(_MIN_OF_A_CLASS, round(cell_partitions * topic.partition_count / real))
    return min(topic.partition_count, wanted)


def _scaled(
    settings: PlannerSettings, front: Front, scale: Scale, round_bytes: float, parts: int, seconds: float
) -> PlannerSettings:
    """Bounds of jobs as the cell needs them: what a round brings fits, and as much besides as in truth."""
    factor = scale.dilation / scale.thinning
    full = max(1, round(scale.full_bytes * factor))
    news = round_bytes / scale.thinning
    room = settings.max_job_input_bytes / max(front.job_bytes, 1.0)
    headroom = max(1.0, settings.max_job_extents / max(front.job_extents, 1.0))
    hours = seconds / 3600
    return replace(
        settings,
        max_job_input_bytes=max(2 * full, round(settings.max_job_input_bytes * factor), round(news * room)),
        max_job_extents=max(2 * parts, round(parts * headroom)),
        max_plan_extents=max(settings.max_plan_extents, 100 * parts),
        min_ingestion_files=1,
        target_file_bytes=full,
        # Where a round is many files, how news are sorted is known from `sortings`; nothing is short then.
        section_bytes=1 if scale.dilation > 1 else settings.section_bytes,
        level_floor_bytes=max(1, round(settings.level_floor_bytes * factor)),
        min_dead_bytes=max(1, round(settings.min_dead_bytes / scale.thinning)),
        budget_bytes_per_hour=round(settings.budget_bytes_per_hour * hours / scale.thinning),
        budget_dollars_per_hour=settings.budget_dollars_per_hour * hours / scale.dilation,
    )


def _part(topic: TopicClass, rules: TopicRules, partition: int, records: Records) -> Part:
    return Part(
        key=PartitionId(rules.topic_id, partition),
        topic=topic,
        rules=rules,
        records=records,
        retention_bytes=topic.settings.retention_bytes if topic.settings.deletes else -1,
    )


def _rules(topic: TopicClass, number: int) -> TopicRules:
    config = topic.settings
    return TopicRules(
        topic_id=UUID(int=number + 1),
        name=f"{topic.name}-{number}",
        cleanup_policy=config.cleanup_policy,
        compression_type=config.compression_type,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        retention_ms=config.retention_ms,
        max_message_bytes=config.max_message_bytes,
    )
