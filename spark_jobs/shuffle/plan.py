"""The exact plan for jobs whose keys fit no one key table: one partition of any size, spread over a cluster.

Concerns: what one task holds is bounded by the key table's budget and not by the job; the result is exact, no
key occurs twice in a partition's range; what is read and written is read and written once, by two GETs per
input file, or two ranged GETs for each share of a file that is cut; Spark moves bytes, not records.

Words. A *share* is what one task reads in pass 1, and one task in pass 2: some of the job's input files, or a
stretch of one that is larger than a share should be (`spark_jobs.shuffle.shares`).
A *run* is a stretch of one partition whose parts lie side by side in one share: a section of an output file.
A *bucket* holds the keys of one partition whose fingerprints agree in their leading bits (of the second word:
the table goes by the first); buckets are numbered through the job. A *blob* is what one chunk of a run has in
one bucket (`object_format.dedupe.buckets`).

Flow, one Spark query of three stages:

1. *Cut.* A task for each share reads its files once, partition by partition, run by run, fingerprints
   the keys, and cuts them into blobs. Each says of which run it is.
2. The shuffle brings the blobs of a bucket together, newest first. *Judge.* A task goes through its buckets,
   one after the other, with one key table: a record survives when its key is not in the table yet. The
   bucket's survivors become Roaring bitmaps, one for each run.
3. A second shuffle brings the bitmaps of a share together. *Write.* A task for each share unites them,
   reads its files once more and writes what survives, as the one-task path does. Its answer is a
   row with the files that it wrote.

The driver unites the answers into one result, and sees neither blobs nor bitmaps. Beside blobs and bitmaps,
each stage passes on reports: counts, and failures. A task that fails tells every task of the next stage, and
so at last all shares, so that none writes; the job's failure is then an answer, as everywhere. That nothing
is missing, whatever Spark has run again, each task finds out before it answers (`spark_jobs.shuffle.ends`):
a judge has all blobs that the shares have for it, a writer has what all judges say, and pass 2 reads as many
records as were judged.

Order. Newest-first judging needs no more than that blobs of a bucket do not overlap by offset, and come
sorted. A run's offsets are its own and a cutter cuts them in order, so they do not.

Size. Every bucket is expected to hold so few records that its keys fit the table with eight standard
deviations to spare, even if no key occurred twice: fingerprints are random to whoever does not know the
job's seed. More buckets than that are made where smaller tables are quicker. Should one not fit all the same,
it keeps what it cannot judge and says so, as in the one-task path.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from object_format.dedupe import MAX_RETAINED_RECORDS, key_capacity
from object_format.dedupe.buckets import MAX_BITS, RECORD_BYTES
from spark_jobs.shuffle.shares import ShareSizes, make_shares
from spark_jobs.task.arrangement import arrange

if TYPE_CHECKING:
    from catalog.model import JobSpec
    from spark_jobs.shuffle.shares import Share
    from spark_jobs.task.arrangement import InputPart, PartitionWork

BUCKET_RECORDS: Final = 1 << 18
"""Records of a bucket where the table does not ask for fewer: their table fits a processor's caches."""

_DEVIATIONS: Final = 8
_BITS_FOR_SPEED: Final = 10
_JUDGE_BYTES: Final = 64 << 20
"""Bytes of blobs that make a task of the second stage."""

_MIN_JUDGES: Final = 8
_MAX_JUDGES: Final = 2000


class PlanChoice(StrEnum):
    """Which way a job goes: `auto` decides by estimate."""

    AUTO = "auto"
    TASK = "task"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """How a job is spread; plain numbers that travel with it.

    `bits` says for each partition, by its place in the
    job's arrangement, how many leading bits make its buckets; None where nothing is deduplicated. `judges`
    is how many tasks the second stage has.
    """

    shares: tuple[Share, ...]
    bits: tuple[int | None, ...]
    judges: int

    @property
    def cut_files(self) -> dict[int, list[int]]:
        """The inputs that are not read as a whole, each with the numbers of the shares that read it."""
        cut: defaultdict[int, list[int]] = defaultdict(list)
        for number, share in enumerate(self.shares):
            if share.stretch is not None:
                cut[share.inputs[0]].append(number)
        return dict(cut)

    @property
    def buckets(self) -> int:
        """How many there are."""
        return sum(1 << bits for bits in self.bits if bits is not None)

    @property
    def bucket_ends(self) -> list[int]:
        """For each partition, by place, the number behind its last bucket."""
        return list(accumulate(0 if bits is None else 1 << bits for bits in self.bits))


def choose_plan(spec: JobSpec, choice: PlanChoice) -> ShufflePlan | None:
    """The plan for a job that goes through the shuffle; None for one that is one task.

    `auto` goes by an estimate, unless the job is to be exact.
    """
    spread = choice is PlanChoice.SHUFFLE or spec.exact or _outgrows_task(spec)
    if choice is PlanChoice.TASK or not spread:
        return None
    plan = plan_shuffle(spec)
    return plan if plan.shares else None


def _outgrows_task(spec: JobSpec) -> bool:
    """Whether a task would probably leave keys twice, for want of memory.

    The keys of a partition may not fit the table; or a section that may have keys twice, which is judged from
    its end, is longer than a task holds back.
    """
    works = [work for work in arrange(spec) if work.partition.deduplicate]
    if any(_is_too_long(part) for work in works for part in work.parts):
        return True
    expected = max((_expected_keys(work) for work in works), default=0)
    return expected > 0 and expected > key_capacity(spec.table_bytes)


def _is_too_long(part: InputPart) -> bool:
    records = sum(extent.record_count for extent in part.extents)
    return records > MAX_RETAINED_RECORDS and not all(extent.unique_keys for extent in part.extents)


def plan_shuffle(spec: JobSpec, sizes: ShareSizes | None = None) -> ShufflePlan:
    """The plan for a job; the same whenever and wherever it is made."""
    works = arrange(spec)
    deduplicated = [work.records_in for work in works if work.partition.deduplicate]
    fitting = _records_that_fit(spec.table_bytes) if deduplicated else 1
    return ShufflePlan(
        shares=make_shares(works, sizes or ShareSizes()),
        bits=tuple(_bits(work.records_in, fitting) if work.partition.deduplicate else None for work in works),
        judges=_judges(sum(deduplicated)),
    )


def _expected_keys(work: PartitionWork) -> float:
    """An estimate from record counts.

    Extents without a key twice are what the last jobs left, so that the part of their offsets that still has
    a record tells what part of the newer records will stay. Where there are none, every key may be new.
    """
    clean = [extent for part in work.parts for extent in part.extents if extent.unique_keys]
    kept = sum(extent.record_count for extent in clean)
    span = sum(extent.last_offset - extent.base_offset + 1 for extent in clean)
    ratio = kept / span if kept else 1.0
    return kept + ratio * (work.records_in - kept)


def keys_expected(records: int, bits: int) -> int:
    """How many keys a bucket has at most, but for eight standard deviations."""
    mean = records / (1 << bits)
    return min(records, math.ceil(mean + _DEVIATIONS * math.sqrt(mean)))


def _records_that_fit(table_bytes: int) -> int:
    """The largest n for which n + 8 √n keys fit: so many records a bucket may be expected to hold."""
    capacity = key_capacity(table_bytes)
    half = _DEVIATIONS / 2
    return max(1, int((math.sqrt(half**2 + capacity) - half) ** 2))


def _bits(records: int, fitting: int) -> int:
    needed = _doublings(records / fitting)
    quick = min(_doublings(records / BUCKET_RECORDS), _BITS_FOR_SPEED)
    return min(max(needed, quick), MAX_BITS)


def _doublings(parts: float) -> int:
    return max(0, math.ceil(math.log2(parts))) if parts > 0 else 0


def _judges(records: int) -> int:
    wanted = -(-records * RECORD_BYTES // _JUDGE_BYTES)
    return min(max(wanted, _MIN_JUDGES), _MAX_JUDGES)
