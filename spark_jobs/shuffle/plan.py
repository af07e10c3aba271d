"""The exact plan for jobs whose keys do not fit one key table: spread a partition over a cluster.

Goals: the memory of a task is bounded by the key table's budget and not by the job. The result is exact: no
key occurs twice in a partition's range. Every input is read twice and written once, with two GETs per input
file, or two ranged GETs for each share of a cut file and two for an index. Spark moves bytes, not records.

Terms:

- A *share* is the input of one task in pass 1 and one task in pass 2: some of the job's input files, or a
  byte range of a file that is larger than a share (`spark_jobs.shuffle.shares`).
- A *run* is a sequence of consecutive parts of one partition in one share. It becomes a section of an output
  file.
- A *bucket* holds the keys of one partition whose fingerprints agree in the leading bits of their second word
  (the table uses the first word). Buckets are numbered through the job.
- A *blob* holds the fingerprints of one chunk of a run that fall into one bucket
  (`object_format.dedupe.buckets`).

Flow, one Spark query of three stages:

1. *Cut.* A task for each share reads its files once, partition by partition and run by run, fingerprints the
   keys, and cuts them into blobs. Each blob names its run.
2. *Judge.* A shuffle brings the blobs of a bucket together, newest first. A task judges its buckets one at a
   time, with one key table: a record survives if its key is not in the table yet. The survivors of a bucket
   become Roaring bitmaps, one for each run.
3. *Write.* A second shuffle brings the bitmaps of a share together. A task for each share merges them, reads
   its files again and writes the survivors, as the one-task path does. It returns a row with the files that
   it wrote.

The driver merges the rows into one result, and sees neither blobs nor bitmaps. Each stage also passes on
reports: counters and failures. A task that fails informs every task of the next stage, and so finally all
shares, so that none writes; the failure is then the job's result. Each task verifies that it has all rows,
although Spark may have repeated some (`spark_jobs.shuffle.row_counts`): a judge has all blobs that the shares
sent to it, a writer has the verdicts of all judges, and pass 2 reads as many records as were judged.

Order: judging newest first only needs blobs of a bucket that do not overlap by offset and arrive sorted. Runs
do not overlap, and a task cuts each run in offset order, so this holds.

Size: every bucket is expected to hold so few records that its keys fit the table with eight standard
deviations to spare, even if no key occurs twice. Fingerprints are random to everyone who does not know the
job's seed. More buckets are made if smaller tables are faster. If a bucket does not fit after all, the judge
keeps the records that it cannot judge and reports them, as the one-task path does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from object_format.dedupe import MAX_RETAINED_RECORDS, key_capacity
from object_format.dedupe.buckets import BLOB_RECORD_BYTES, MAX_BUCKET_BITS
from spark_jobs.shuffle.shares import ShareSizes, make_shares
from spark_jobs.task.arrangement import arrange

if TYPE_CHECKING:
    from catalog.model import JobSpec
    from spark_jobs.shuffle.shares import Share
    from spark_jobs.task.arrangement import InputPart, PartitionWork

BUCKET_RECORDS: Final = 1 << 18
"""Records per bucket, unless the table requires fewer: their table fits a processor's caches."""

_DEVIATIONS: Final = 8
_BITS_FOR_SPEED: Final = 10
_JUDGE_BYTES: Final = 64 << 20
"""Bytes of blobs per task of the second stage."""

_MIN_JUDGES: Final = 8
_MAX_JUDGES: Final = 2000


class PlanChoice(StrEnum):
    """The way a job runs: `auto` decides by an estimate."""

    AUTO = "auto"
    TASK = "task"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """How a job is spread; plain numbers that travel with it.

    `bits` has, for each partition in the job's order, the number of leading bits that select its buckets;
    None if it is not deduplicated. `judges` is the number of tasks in the second stage.
    """

    shares: tuple[Share, ...]
    bits: tuple[int | None, ...]
    judges: int

    @property
    def cut_files(self) -> dict[int, list[int]]:
        """The inputs that are divided among shares, each with the numbers of the shares that read it."""
        cut: defaultdict[int, list[int]] = defaultdict(list)
        for number, share in enumerate(self.shares):
            if share.byte_range is not None:
                cut[share.inputs[0]].append(number)
        return dict(cut)

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return sum(1 << bits for bits in self.bits if bits is not None)

    @property
    def bucket_ends(self) -> list[int]:
        """For each partition, the number after its last bucket."""
        return list(accumulate(0 if bits is None else 1 << bits for bits in self.bits))


def choose_plan(spec: JobSpec, choice: PlanChoice) -> ShufflePlan | None:
    """Return the shuffle plan for a job; None if it runs as one task.

    `auto` decides by an estimate, unless the job must be exact. A job that deduplicates nothing always runs
    as one task. There is nothing to judge, and each share would write its own file: merging small files
    would write as many small files again.
    """
    if choice is PlanChoice.TASK or not any(each.deduplicate for each in spec.partitions):
        return None
    if choice is PlanChoice.AUTO and not spec.exact and not _outgrows_task(spec):
        return None
    plan = plan_shuffle(spec)
    return plan if plan.shares else None


def _outgrows_task(spec: JobSpec) -> bool:
    """Return True if one task would probably run out of memory and leave keys twice.

    Either the keys of a partition may not fit the table, or a section that may have keys twice is longer than
    a task can hold back while it judges from the end. Neither happens if all records of the largest partition
    fit. The extents are arranged only if they do not.
    """
    capacity = key_capacity(spec.table_bytes)
    if _most_records(spec) <= min(MAX_RETAINED_RECORDS, capacity):
        return False
    works = [work for work in arrange(spec) if work.partition.deduplicate]
    if any(_is_too_long(part) for work in works for part in work.parts):
        return True
    expected = max((_expected_keys(work) for work in works), default=0)
    return expected > 0 and expected > capacity


def _most_records(spec: JobSpec) -> int:
    """Return the number of records of the largest partition, according to the catalog."""
    records: defaultdict[tuple[int, int], int] = defaultdict(int)
    for file in spec.inputs:
        for extent in file.extents:
            records[extent.topic_id.int, extent.partition] += extent.record_count
    return max(records.values(), default=0)


def _is_too_long(part: InputPart) -> bool:
    records = sum(extent.record_count for extent in part.extents)
    return records > MAX_RETAINED_RECORDS and not all(extent.unique_keys for extent in part.extents)


def plan_shuffle(spec: JobSpec, sizes: ShareSizes | None = None) -> ShufflePlan:
    """Return the plan for a job; deterministic."""
    works = arrange(spec)
    deduplicated = [work.records_in for work in works if work.partition.deduplicate]
    fitting = _records_that_fit(spec.table_bytes) if deduplicated else 1
    return ShufflePlan(
        shares=make_shares(works, sizes or ShareSizes()),
        bits=tuple(_bits(work.records_in, fitting) if work.partition.deduplicate else None for work in works),
        judges=_judges(sum(deduplicated)),
    )


def _expected_keys(work: PartitionWork) -> float:
    """Estimate the number of keys from record counts.

    Extents without duplicate keys are outputs of earlier jobs. The part of their offsets that still has a
    record predicts which part of the newer records will stay. Without such extents, every record may have a
    new key.
    """
    clean = [extent for part in work.parts for extent in part.extents if extent.unique_keys]
    kept = sum(extent.record_count for extent in clean)
    span = sum(extent.last_offset - extent.base_offset + 1 for extent in clean)
    ratio = kept / span if kept else 1.0
    return kept + ratio * (work.records_in - kept)


def keys_expected(records: int, bits: int) -> int:
    """Return an upper bound for the keys of a bucket, eight standard deviations above the mean."""
    mean = records / (1 << bits)
    return min(records, math.ceil(mean + _DEVIATIONS * math.sqrt(mean)))


def _records_that_fit(table_bytes: int) -> int:
    """Return the largest n for which n + 8 √n keys fit the table."""
    capacity = key_capacity(table_bytes)
    half = _DEVIATIONS / 2
    return max(1, int((math.sqrt(half**2 + capacity) - half) ** 2))


def _bits(records: int, fitting: int) -> int:
    needed = _doublings(records / fitting)
    quick = min(_doublings(records / BUCKET_RECORDS), _BITS_FOR_SPEED)
    return min(max(needed, quick), MAX_BUCKET_BITS)


def _doublings(parts: float) -> int:
    return max(0, math.ceil(math.log2(parts))) if parts > 0 else 0


def _judges(records: int) -> int:
    wanted = -(-records * BLOB_RECORD_BYTES // _JUDGE_BYTES)
    return min(max(wanted, _MIN_JUDGES), _MAX_JUDGES)
