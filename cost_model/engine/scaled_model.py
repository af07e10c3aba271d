"""Construction of simulated logs: scaled models of a workload, or logs with every partition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.model import PartitionId
from cost_model.engine.simulated_log import Scale, SimulatedLog, SimulatedPartition
from cost_model.rates.clustered_arrivals import clustered_arrivals
from cost_model.rates.steady_rates import arrival_probability, merged_file_span, stored_bytes_per_second
from cost_model.workload.keys import DrawnKeys, ExpectedKeys
from cost_model.workload.records import DrawnRecords, ExpectedRecords
from planner.snapshot import TopicRules

if TYPE_CHECKING:
    import numpy as np

    from cost_model.rates.clustered_arrivals import ClusteredArrivals
    from cost_model.rates.steady_rates import SteadyRates
    from cost_model.workload.definition import TopicClass, Workload
    from cost_model.workload.records import Records
    from planner.settings import PlannerSettings

MODEL_PARTITIONS: Final = 48
_MIN_CLASS_PARTITIONS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledModel:
    """A small log that represents all topics that are compacted, or all that are not.

    `settings` are the planner's settings, scaled to the size of the model. `outputs` is the number of job
    outputs that become one merged file, at most those of a round.
    """

    log: SimulatedLog
    classes: tuple[TopicClass, ...]
    settings: PlannerSettings
    outputs: float


def unscaled_log(
    workload: Workload, settings: PlannerSettings, generator: np.random.Generator
) -> SimulatedLog:
    """Return a log with all partitions, whose records are drawn one by one."""
    partitions: dict[PartitionId, SimulatedPartition] = {}
    number = 0
    for topic in workload.topics:
        keys = ExpectedKeys(topic)
        for _ in range(topic.topics):
            rules = _rules(topic, number)
            number += 1
            for partition in range(topic.partitions):
                drawn = DrawnRecords(DrawnKeys(topic, generator), keys, rules.delete_retention_ms)
                part = _simulated_partition(topic, rules, partition, drawn)
                partitions[part.key] = part
    return SimulatedLog(partitions, Scale(full_bytes=settings.full_bytes))


def scaled_model_of(
    workload: Workload,
    rates: SteadyRates,
    settings: PlannerSettings,
    round_seconds: float,
    *,
    compacted: bool,
    model_partitions: int = MODEL_PARTITIONS,
) -> ScaledModel | None:
    """Return the model of the compacted topics or of the other ones; None if there are none.

    A model is smaller than the real system in two ways:

    - Thinning: each partition of the model represents several real ones of its class. Sizes of files and jobs
      are divided by their number.
    - Dilation: if the real system fills several large files in a round, one file of the model represents all
      of them. Sizes are multiplied by their number.

    Neither changes which share of the data is dead, dirty or read.
    """
    classes = tuple(each for each in workload.topics if each.settings.compacts is compacted)
    if not classes:
        return None
    real_partitions = sum(each.partition_count for each in classes)
    counts = [_model_partition_count(each, real_partitions, model_partitions) for each in classes]
    thinning = real_partitions / sum(counts)
    span, outputs = merged_file_span(classes, rates, settings)
    stored = sum(stored_bytes_per_second(each) for each in classes)
    dilation = max(1.0, round_seconds / span)
    full = min(settings.full_bytes, max(stored * span, 1.0))
    scale = Scale(thinning=thinning, dilation=dilation, full_bytes=full)
    partitions: dict[PartitionId, SimulatedPartition] = {}
    for number, (topic, count) in enumerate(zip(classes, counts, strict=True)):
        keys = ExpectedKeys(topic)
        rules = _rules(topic, number)
        weight = topic.partition_count / count
        clustered: ClusteredArrivals | None = None
        for partition in range(count):
            expected = ExpectedRecords(topic, keys, rules.delete_retention_ms)
            part = _simulated_partition(topic, rules, partition, expected)
            part.weight, part.share = weight, weight / thinning
            part.arrivals_per_second = arrival_probability(topic, span) / span
            per_second = stored_bytes_per_second(topic) / topic.partition_count
            part.arrival_bytes = per_second / part.arrivals_per_second
            if dilation > 1:
                clustered = clustered or clustered_arrivals(rules, part.arrival_bytes, settings)
                part.clustered = clustered
            partitions[part.key] = part
    return ScaledModel(
        log=SimulatedLog(partitions, scale),
        classes=classes,
        settings=_scaled(settings, rates, scale, stored * round_seconds, len(partitions), round_seconds),
        outputs=min(outputs, round_seconds / rates.job_seconds),
    )


def _model_partition_count(topic: TopicClass, real_partitions: int, model_partitions: int) -> int:
    if real_partitions <= model_partitions:
        return topic.partition_count
    wanted = max(_MIN_CLASS_PARTITIONS, round(model_partitions * topic.partition_count / real_partitions))
    return min(topic.partition_count, wanted)


def _scaled(
    settings: PlannerSettings,
    rates: SteadyRates,
    scale: Scale,
    round_bytes: float,
    partitions: int,
    seconds: float,
) -> PlannerSettings:
    """Return the planner settings for the model.

    A job of the model holds the data of a round, with the same headroom as a real job.
    """
    factor = scale.dilation / scale.thinning
    full = max(1, round(scale.full_bytes * factor))
    arriving_bytes = round_bytes / scale.thinning
    input_ratio = settings.max_job_input_bytes / max(rates.job_bytes, 1.0)
    extents_ratio = max(1.0, settings.max_job_extents / max(rates.job_extents, 1.0))
    hours = seconds / 3600
    return replace(
        settings,
        max_job_input_bytes=max(
            2 * full, round(settings.max_job_input_bytes * factor), round(arriving_bytes * input_ratio)
        ),
        max_job_extents=max(2 * partitions, round(partitions * extents_ratio)),
        max_plan_extents=max(settings.max_plan_extents, 100 * partitions),
        paced=False,
        target_file_bytes=full,
        # With dilation, `clustered_arrivals` describes clustering, so no extent of the model is short.
        section_bytes=1 if scale.dilation > 1 else settings.section_bytes,
        level_floor_bytes=max(1, round(settings.level_floor_bytes * factor)),
        min_dead_bytes=max(1, round(settings.min_dead_bytes / scale.thinning)),
        budget_bytes_per_hour=round(settings.budget_bytes_per_hour * hours / scale.thinning),
        budget_dollars_per_hour=settings.budget_dollars_per_hour * hours / scale.dilation,
    )


def _simulated_partition(
    topic: TopicClass, rules: TopicRules, partition: int, records: Records
) -> SimulatedPartition:
    return SimulatedPartition(
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
