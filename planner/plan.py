"""The result of the policy: jobs, and for every partition a decision and its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from catalog.jobs.byte_ranges import byte_range_of
from core.quantities import count, human_bytes
from planner.settings import MIB

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from catalog.model import JobInput, JobPartition


# A GET a day costs in a month as much as storing half a MiB: 30 * 400 nanodollars, at 23,000 a MiB.
READ_IN_BYTES: Final = MIB // 2
LONG_MS: Final = 24 * 60 * 60 * 1000


class JobKind(StrEnum):
    """The purpose of a job.

    Ingestion jobs empty ingestion files. Cleaning jobs deduplicate partitions. Merging jobs combine small
    files. Clustering jobs combine short extents of neighbouring partitions. Fault bisection jobs find the
    file that makes jobs fail.
    """

    INGESTION = "ingestion"
    CLEANING = "cleaning"
    MERGING = "merging"
    CLUSTERING = "clustering"
    FAULT_BISECTION = "fault_bisection"


class Verdict(StrEnum):
    """The decision about a partition in a plan; the first four put it into a job."""

    CLEAN = "clean"  # deduplicated from the log start, and then clean up to the job's end
    DEDUPLICATE = "deduplicate"  # deduplicated within the job's range; older records stay
    SPLIT = "split"  # copied into a compacted file
    MERGE = "merge"  # copied from compacted files into larger files or longer extents
    WAIT = "wait"  # has extents that may not or should not be taken yet
    NOTHING = "nothing"  # needs no job


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDecision:
    """The reason that a partition is in a job or not; `job` is the index of the job in its plan.

    A partition has one decision for each job that takes some of its extents, or a single one without a job.
    Bytes and ratio follow Kafka's definitions and cover the extents that a job may take.
    """

    topic_id: UUID
    topic_name: str
    partition: int
    verdict: Verdict
    reason: str
    job: int | None
    first_dirty_offset: int
    dirty_ratio: float
    clean_bytes: int
    cleanable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScore:
    """Expected gain and cost of a job.

    `reclaimed_bytes` become garbage and are not copied. `reads_saved` is the number of requests that a reader
    saves when it reads the job's partitions from end to end. `rewritten_bytes` are copied. `moved_bytes` are
    read or written, with requests for `nanodollars`. `overdue` jobs come first, because their topic promises
    a time. Jobs with a file that has waited for a day follow, the longest wait first, so that none waits
    forever.
    """

    reclaimed_bytes: int
    reads_saved: int
    rewritten_bytes: int
    moved_bytes: int
    nanodollars: int
    overdue: bool
    waited_ms: int = 0

    @property
    def gain_per_byte(self) -> float:
        """Expected gain for each byte that is rewritten."""
        gain = self.reclaimed_bytes + self.reads_saved * READ_IN_BYTES
        return gain / max(self.rewritten_bytes, 1)

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sort key of jobs, best first."""
        is_old = self.waited_ms >= LONG_MS
        return not self.overdue, not is_old, -self.waited_ms if is_old else -self.gain_per_byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The condition that a paced job waits for: more files, more bytes, or a time. The first one counts.

    0 files: the number of files does not matter.
    """

    files: int
    size_bytes: int
    seconds: float

    @override
    def __str__(self) -> str:
        files = [f"{count(self.files, 'more file')}"] if self.files else []
        return ", ".join([*files, f"{human_bytes(self.size_bytes)} more"]) + f" or {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job as the policy decided it; freezing adds only identifiers, times and a seed.

    `output_bytes` is the size at which output files are completed. An `exact` job cleans a partition that an
    earlier job left inexact. `wait` is what a watcher waits for before it plans the job.
    """

    kind: JobKind
    reason: str
    inputs: tuple[JobInput, ...]
    partitions: tuple[JobPartition, ...]
    output_bytes: int
    score: JobScore
    exact: bool = False
    wait: Wait | None = None

    @property
    def input_bytes(self) -> int:
        """Bytes that one stream over every input reads, from the first needed section to the last."""
        return sum(byte_range_of(each.extents).length for each in self.inputs)

    @property
    def taken_bytes(self) -> int:
        """Bytes of the extents that the job replaces."""
        return sum(extent.length for each in self.inputs for extent in each.extents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The jobs to submit, best first, and the reasons for them and for every partition that is left alone.

    `deferred` is the number of further jobs that the budget did not allow. `ingestion_end` is the cursor
    behind the last ingestion file that was considered, None if there was none. `is_complete` if no bound left
    anything else out. Reasons are computed on demand, because there is one for every partition.
    """

    now_ms: int
    jobs: tuple[PlannedJob, ...]
    decide: Callable[[], tuple[PartitionDecision, ...]] = field(compare=False, repr=False)
    deferred: int = 0
    ingestion_end: int | None = None
    is_complete: bool = True
    changes_at: Callable[[], int | None] = field(default=lambda: None, compare=False, repr=False)

    @property
    def next_change_ms(self) -> int | None:
        """Time until which a plan without jobs stays empty if only the clock changes; None: forever."""
        return self.changes_at()

    @property
    def decisions(self) -> tuple[PartitionDecision, ...]:
        """Decisions about each partition that was examined, in section order."""
        return self.decide()

    def explain(self, topic_name: str) -> tuple[PartitionDecision, ...]:
        """Return the decisions about one topic, partition by partition; empty for a topic without any."""
        return tuple(each for each in self.decisions if each.topic_name == topic_name)
