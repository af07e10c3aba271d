"""How often the real system cleans what the cell cleans at once, and what its jobs read for that.

News of a compacted topic lie in files with those of all the others. Partitions become due one after the
other, each when its dirty part exceeds clean · r / (1 - r), and a job that cleans a few of them reads every
file with news of theirs, from end to end and twice, whatever else lies in it. In the cell all partitions of a
class are due at once. So their jobs are counted here: by how many partitions are due at each look, and by how
the bounds on a job part them. While its partitions are cleaned out of it one by one, a file of news shrinks,
and is merged with its neighbours each time it has lost half: the halves add up to about two more writings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from planner.settings import PlannerSettings
    from planner.simulation.counts import Counts

PART_BYTES: Final = 8 * 2**20
_WRITINGS_WHILE_IT_SHRINKS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What all compacted topics of the real system get together, and how often jobs are planned for it.

    `file_bytes` is how large merged files of news are; `job_bytes` and `job_files` are what an ingestion job
    takes already before anything older joins.
    """

    settings: PlannerSettings
    bytes_per_second: float
    look_seconds: float
    job_seconds: float
    file_bytes: float
    job_bytes: float
    job_files: float


@dataclass(slots=True, kw_only=True)
class Cleaned:
    """The partitions of one class in a job of the cell, in real units; `seconds` ago the last one ended."""

    partitions: float = 0.0
    seconds: float = 0.0
    cycle_seconds: float = 0.0
    clean_bytes: float = 0.0
    bytes_per_second: float = 0.0

    def count(self, stream: Stream, counts: Counts) -> None:
        """Add what the real system reads, and writes by merging, instead of the cell's one job."""
        cycles = max(1.0, self.seconds / self.cycle_seconds)
        news = stream.bytes_per_second * self.cycle_seconds
        news_files = max(1.0, news / stream.file_bytes)
        full = stream.settings.full_bytes
        clean_files = max(1.0, self.clean_bytes / full)
        looks = max(1.0, self.cycle_seconds / stream.look_seconds)
        at_once = max(1.0, self.partitions / looks)
        touched = min(at_once, clean_files)
        jobs = min(self.partitions, looks * self._split(stream, news, news_files, at_once, touched))
        # A file of clean partitions has those of one job, beside what came with them.
        together = at_once * self.clean_bytes / self.partitions
        file = min(full, together + stream.bytes_per_second * stream.job_seconds)
        pieces = min(self.partitions, looks * touched)
        joins = self._joins(stream, news, news_files, touched)
        # An ingestion job that older extents join has the newest part at hand anyway.
        older = max(0.0, 1 - stream.job_seconds / self.cycle_seconds) if joins else 1.0
        counts.read_bytes += cycles * 2 * (jobs * news * older + pieces * file)
        counts.get_compaction += cycles * 2 * (jobs * news_files * older + pieces)
        counts.cleaning_jobs += 0.0 if joins else cycles * jobs
        if jobs > 1 and news_files > 1:
            shrinking = _WRITINGS_WHILE_IT_SHRINKS * self.bytes_per_second * self.cycle_seconds * cycles
            counts.merged_bytes += shrinking
            counts.written_bytes += shrinking
            counts.read_bytes += shrinking
            counts.upload(shrinking, max(1.0, shrinking / full), PART_BYTES)

    @staticmethod
    def _split(stream: Stream, news: float, news_files: float, at_once: float, touched: float) -> float:
        """How many jobs the partitions make that are due at one look."""
        limits = stream.settings
        room = limits.max_job_input_bytes - news
        files = limits.max_job_files - news_files
        by_bytes = touched * limits.full_bytes / room if room > limits.full_bytes else touched
        by_files = touched / files if files > 1 else touched
        by_extents = at_once * news_files / limits.max_job_extents
        return max(1.0, min(by_bytes, touched), min(by_files, touched), min(by_extents, at_once))

    @staticmethod
    def _joins(stream: Stream, news: float, news_files: float, touched: float) -> bool:
        """Whether ingestion jobs have room for what is older, so that no other job need clean it."""
        limits = stream.settings
        older = news + touched * limits.full_bytes
        return (
            stream.job_bytes + older <= limits.max_job_input_bytes
            and stream.job_files + news_files + touched <= limits.max_job_files
        )
