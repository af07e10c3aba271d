"""How the real system cleans what the cell cleans at once, and how it sorts news, job by job: by formula.

Partitions become due one after the other, each when its dirty part exceeds clean · r / (1 - r). In the cell
all partitions of a class are due at once. So the jobs for them are counted here: in each look of a cycle as
many are due, spread evenly over all partitions. A job reads of each file the span of its partitions:
neighbours that are near enough (`planner.selection`) share one, which goes over what lies between them; the
others have jobs of their own. While its partitions are cleaned out of it one by one, a file of news shrinks,
and is written anew each time it has lost half: the halves add up to about two more writings.

Sorting jobs take neighbours, as many as a plan has room to look at; how often, and in which runs, tells
`cost_model.engine.clusterings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from planner.selection import GET_IN_READING, JOB_IN_READING

if TYPE_CHECKING:
    from cost_model.engine.counts import Counts
    from cost_model.engine.scaled_model import Part
    from planner.settings import PlannerSettings

PART_BYTES: Final = 8 * 2**20
_WRITINGS_WHILE_IT_SHRINKS: Final = 2.0
# Between the partitions of a sorting job are such as wait for the next one: 1.7 times as much as it takes is
# read over, by a trial of the policy on 1,200 partitions, and less where it has but a few.
_READ_OVER: Final = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What all topics of one kind get together in the real system, and how often jobs are planned for it.

    `look_seconds` pass between two plans, `job_seconds` are in one ingestion job, which takes `job_bytes` in
    `job_files` before anything older joins. Files of news cover all of `partitions` for `file_seconds`, until
    they are sorted. A plan has room for so many extents of partitions that are to be sorted.
    """

    settings: PlannerSettings
    partitions: float
    look_seconds: float
    job_seconds: float
    file_seconds: float
    job_bytes: float
    job_files: float
    clustering_room: float

    def sort(self, part: Part, arrivals: float, seconds: float, counts: Counts) -> None:
        """Add the jobs that sort so many extents of each partition that `part` stands for, in some time."""
        news = part.news
        if news is None or not arrivals:
            return
        life = part.lifetime
        runs = part.weight * arrivals * news.rate(news.runs, life)
        if not runs:
            return
        taken = part.weight * arrivals * news.rate(news.taken, life)
        size = part.weight * arrivals * news.rate(news.written, life) * part.arrival_bytes
        at_once = max(1.0, self.partitions / part.weight * runs / seconds * self.look_seconds)
        together, files = self.neighbours(part, taken / runs, at_once)
        jobs = runs / together
        counts.clustering_jobs += jobs
        counts.get_compaction += jobs * files
        counts.read_bytes += size * (1 + _READ_OVER * (1 - 1 / together))
        counts.written_bytes += size
        counts.merged_bytes += size
        counts.planned_extents += taken
        counts.upload(size, max(jobs, size / self.settings.full_bytes), PART_BYTES)

    def neighbours(self, part: Part, run: float, at_once: float) -> tuple[float, float]:
        """How many partitions a sorting job takes, each with a run of so many extents, and how many files.

        There are no more than are to be sorted `at_once`. A partition that has something in a part of the
        files only, has its run in as many more of them.
        """
        limits = self.settings
        here = min(1.0, part.arrivals_per_second * self.file_seconds)
        span = run / here
        wanted = min(
            at_once,
            self.partitions,
            self.clustering_room / min(run + limits.resting_extents, limits.max_seen_extents),
            limits.max_job_extents / run,
            limits.max_job_input_bytes / (run * part.arrival_bytes),
        )
        if span > limits.max_job_files:
            wanted = min(wanted, limits.max_job_files / run)
        together = max(1.0, wanted)
        return together, span * (1 - (1 - here) ** together) if here < 1 else span


@dataclass(slots=True, kw_only=True)
class Cleaned:
    """The partitions of one class in a job of the cell, in real units; `seconds` ago the last one ended."""

    part: Part
    partitions: float = 0.0
    seconds: float = 0.0
    cycle_seconds: float = 0.0
    clean_bytes: float = 0.0
    dirty_bytes: float = 0.0

    def count(self, stream: Stream, counts: Counts) -> None:
        """Add what the real system reads, and writes by merging, instead of the cell's one job."""
        cycles = max(1.0, self.seconds / self.cycle_seconds)
        looks = max(1.0, self.cycle_seconds / stream.look_seconds)
        at_once = max(1.0, self.partitions / looks)
        each, files, together = self._jobs(stream, at_once)
        jobs = self.partitions / together
        joins = self._joins(stream, each, files)
        # An ingestion job that older extents join has the newest part at hand anyway.
        older = max(0.0, 1 - stream.job_seconds / self.cycle_seconds) if joins else 1.0
        counts.read_bytes += cycles * 2 * self.partitions * each * older
        counts.get_compaction += cycles * 2 * jobs * files * older
        counts.planned_extents += cycles * self.partitions * (1 + self._rows(stream))
        if not joins:
            counts.cleaning_jobs += cycles * jobs
            # Each writes a file, beside those that are full.
            counts.upload(1.0, cycles * jobs, PART_BYTES)
        if jobs > 1 and self.cycle_seconds > stream.file_seconds:
            self._shrink(stream, counts, cycles)

    def _rows(self, stream: Stream) -> float:
        """In how many extents the dirty part is by then."""
        part = self.part
        arrivals = max(1.0, min(1 / stream.file_seconds, part.arrivals_per_second) * self.cycle_seconds)
        return max(1.0, part.news.of(part.news.rows, arrivals)) if part.news is not None else arrivals

    def _jobs(self, stream: Stream, at_once: float) -> tuple[float, float, float]:
        """Bytes that a stream reads for each partition, a job's files, and how many partitions it has."""
        limits, part, rows = stream.settings, self.part, self._rows(stream)
        clean, dirty = self.clean_bytes / self.partitions, self.dirty_bytes / self.partitions
        gap = stream.partitions / at_once
        # Extents as they came lie in files with all partitions, sorted ones in files with those of a job.
        fresh = min(rows, limits.merge_fan_in) if part.news is not None else rows
        wide_bytes = min(dirty, fresh * part.arrival_bytes) if part.news is not None else dirty
        together, _ = stream.neighbours(part, max(1.0, rows), stream.partitions)
        sorted_too, clean_too = gap < together, gap * clean < limits.full_bytes
        shared = fresh + (rows - fresh if sorted_too else 0.0) + (1.0 if clean_too else 0.0)
        between = gap * (
            wide_bytes + (dirty - wide_bytes if sorted_too else 0.0) + (clean if clean_too else 0.0)
        )
        if at_once <= 1 or 2 * between > 2 * shared * GET_IN_READING + JOB_IN_READING:
            return clean + dirty, rows + 1, 1.0
        each, apart = clean + dirty + between, rows + 1 - shared
        most = min(
            at_once,
            limits.max_job_input_bytes / each,
            limits.max_job_extents / (rows + 1),
            max(1.0, limits.max_job_files - shared) / apart if apart else at_once,
        )
        number = max(1.0, most)
        return each, shared + number * apart, number

    @staticmethod
    def _joins(stream: Stream, each: float, files: float) -> bool:
        """Whether ingestion jobs have room for what is older, so that no other job need clean it."""
        limits = stream.settings
        return (
            stream.job_bytes + each <= limits.max_job_input_bytes
            and stream.job_files + files <= limits.max_job_files
        )

    def _shrink(self, stream: Stream, counts: Counts, cycles: float) -> None:
        """Count what is written anew while files of news shrink, a file at a time once half of it is gone."""
        size = _WRITINGS_WHILE_IT_SHRINKS * self.dirty_bytes * cycles
        jobs = max(1.0, 2 * size / stream.settings.full_bytes)
        counts.merged_bytes += size
        counts.written_bytes += size
        counts.read_bytes += size
        counts.merging_jobs += jobs
        counts.get_compaction += jobs
        counts.upload(size, jobs, PART_BYTES)
