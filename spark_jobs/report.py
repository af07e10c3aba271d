"""Results of a run of compaction jobs, under the names that metrics and the command line use."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from core.errors import (
    CorruptDataError,
    CorruptFileError,
    FatalError,
    InvalidInputError,
    RetryableError,
    SiltstoneError,
    StaleStateError,
)
from core.quantities import count
from spark_jobs.errors import IncompleteShuffleError, JobCancelledError
from spark_jobs.write_amplification import INGESTED, REWRITTEN, TopicBytes, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from catalog.model import JobResult

# Counts of a task by name, with the description of their sum over all jobs.
SUMS: Final[Mapping[str, str]] = {
    "input_files": "Input files that jobs read",
    "input_files_read_once": "Input files that were read once, by one pass",
    "input_files_cut": "Input files that were divided into byte ranges among several tasks of a job",
    "byte_ranges": "Byte ranges of input files that were divided among tasks",
    "byte_ranges_read_once": "Byte ranges of input files that were read once, by one pass",
    "get_requests": "GET requests for the data of input files, without resumed streams",
    "index_reads": "GET requests for the index of a section, to cut it between two tasks",
    "resumes": "GET requests that resumed a broken stream",
    "retries": "Requests to the object store that were repeated",
    "partitions": "Partitions that jobs rewrote",
    "records_in": "Records that jobs read",
    "records_out": "Records that jobs wrote",
    "records_dropped": "Records that jobs removed",
    "records_aborted": "Records of aborted transactions that jobs removed",
    "records_invalid": "Records that jobs could not parse",
    "tombstones_dropped": "Tombstones that jobs removed after their delete horizon",
    "keys": "Distinct keys of deduplicated partitions",
    "keys_outside_table": "Keys that did not fit into a key table, so that superseded records may remain",
    "bytes_in": "Bytes that jobs read from the object store",
    "bytes_out": "Bytes that jobs wrote to the object store",
    INGESTED: "Bytes that jobs took from ingestion files",
    REWRITTEN: "Bytes of the extents that jobs wrote, of any kind of job",
    "merged_bytes_saved": "Bytes saved by merging small record batches",
    "compacted_files": "Compacted files that jobs wrote",
    "compacted_bytes": "Bytes of the compacted files that jobs wrote",
    "shuffled_jobs": "Jobs that ran with Spark's shuffle",
    "shares": "Shares of the input of shuffled jobs, each read by one task",
    "buckets": "Buckets over which shuffled jobs distributed their keys",
    "shuffle_bytes": "Bytes of fingerprints that were shuffled",
}
# Counts of a task by name, with the description of the largest of all tasks.
PEAKS: Final[Mapping[str, str]] = {
    "table_bytes": "Largest key table of a task",
    "largest_buffer_bytes": "Largest buffer of a task",
    "peak_rss_bytes": "Largest resident memory of a task",
}
# Milliseconds of a task, by the name of their sum in a report: the phases of a task, then the kinds of work
# within the phases.
_MILLISECONDS: Final = {
    "find_survivors": "find_survivors_ms",
    "write": "write_ms",
    "complete": "complete_ms",
    "read_objects": "read_objects_ms",
    "decompress": "decompress_ms",
    "kernels": "kernels_ms",
    "compress": "compress_ms",
    "write_objects": "write_objects_ms",
}
SECONDS: Final[Mapping[str, str]] = {
    "total": "Seconds in which jobs ran",
    "find_survivors": "Seconds of all tasks in the phase that finds surviving records",
    "write": "Seconds of all tasks in the phase that writes surviving records",
    "complete": "Seconds of all tasks in the phase that completes files",
    "read_objects": "Seconds of all tasks in reading objects",
    "decompress": "Seconds of all tasks in decompression",
    "kernels": "Seconds of all tasks in parsing, hashing, key lookups and filtering",
    "compress": "Seconds of all tasks in compression",
    "write_objects": "Seconds of all tasks in writing objects",
}

_KINDS = (
    ("retryable", RetryableError),
    ("stale", StaleStateError),
    ("invalid", InvalidInputError),
    ("corrupt", CorruptDataError),
    ("fatal", FatalError),
)

# Errors that no single task can correct
_OF_THE_WHOLE_QUERY: Final = frozenset({IncompleteShuffleError.__name__, JobCancelledError.__name__})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """The reason that a job failed.

    `error` is the class of the error, and `kind` its kind in `core.errors`: retryable, stale, invalid,
    corrupt or fatal. `file_id` is the input file that is proven to be corrupt. The job returns to the
    catalog's queue (`released`) unless a file is proven to be corrupt, the log has changed, or processes died
    too often.
    """

    job_id: str
    kind: str
    error: str
    message: str
    file_id: str | None = None
    released: bool = False

    @classmethod
    def of(cls, job_id: UUID, error: Exception) -> JobFailure:
        """Return the failure for an exception; an exception that is not ours is a bug and therefore fatal."""
        kind = next((name for name, family in _KINDS if isinstance(error, family)), "fatal")
        message = str(error) if isinstance(error, SiltstoneError) else f"{type(error).__name__}: {error}"
        file_id = str(error.file_id) if isinstance(error, CorruptFileError) else None
        return cls(
            job_id=str(job_id), kind=kind, error=type(error).__name__, message=message, file_id=file_id
        )

    @property
    def is_final(self) -> bool:
        """Return True if the job cannot succeed: a file is corrupt, or the log has changed."""
        return self.file_id is not None or self.kind == "stale"

    @property
    def is_worth_another_executor(self) -> bool:
        """Return True if the same task may succeed elsewhere."""
        return not self.is_final and self.error not in _OF_THE_WHOLE_QUERY


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFile:
    """An input file that several shares read: which ones, and where the range of each ends."""

    job_id: str
    object_name: str
    size: int
    shares: list[int]
    ends: list[int]


def merge_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Merge the counters of several tasks: sums, and the maximum for peaks."""
    merged: dict[str, int] = {}
    for each in counts:
        for name, number in each.items():
            before = merged.get(name, 0)
            merged[name] = max(before, number) if name in PEAKS else before + number
    return merged


@dataclass(slots=True, kw_only=True)
class CompactionReport:
    """Totals over the jobs of a run; counters cover jobs whose results were published.

    Counters cover the task executions whose results were used, not executions that Spark repeated.

    - `get_requests` counts GETs for the inputs' data, without the `resumes` of broken streams.
    - `index_reads` counts GETs for a section's index: one for each pass over a byte range that starts inside
      a section.
    - `input_files_read_once` are files that only one pass read: they had nothing to deduplicate, or
      pass 1 left nothing for pass 2.
    - `input_files_cut` are files that were divided among shares, in `byte_ranges`: byte ranges, each read by
      one share with two ranged GETs, or one (`byte_ranges_read_once`). `cut_files` lists them.
    - `bytes_in` and `bytes_out` are bytes on the wire.
    - `rewritten_bytes` / `ingested_bytes` is the write amplification; `topics` has both by topic.
    - `table_bytes`, `largest_buffer_bytes` and `peak_rss_bytes` are maxima over tasks.
    - `shuffled_jobs` were spread over `shares` of their input and `buckets` of keys, with `shuffle_bytes` of
      fingerprints.
    - `seconds` has the duration of the run (`total`), and times summed over tasks: by phase
      (`find_survivors`, `write`, `complete`), and within the phases by work: `read_objects`, `write_objects`,
      `decompress`, `compress`, and `kernels` for parsing, hashing, table lookups and filtering.
    """

    jobs: int = 0
    jobs_completed: int = 0
    input_files: int = 0
    input_files_read_once: int = 0
    input_files_cut: int = 0
    byte_ranges: int = 0
    byte_ranges_read_once: int = 0
    get_requests: int = 0
    index_reads: int = 0
    resumes: int = 0
    retries: int = 0
    partitions: int = 0
    records_in: int = 0
    records_out: int = 0
    records_dropped: int = 0
    records_aborted: int = 0
    records_invalid: int = 0
    tombstones_dropped: int = 0
    keys: int = 0
    keys_outside_table: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    ingested_bytes: int = 0
    rewritten_bytes: int = 0
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
    topics: TopicBytes = field(default_factory=TopicBytes)

    @property
    def write_amplification(self) -> float | None:
        """Bytes that jobs wrote for each byte from an ingestion file; None without such a byte."""
        return ratio(self.ingested_bytes, self.rewritten_bytes)

    @property
    def get_requests_per_input_file(self) -> float:
        """GETs for each file that both passes read; files read once, with one GET, do not count.

        If no file was read by both passes, the GETs for each of the others; 0 without files. Each byte range
        of a cut file counts as a file.
        """
        once = self.input_files_read_once + self.byte_ranges_read_once
        both = self.input_files - self.input_files_cut + self.byte_ranges - once
        if both:
            return (self.get_requests - once) / both
        return self.get_requests / once if once else 0.0

    def gets_in_words(self) -> str:
        """Describe the GETs per input file for people; a ratio is never rounded to a whole number."""
        ratio = self.get_requests_per_input_file
        shown = f"{ratio:.1f}" if ratio.is_integer() else f"{ratio:.3f}"
        once = self.input_files_read_once
        whole = self.input_files - self.input_files_cut
        words = []
        if once and once < whole:
            words.append(f"{shown} for each of {count(whole - once, 'input file')}")
            words.append(f"1 for each of {once:,} read once")
        elif whole or not self.input_files_cut:
            words.append(f"{shown} for each of {count(whole, 'input file')}")
        if self.input_files_cut:
            words.append(
                f"{shown} for each of {self.byte_ranges:,} byte ranges of {self.input_files_cut:,} cut files"
            )
        return ", ".join(words)

    def add(self, result: JobResult, cut_files: Iterable[CutFile] = ()) -> None:
        """Add a job whose result was published."""
        self.jobs_completed += 1
        self.cut_files += cut_files
        counts = result.counts
        for name in SUMS:
            setattr(self, name, getattr(self, name) + counts.get(name, 0))
        self.topics.add(counts)
        for name in PEAKS:
            setattr(self, name, max(getattr(self, name), counts.get(name, 0)))
        for phase, name in _MILLISECONDS.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + counts.get(name, 0) / 1000

    def as_dict(self) -> dict[str, Any]:
        """Return every field and the two ratios, for JSON."""
        return {
            **asdict(self),
            "topics": self.topics.as_dict(),
            "get_requests_per_input_file": self.get_requests_per_input_file,
            "write_amplification": self.write_amplification,
        }
