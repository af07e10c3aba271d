"""Formulas for the cleaning and clustering jobs of the real system.

A scaled model cleans all partitions of a class at once. In the real system, a partition is due when its dirty
bytes exceed clean · r / (1 - r), where r is min.cleanable.dirty.ratio, and partitions become due one after
the other. The formulas assume that the partitions due at each plan are spread evenly over all partitions.

- A cleaning job reads, of each file, the byte range that covers its partitions. Partitions that are near
  enough to each other (`planner.selection`) share a job, which also reads the bytes between them. Each of the
  other partitions has a separate job.
- A file of arriving records shrinks while its partitions are cleaned one by one. It is rewritten each time
  that it has lost half of its bytes, which adds up to about two rewrites.
- A clustering job takes as many neighbouring partitions as a plan can examine.
  `cost_model.rates.clustered_arrivals` says how often and in which runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from planner.selection import GET_IN_READING, JOB_IN_READING

if TYPE_CHECKING:
    from cost_model.engine.counts import Counts
    from cost_model.engine.simulated_log import SimulatedPartition
    from planner.settings import PlannerSettings

_SHRINKING_REWRITES: Final = 2.0
# Between the partitions of a clustering job lie partitions that need no clustering yet. The job also reads
# their bytes: 1.7 times the bytes that it takes, measured with the policy on 1,200 partitions. A job with
# few partitions reads less.
_GAP_READ_FACTOR: Final = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSystem:
    """The real system as seen by the topics of one scaled model.

    A plan is made every `planning_interval_seconds`. An ingestion job covers `job_seconds` of the log and
    takes `job_bytes` in `job_files` files, before older extents join it. Until clustering, a file with
    arriving records covers all `partitions` for `file_seconds`. A plan examines up to `clustering_extents`
    extents of partitions that need clustering.
    """

    settings: PlannerSettings
    partitions: float
    planning_interval_seconds: float
    job_seconds: float
    file_seconds: float
    job_bytes: float
    job_files: float
    clustering_extents: float

    def count_clustering(
        self, part: SimulatedPartition, arrivals: float, seconds: float, counts: Counts
    ) -> None:
        """Count the jobs that cluster new extents within `seconds`.

        Each partition that `part` represents receives `arrivals` extents in this time.
        """
        clustered = part.clustered
        if clustered is None or not arrivals:
            return
        life = part.lifetime_arrivals
        runs = part.weight * arrivals * clustered.rate(clustered.runs, life)
        if not runs:
            return
        taken = part.weight * arrivals * clustered.rate(clustered.taken, life)
        size = part.weight * arrivals * clustered.rate(clustered.written, life) * part.arrival_bytes
        at_once = max(1.0, self.partitions / part.weight * runs / seconds * self.planning_interval_seconds)
        together, files = self.neighbours(part, taken / runs, at_once)
        jobs = runs / together
        counts.clustering_jobs += jobs
        counts.get_compaction += jobs * files
        counts.read_bytes += size * (1 + _GAP_READ_FACTOR * (1 - 1 / together))
        counts.written_bytes += size
        counts.merged_bytes += size
        counts.upload(size, max(jobs, size / self.settings.full_bytes))

    def neighbours(self, part: SimulatedPartition, run: float, at_once: float) -> tuple[float, float]:
        """Return how many partitions a clustering job takes, and how many files.

        `run` is the number of extents that it takes of each partition, `at_once` the number of partitions
        that need clustering at one plan. If a partition occurs in only some of the files, its run extends
        over more of them.
        """
        limits = self.settings
        presence = min(1.0, part.arrivals_per_second * self.file_seconds)
        span = run / presence
        wanted = min(
            at_once,
            self.partitions,
            self.clustering_extents / min(run + limits.resting_extents, limits.max_seen_extents),
            limits.max_job_extents / run,
            limits.max_job_input_bytes / (run * part.arrival_bytes),
        )
        if span > limits.max_job_files:
            wanted = min(wanted, limits.max_job_files / run)
        together = max(1.0, wanted)
        return together, span * (1 - (1 - presence) ** together) if presence < 1 else span


@dataclass(slots=True, kw_only=True)
class CleanedClass:
    """The partitions of one class that a job of the model cleans, in units of the real system.

    `seconds` have passed since the model last cleaned them. The real system cleans each of them every
    `interval_seconds`.
    """

    part: SimulatedPartition
    partitions: float = 0.0
    seconds: float = 0.0
    interval_seconds: float = 0.0
    clean_bytes: float = 0.0
    dirty_bytes: float = 0.0

    def count(self, real: RealSystem, counts: Counts) -> None:
        """Count what the real system reads for these cleanings, and what it writes by merging."""
        repeats = max(1.0, self.seconds / self.interval_seconds)
        plans_between = max(1.0, self.interval_seconds / real.planning_interval_seconds)
        at_once = max(1.0, self.partitions / plans_between)
        each, files, together = self._jobs(real, at_once)
        jobs = self.partitions / together
        joins = self._joins(real, each, files)
        # An ingestion job reads the newest part of the dirty bytes anyway.
        older = max(0.0, 1 - real.job_seconds / self.interval_seconds) if joins else 1.0
        counts.read_bytes += repeats * 2 * self.partitions * each * older
        counts.get_compaction += repeats * 2 * jobs * files * older
        if not joins:
            counts.cleaning_jobs += repeats * jobs
            # Each job writes one file that is not full.
            counts.upload(1.0, repeats * jobs)
        if jobs > 1 and self.interval_seconds > real.file_seconds:
            self._shrink(real, counts, repeats)

    def _rows(self, real: RealSystem) -> float:
        """Return the number of extents that hold a partition's dirty bytes when it is cleaned."""
        part = self.part
        arrivals = max(1.0, min(1 / real.file_seconds, part.arrivals_per_second) * self.interval_seconds)
        return (
            max(1.0, part.clustered.of(part.clustered.rows, arrivals))
            if part.clustered is not None
            else arrivals
        )

    def _jobs(self, real: RealSystem, at_once: float) -> tuple[float, float, float]:
        """Return the bytes that one pass reads per partition, and the files and partitions of a job."""
        limits, part, rows = real.settings, self.part, self._rows(real)
        clean, dirty = self.clean_bytes / self.partitions, self.dirty_bytes / self.partitions
        gap = real.partitions / at_once
        # Unclustered extents lie in files with all partitions, clustered ones in files with those of one job.
        fresh = min(rows, limits.merge_fan_in) if part.clustered is not None else rows
        wide_bytes = min(dirty, fresh * part.arrival_bytes) if part.clustered is not None else dirty
        together, _ = real.neighbours(part, max(1.0, rows), real.partitions)
        clustered_near, clean_near = gap < together, gap * clean < limits.full_bytes
        shared = fresh + (rows - fresh if clustered_near else 0.0) + (1.0 if clean_near else 0.0)
        between = gap * (
            wide_bytes + (dirty - wide_bytes if clustered_near else 0.0) + (clean if clean_near else 0.0)
        )
        if at_once <= 1 or 2 * between > 2 * shared * GET_IN_READING + JOB_IN_READING:
            return clean + dirty, rows + 1, 1.0
        each, apart = clean + dirty + between, rows + 1 - shared
        max_partitions = min(
            at_once,
            limits.max_job_input_bytes / each,
            limits.max_job_extents / (rows + 1),
            max(1.0, limits.max_job_files - shared) / apart if apart else at_once,
        )
        partitions = max(1.0, max_partitions)
        return each, shared + partitions * apart, partitions

    @staticmethod
    def _joins(real: RealSystem, each: float, files: float) -> bool:
        """Return True if the older extents fit into an ingestion job; then no other job cleans them."""
        limits = real.settings
        return (
            real.job_bytes + each <= limits.max_job_input_bytes
            and real.job_files + files <= limits.max_job_files
        )

    def _shrink(self, real: RealSystem, counts: Counts, repeats: float) -> None:
        """Count the rewrites of files that lose half of their bytes because their partitions are cleaned."""
        size = _SHRINKING_REWRITES * self.dirty_bytes * repeats
        jobs = max(1.0, 2 * size / real.settings.full_bytes)
        counts.merged_bytes += size
        counts.written_bytes += size
        counts.read_bytes += size
        counts.merging_jobs += jobs
        counts.get_compaction += jobs
        counts.upload(size, jobs)
