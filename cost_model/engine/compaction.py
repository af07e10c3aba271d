"""Carries out a planned job on a cell: which extents and files come of it, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from catalog.jobs.byte_ranges import byte_range_of
from catalog.model import FileKind, PartitionId
from cost_model.engine.cleanings import PART_BYTES, Cleaned
from cost_model.engine.scaled_model import SECTION_BYTES, CellFile, CellLog, Part, taken_extents
from planner.plan import JobKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.model import Extent, JobPartition
    from cost_model.engine.cleanings import Stream
    from cost_model.engine.counts import Counts
    from planner.plan import PlannedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How the real system goes through what is one job of the cell.

    `pieces` ingestion jobs share a round, each of which deduplicates by itself. With a `stream` of news, the
    reading of ingestion files is counted elsewhere for all of a round, and that for cleanings by `cleanings`.
    """

    pieces: float = 1.0
    max_job_bytes: float = float("inf")
    stream: Stream | None = None


@dataclass(slots=True)
class _Outputs:
    """The files that a job writes, by kind of cleanup policy; ended by size, as `spark_jobs` does."""

    log: CellLog
    now_ms: int
    limit: int
    open: dict[tuple[bool, bool], CellFile] = field(default_factory=dict)
    done: list[CellFile] = field(default_factory=list)
    sizes: dict[UUID, int] = field(default_factory=dict)
    sections: dict[UUID, float] = field(default_factory=dict)
    cleaned: dict[UUID, Cleaned] = field(default_factory=dict)
    extra: float = 0.0

    def file_for(self, *, compacted: bool, clean: bool) -> CellFile:
        """The open file, or a new one; where a file stands for pieces, clean partitions have their own."""
        apart = clean and self.log.scale.dilation > 1
        limit = self.log.scale.clean_file_bytes if apart else self.limit
        file = self.open.get((compacted, apart))
        if file is not None and file.born_bytes < limit:
            return file
        file = self.log.new_file(FileKind.COMPACTED, self.now_ms)
        self.open[compacted, apart] = file
        self.done.append(file)
        self.sizes[file.view.file_id] = 0
        self.sections[file.view.file_id] = 0.0
        return file

    def grow(self, file: CellFile, length: int, part: Part, rows: float) -> None:
        self.sizes[file.view.file_id] += length + round(SECTION_BYTES * part.share * rows)
        self.sections[file.view.file_id] += part.weight * rows

    def publish(self) -> None:
        for file in self.done:
            file.objects = self.log.scale.objects(file.born_bytes, self.sections[file.view.file_id])
        self.log.publish(self.done, self.sizes)


def apply(log: CellLog, job: PlannedJob, now_ms: int, counts: Counts, rhythm: Rhythm) -> None:
    """JobPublication what is still alive of the job's extents for what it writes."""
    _count_reads(log, job, counts, rhythm)
    outputs = _Outputs(log, now_ms, job.output_bytes)
    for spec, (part, span, taken) in zip(job.partitions, taken_extents(log, job), strict=True):
        if taken:
            _rewrite(job.kind, spec, part, (span, taken), outputs, rhythm)
    outputs.publish()
    _count_writes(log, job, outputs, counts, rhythm)
    _count_repeated(log, outputs, counts, rhythm)


def _rewrite(
    kind: JobKind,
    spec: JobPartition,
    part: Part,
    found: tuple[tuple[int, int], Sequence[Extent]],
    outputs: _Outputs,
    rhythm: Rhythm,
) -> None:
    """One partition of a job."""
    log, (span, taken) = outputs.log, found
    base, upper = taken[0].base_offset, taken[-1].last_offset + 1
    whole = spec.deduplicate and base <= part.log_start
    pieces = rhythm.pieces if kind is JobKind.INGESTION else 1.0
    if whole:
        if rhythm.stream is not None:
            _repeat(part, taken, rhythm.stream, outputs)
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
    extent = replace(
        taken[0],
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
    log.swap(part, span, extent, file, rows)


def _rows(log: CellLog, part: Part, taken: Sequence[Extent]) -> float:
    """Rows of one real partition that is not cleaned: news as they come, the rest merged piece by piece."""
    if log.scale.dilation == 1:
        return 1.0
    news = sum(part.rows[each.base_offset] for each in taken if each.file_kind is FileKind.INGESTION)
    old = [part.rows[each.base_offset] for each in taken if each.file_kind is FileKind.COMPACTED]
    return max([news, *old])


def _repeat(part: Part, taken: Sequence[Extent], stream: Stream, outputs: _Outputs) -> None:
    """Note how often the real system cleans the partition, since the cell did so last.

    With clean bytes c, each job adding d, a partition is due again when its dirty part exceeds c·r/(1 - r).
    Each cleaning writes what is clean then. On average half of what makes it due is dirty.
    """
    news = [each for each in taken if each.last_offset >= part.first_dirty]
    if not news:
        return
    seconds = max(stream.job_seconds, (outputs.now_ms - news[0].min_timestamp) / 1000)
    pieces = seconds / stream.job_seconds
    records = sum(each.last_offset - each.base_offset + 1 for each in news)
    ratio = min(part.rules.min_cleanable_dirty_ratio, 0.99)
    clean = part.records.distinct(taken[-1].last_offset + 1 - part.log_start)
    dirty = part.records.distinct(records / pieces)
    jobs_between = max(1.0, clean * ratio / (1 - ratio) / max(dirty, 1e-9))
    part.standing_dirty = part.standing_rows = 0.0
    part.lifetime = part.arrivals_per_second * stream.job_seconds * min(pieces, jobs_between)
    if jobs_between < pieces:
        part.standing_dirty = part.length_of(dirty) * (jobs_between + 1) / 2
        part.standing_rows = part.news.mean_rows(part.lifetime) if part.news is not None else 0.0
        outputs.extra += (pieces / jobs_between - 1) * part.length_of(clean)
    cleaned = outputs.cleaned.setdefault(part.key.topic_id, Cleaned(part=part))
    cleaned.partitions += part.weight
    cleaned.seconds = max(cleaned.seconds, seconds)
    cleaned.cycle_seconds = max(cleaned.cycle_seconds, stream.job_seconds * min(pieces, jobs_between))
    cleaned.clean_bytes += part.length_of(clean) * outputs.log.scale.thinning
    cleaned.dirty_bytes += part.length_of(dirty) * min(pieces, jobs_between) * outputs.log.scale.thinning


def _count_reads(log: CellLog, job: PlannedJob, counts: Counts, rhythm: Rhythm) -> None:
    deduplicated = {PartitionId(each.topic_id, each.partition) for each in job.partitions if each.deduplicate}
    for each in job.inputs:
        file = log.files.get(each.file_id) or log.ingestion.get(each.file_id)
        if file is None or (rhythm.stream is not None and job.kind in {JobKind.INGESTION, JobKind.CLEANING}):
            continue
        keyed = [one for one in each.extents if PartitionId(one.topic_id, one.partition) in deduplicated]
        # Pass 1 reads what is deduplicated, pass 2 all that the job takes.
        counts.get_compaction += (2 if keyed else 1) * file.objects
        counts.read_bytes += (
            byte_range_of(keyed).length + byte_range_of(each.extents).length
        ) * log.scale.thinning


def _count_writes(log: CellLog, job: PlannedJob, outputs: _Outputs, counts: Counts, rhythm: Rhythm) -> None:
    thinning = log.scale.thinning
    # Each of the ingestion jobs that share a round writes files of its own.
    least = rhythm.pieces / max(1, len(outputs.done)) if job.kind is JobKind.INGESTION else 1.0
    for file in outputs.done:
        size = outputs.sizes[file.view.file_id] * thinning
        counts.upload(size, max(file.objects, least), PART_BYTES)
        counts.written_bytes += size
        if job.kind is JobKind.CLEANING:
            counts.cleaned_bytes += size
        elif job.kind in {JobKind.MERGING, JobKind.CLUSTERING}:
            counts.merged_bytes += size
    number = max(1.0, job.input_bytes * thinning / rhythm.max_job_bytes)
    if job.kind is JobKind.MERGING:
        counts.merging_jobs += number
    elif job.kind is JobKind.CLUSTERING:
        counts.clustering_jobs += number
    elif rhythm.stream is None and job.kind is JobKind.INGESTION:
        counts.ingestion_jobs += number
    elif rhythm.stream is None:
        counts.cleaning_jobs += number


def _count_repeated(log: CellLog, outputs: _Outputs, counts: Counts, rhythm: Rhythm) -> None:
    """What the real system does for the cleanings that the cell does at once."""
    if rhythm.stream is not None:
        for cleaned in outputs.cleaned.values():
            cleaned.count(rhythm.stream, counts)
    if outputs.extra:
        size = outputs.extra * log.scale.thinning
        counts.upload(size, max(1.0, size / log.scale.full_bytes), PART_BYTES)
        counts.written_bytes += size
        counts.cleaned_bytes += size
