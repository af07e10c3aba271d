"""What a run of compaction jobs did, in the names that metrics and the command line use."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from core.errors import (
    CorruptDataError,
    FatalError,
    InvalidInputError,
    RetryableError,
    SiltstoneError,
    StaleStateError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from catalog.model import JobResult

# From a task's counts: summed over jobs, and the largest of all jobs.
SUMS = (
    "input_files",
    "input_files_read_once",
    "input_files_cut",
    "stretches",
    "stretches_read_once",
    "get_requests",
    "resumes",
    "retries",
    "partitions",
    "records_in",
    "records_out",
    "records_dropped",
    "records_invalid",
    "tombstones_dropped",
    "keys",
    "keys_outside_table",
    "bytes_in",
    "bytes_out",
    "merged_bytes_saved",
    "compacted_files",
    "compacted_bytes",
    "shuffled_jobs",
    "shares",
    "buckets",
    "shuffle_bytes",
)
PEAKS = ("table_bytes", "largest_buffer_bytes", "peak_rss_bytes")
# Milliseconds, summed: what a task does one after the other, and what takes time in that.
_PHASES = ("find_survivors_ms", "write_ms", "complete_ms")
_PARTS = ("read_objects_ms", "decompress_ms", "kernels_ms", "compress_ms", "write_objects_ms")

_KINDS = (
    ("retryable", RetryableError),
    ("stale", StaleStateError),
    ("invalid", InvalidInputError),
    ("corrupt", CorruptDataError),
    ("fatal", FatalError),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """Why a job was not done.

    `kind` is the error's place in `core.errors`: retryable, stale, invalid, corrupt or fatal. A job with a
    retryable failure goes back to the catalog's queue (`released`) until it was tried too often.
    """

    job_id: str
    kind: str
    error: str
    message: str
    released: bool = False

    @classmethod
    def of(cls, job_id: UUID, error: Exception) -> JobFailure:
        """The failure that an exception stands for; one that is not ours is a bug, so fatal."""
        kind = next((name for name, family in _KINDS if isinstance(error, family)), "fatal")
        message = str(error) if isinstance(error, SiltstoneError) else f"{type(error).__name__}: {error}"
        return cls(job_id=str(job_id), kind=kind, error=type(error).__name__, message=message)

    @property
    def retryable(self) -> bool:
        """Whether the same job may succeed later."""
        return self.kind == "retryable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFile:
    """An input file that was not read by one task: by which shares of its job, and up to which bytes each."""

    job_id: str
    object_name: str
    size: int
    shares: list[int]
    ends: list[int]


def merge_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counts of several tasks as one: sums, and the largest of what is a peak."""
    merged: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            before = merged.get(name, 0)
            merged[name] = max(before, count) if name in PEAKS else before + count
    return merged


@dataclass(slots=True, kw_only=True)
class CompactionReport:
    """The sum over the jobs of a run; counts are of jobs whose results were published.

    `get_requests` is what the tasks' object stores counted for reading inputs, without the `resumes` of
    broken streams; like all counts it is of the executions of which the results are made, and not of what
    Spark ran in vain. An input file goes whole to one task, which reads it by two GETs, unless it is one of
    the `input_files_cut`: those were read in `stretches`, each by one share of its job and two ranged GETs,
    and `cut_files` says which. `input_files_read_once` are those of the whole files for which one pass was
    enough: they had nothing to deduplicate, as had `stretches_read_once`, or the first pass has left nothing
    to do. Bytes are those that went over the wire. `table_bytes`, `largest_buffer_bytes` and `peak_rss_bytes`
    are the largest of any task.
    `shuffled_jobs` were spread over `shares` of their input, and their keys over `buckets`, by
    `shuffle_bytes` of fingerprints. `seconds` says how long the run took (`total`) and how long its tasks
    spent in each phase (`find_survivors`, `write`, `complete`), all tasks together; and, whatever the phase,
    in reading objects (`read_objects`), in writing them (`write_objects`), and in the engine between the two:
    in the codecs' libraries (`decompress`, `compress`), and to parse, hash, look up and filter (`kernels`).
    """

    jobs: int = 0
    jobs_completed: int = 0
    input_files: int = 0
    input_files_read_once: int = 0
    input_files_cut: int = 0
    stretches: int = 0
    stretches_read_once: int = 0
    get_requests: int = 0
    resumes: int = 0
    retries: int = 0
    partitions: int = 0
    records_in: int = 0
    records_out: int = 0
    records_dropped: int = 0
    records_invalid: int = 0
    tombstones_dropped: int = 0
    keys: int = 0
    keys_outside_table: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    merged_bytes_saved: int = 0
    compacted_files: int = 0
    compacted_bytes: int = 0
    shuffled_jobs: int = 0
    shares: int = 0
    buckets: int = 0
    shuffle_bytes: int = 0
    table_bytes: int = 0
    largest_buffer_bytes: int = 0
    peak_rss_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    cut_files: list[CutFile] = field(default_factory=list)
    failures: list[JobFailure] = field(default_factory=list)

    @property
    def get_requests_per_input_file(self) -> float:
        """How often a file was asked for that both passes read; a file read once, by one GET, is left out.

        Without any file that both passes read, how often each of the others was; 0 without any file. A file
        that was cut counts as its stretches.
        """
        once = self.input_files_read_once + self.stretches_read_once
        both = self.input_files - self.input_files_cut + self.stretches - once
        if both:
            return (self.get_requests - once) / both
        return self.get_requests / once if once else 0.0

    def gets_in_words(self) -> str:
        """The GETs of each input file for people; never rounded to a whole number that it is not."""
        ratio = self.get_requests_per_input_file
        shown = f"{ratio:.1f}" if ratio.is_integer() else f"{ratio:.3f}"
        once = self.input_files_read_once
        whole = self.input_files - self.input_files_cut
        words = []
        if once and once < whole:
            words.append(f"{shown} for each of {whole - once:,} input files")
            words.append(f"1 for each of {once:,} that one pass was enough for")
        elif whole or not self.input_files_cut:
            words.append(f"{shown} for each of {whole:,} input files")
        if self.input_files_cut:
            words.append(
                f"{shown} for each of {self.stretches:,} stretches of {self.input_files_cut:,} that were cut"
            )
        return ", ".join(words)

    def add(self, result: JobResult, cut_files: Iterable[CutFile] = ()) -> None:
        """Take in a job whose result was published."""
        self.jobs_completed += 1
        self.cut_files += cut_files
        counts = result.counts
        for name in SUMS:
            setattr(self, name, getattr(self, name) + counts.get(name, 0))
        for name in PEAKS:
            setattr(self, name, max(getattr(self, name), counts.get(name, 0)))
        for name in (*_PHASES, *_PARTS):
            phase = name.removesuffix("_ms")
            self.seconds[phase] = self.seconds.get(phase, 0.0) + counts.get(name, 0) / 1000

    def as_dict(self) -> dict[str, Any]:
        """For JSON: every field, and `get_requests_per_input_file`."""
        return {**asdict(self), "get_requests_per_input_file": self.get_requests_per_input_file}
