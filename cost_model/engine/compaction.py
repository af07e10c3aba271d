"""Execution of a planned job on a simulated log, and the count of its requests and bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from catalog.jobs.byte_ranges import byte_range_of
from catalog.model import FileKind, PartitionId
from cost_model.engine.job_formulas import CleanedClass
from cost_model.engine.simulated_log import (
    SECTION_BYTES,
    SimulatedFile,
    SimulatedLog,
    SimulatedPartition,
    taken_extents,
)
from planner.plan import JobKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.model import Extent, JobPartition
    from cost_model.engine.counts import Counts
    from cost_model.engine.job_formulas import RealSystem
    from planner.plan import PlannedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExpansion:
    """The jobs of the real system that one job of the model represents.

    `jobs_per_round` ingestion jobs share a round, and each deduplicates separately. With `real`, the reads of
    ingestion and cleaning jobs are counted elsewhere: by `measurements.steady_counts` and `job_formulas`.
    """

    jobs_per_round: float = 1.0
    max_job_bytes: float = float("inf")
    real: RealSystem | None = None


@dataclass(slots=True)
class _Outputs:
    """The files that a job writes, separate for compacted and other topics; a file ends at a size limit."""

    log: SimulatedLog
    now_ms: int
    limit: int
    open: dict[tuple[bool, bool], SimulatedFile] = field(default_factory=dict)
    done: list[SimulatedFile] = field(default_factory=list)
    sizes: dict[UUID, int] = field(default_factory=dict)
    sections: dict[UUID, float] = field(default_factory=dict)
    cleaned: dict[UUID, CleanedClass] = field(default_factory=dict)
    extra_clean_bytes: float = 0.0

    def file_for(self, *, compacted: bool, clean: bool) -> SimulatedFile:
        """Return the open file, or a new one.

        If a file of the model represents several real ones, clean partitions are written to a separate file.
        """
        apart = clean and self.log.scale.dilation > 1
        limit = self.log.scale.clean_file_bytes if apart else self.limit
        file = self.open.get((compacted, apart))
        if file is not None and file.initial_bytes < limit:
            return file
        file = self.log.new_file(FileKind.COMPACTED, self.now_ms)
        self.open[compacted, apart] = file
        self.done.append(file)
        self.sizes[file.view.file_id] = 0
        self.sections[file.view.file_id] = 0.0
        return file

    def grow(self, file: SimulatedFile, length: int, part: SimulatedPartition, rows: float) -> None:
        self.sizes[file.view.file_id] += length + round(SECTION_BYTES * part.share * rows)
        self.sections[file.view.file_id] += part.weight * rows

    def publish(self) -> None:
        for file in self.done:
            file.objects = self.log.scale.objects(file.initial_bytes, self.sections[file.view.file_id])
        self.log.publish(self.done, self.sizes)


def apply_job(
    log: SimulatedLog, job: PlannedJob, now_ms: int, counts: Counts, expansion: JobExpansion
) -> None:
    """Replace the live extents of a job by its outputs, and count the cost."""
    _count_reads(log, job, counts, expansion)
    outputs = _Outputs(log, now_ms, job.output_bytes)
    for spec, (part, span, taken) in zip(job.partitions, taken_extents(log, job), strict=True):
        if taken:
            _rewrite(job.kind, spec, part, (span, taken), outputs, expansion)
    outputs.publish()
    _count_writes(log, job, outputs, counts, expansion)
    _count_repeated_cleanings(log, outputs, counts, expansion)


def _rewrite(
    kind: JobKind,
    spec: JobPartition,
    part: SimulatedPartition,
    live: tuple[tuple[int, int], Sequence[Extent]],
    outputs: _Outputs,
    expansion: JobExpansion,
) -> None:
    """Rewrite the extents of one partition."""
    log, (span, taken) = outputs.log, live
    base, upper = taken[0].base_offset, taken[-1].last_offset + 1
    whole = spec.deduplicate and base <= part.log_start
    pieces = expansion.jobs_per_round if kind is JobKind.INGESTION else 1.0
    if whole:
        if expansion.real is not None:
            _note_repeated_cleanings(part, taken, expansion.real, outputs)
        kept = part.records.clean(base, upper, outputs.now_ms)
        part.first_dirty = max(part.first_dirty, upper)
    elif spec.deduplicate:
        kept = part.records.deduplicate(base, upper, pieces)
        kept = min(kept, sum(extent.record_count for extent in taken))
    else:
        kept = float(sum(extent.record_count for extent in taken))
    length = part.length_of(kept) if spec.deduplicate else sum(extent.length for extent in taken)
    rows = 1.0 if whole else _rows(log, part, taken)
    file = outputs.file_for(compacted="compact" in spec.cleanup_policy, clean=whole)
    extent = taken[0]._replace(
        last_offset=upper - 1,
        record_count=round(kept),
        min_timestamp=min(each.min_timestamp for each in taken),
        max_timestamp=max(each.max_timestamp for each in taken),
        file_id=file.view.file_id,
        object_name=file.view.object_name,
        file_kind=FileKind.COMPACTED,
        position=outputs.sizes[file.view.file_id],
        length=length,
        offset_shift=0,
        unique_keys=spec.deduplicate,
        claimed_by=None,
    )
    outputs.grow(file, length, part, rows)
    log.replace_extents(part, span, extent, file, rows)


def _rows(log: SimulatedLog, part: SimulatedPartition, taken: Sequence[Extent]) -> float:
    """Return how many catalog rows one real partition has for extents that a job does not clean.

    Extents of ingestion files add up. Extents of compacted files are merged with each other.
    """
    if log.scale.dilation == 1:
        return 1.0
    arrived = sum(part.rows[each.base_offset] for each in taken if each.file_kind is FileKind.INGESTION)
    old = [part.rows[each.base_offset] for each in taken if each.file_kind is FileKind.COMPACTED]
    return max([arrived, *old])


def _note_repeated_cleanings(
    part: SimulatedPartition, taken: Sequence[Extent], real: RealSystem, outputs: _Outputs
) -> None:
    """Record how often the real system has cleaned the partition since the model last cleaned it.

    Let c be the clean bytes, and d the dirty bytes that one ingestion job adds. The partition is due when its
    dirty bytes exceed c·r/(1 - r). Each cleaning writes the clean bytes. On average, half of the bytes that
    make a partition due are dirty.
    """
    arrived = [each for each in taken if each.last_offset >= part.first_dirty]
    if not arrived:
        return
    seconds = max(real.job_seconds, (outputs.now_ms - arrived[0].min_timestamp) / 1000)
    pieces = seconds / real.job_seconds
    records = sum(each.last_offset - each.base_offset + 1 for each in arrived)
    ratio = min(part.rules.min_cleanable_dirty_ratio, 0.99)
    clean = part.records.distinct(taken[-1].last_offset + 1 - part.log_start)
    dirty = part.records.distinct(records / pieces)
    jobs_between = max(1.0, clean * ratio / (1 - ratio) / max(dirty, 1e-9))
    part.mean_dirty_bytes = part.mean_dirty_rows = 0.0
    part.lifetime_arrivals = part.arrivals_per_second * real.job_seconds * min(pieces, jobs_between)
    if jobs_between < pieces:
        part.mean_dirty_bytes = part.length_of(dirty) * (jobs_between + 1) / 2
        part.mean_dirty_rows = (
            part.clustered.mean_rows(part.lifetime_arrivals) if part.clustered is not None else 0.0
        )
        outputs.extra_clean_bytes += (pieces / jobs_between - 1) * part.length_of(clean)
    cleaned = outputs.cleaned.setdefault(part.key.topic_id, CleanedClass(part=part))
    cleaned.partitions += part.weight
    cleaned.seconds = max(cleaned.seconds, seconds)
    cleaned.interval_seconds = max(cleaned.interval_seconds, real.job_seconds * min(pieces, jobs_between))
    cleaned.clean_bytes += part.length_of(clean) * outputs.log.scale.thinning
    cleaned.dirty_bytes += part.length_of(dirty) * min(pieces, jobs_between) * outputs.log.scale.thinning


def _count_reads(log: SimulatedLog, job: PlannedJob, counts: Counts, expansion: JobExpansion) -> None:
    deduplicated = {PartitionId(each.topic_id, each.partition) for each in job.partitions if each.deduplicate}
    for each in job.inputs:
        file = log.files.get(each.file_id) or log.ingestion.get(each.file_id)
        if file is None or (expansion.real is not None and job.kind in {JobKind.INGESTION, JobKind.CLEANING}):
            continue
        keyed = [one for one in each.extents if PartitionId(one.topic_id, one.partition) in deduplicated]
        # Pass 1 reads the deduplicated partitions, pass 2 all partitions of the job.
        counts.get_compaction += (2 if keyed else 1) * file.objects
        counts.read_bytes += (
            byte_range_of(keyed).length + byte_range_of(each.extents).length
        ) * log.scale.thinning


def _count_writes(
    log: SimulatedLog, job: PlannedJob, outputs: _Outputs, counts: Counts, expansion: JobExpansion
) -> None:
    thinning = log.scale.thinning
    # Each ingestion job of a round writes its own files.
    min_files = expansion.jobs_per_round / max(1, len(outputs.done)) if job.kind is JobKind.INGESTION else 1.0
    for file in outputs.done:
        size = outputs.sizes[file.view.file_id] * thinning
        counts.upload(size, max(file.objects, min_files))
        counts.written_bytes += size
        if job.kind is JobKind.CLEANING:
            counts.cleaned_bytes += size
        elif job.kind in {JobKind.MERGING, JobKind.CLUSTERING}:
            counts.merged_bytes += size
    number = max(1.0, job.input_bytes * thinning / expansion.max_job_bytes)
    if job.kind is JobKind.MERGING:
        counts.merging_jobs += number
    elif job.kind is JobKind.CLUSTERING:
        counts.clustering_jobs += number
    elif expansion.real is None and job.kind is JobKind.INGESTION:
        counts.ingestion_jobs += number
    elif expansion.real is None:
        counts.cleaning_jobs += number


def _count_repeated_cleanings(
    log: SimulatedLog, outputs: _Outputs, counts: Counts, expansion: JobExpansion
) -> None:
    """Count the real system's cleanings that the model does in one job."""
    if expansion.real is not None:
        for cleaned in outputs.cleaned.values():
            cleaned.count(expansion.real, counts)
    if outputs.extra_clean_bytes:
        size = outputs.extra_clean_bytes * log.scale.thinning
        counts.upload(size, max(1.0, size / log.scale.full_bytes))
        counts.written_bytes += size
        counts.cleaned_bytes += size
