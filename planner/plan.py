"""What the policy answers: jobs, and for every partition what becomes of it and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from catalog.jobs.byte_ranges import byte_range_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from catalog.model import JobInput, JobPartition
    from planner.score import JobScore


class JobKind(StrEnum):
    """What a job is for.

    To empty ingestion files, to clean partitions, to merge small files, to sort short extents by ranges of
    partitions, or to find what spoils jobs.
    """

    INGESTION = "ingestion"
    CLEANING = "cleaning"
    MERGING = "merging"
    SORTING = "sorting"
    BISECTION = "bisection"


class Verdict(StrEnum):
    """What becomes of a partition in a plan; the first four are in a job."""

    CLEAN = "clean"  # deduplicated from the log start: afterwards it is clean up to the job's end
    DEDUPLICATE = "deduplicate"  # deduplicated within the job's range; what is older stays as it is
    SPLIT = "split"  # moved into a compacted file as it stands
    MERGE = "merge"  # moved from compacted files into larger ones, or into longer extents, as it stands
    WAIT = "wait"  # something is there, and may not or should not be taken yet
    NOTHING = "nothing"  # nothing is there to be done


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDecision:
    """Why a partition is, or is not, in a job; `job` is the index of the job in its plan.

    A partition has one decision for each job that takes some of it, or a single one without a job.
    Bytes and ratio speak of what may be taken at all, by Kafka's definitions.
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
class PlannedJob:
    """A job as the policy wants it: everything of a `JobSpec` that is decided rather than drawn.

    `input_bytes` is what each of the two streams reads: of every input, from the first wanted section to the
    last one; `taken_bytes` is the part of it that belongs to the job's extents; `output_bytes` from what size
    on output files are ended. An `exact` job is for a partition that one before has left inexact.
    """

    kind: JobKind
    reason: str
    inputs: tuple[JobInput, ...]
    partitions: tuple[JobPartition, ...]
    output_bytes: int
    worth: JobScore
    exact: bool = False

    @property
    def input_bytes(self) -> int:
        """Bytes that one stream over every input reads."""
        return sum(byte_range_of(each.extents).length for each in self.inputs)

    @property
    def taken_bytes(self) -> int:
        """Bytes of the extents that the job replaces."""
        return sum(extent.length for each in self.inputs for extent in each.extents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The jobs to submit, best first, and the reasons for them and for everything that is left alone.

    `deferred` is how many more there would be if the budget allowed them. The reasons are put into words when
    somebody asks for them, since there are as many as partitions were looked at.
    """

    now_ms: int
    jobs: tuple[PlannedJob, ...]
    decide: Callable[[], tuple[PartitionDecision, ...]] = field(compare=False, repr=False)
    deferred: int = 0

    @property
    def decisions(self) -> tuple[PartitionDecision, ...]:
        """What becomes of each partition that was looked at, in section order."""
        return self.decide()

    def explain(self, topic_name: str) -> tuple[PartitionDecision, ...]:
        """What was decided about one topic, partition by partition; empty for a topic without any."""
        return tuple(each for each in self.decisions if each.topic_name == topic_name)
