"""Bounds of one compaction plan; `docs/explanation/planner.md` explains the defaults."""

from __future__ import annotations

from dataclasses import dataclass

from core.settings import Bytes, check_bounds, internal, setting

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """Limits and targets of the planner."""

    # One job
    max_job_input_bytes: Bytes = setting(
        1024 * MIB, "Maximum size of the input that one compaction job reads in one pass."
    )
    max_job_files: int = setting(400, "Maximum number of input files of one compaction job.")
    max_job_extents: int = setting(
        50_000, "Maximum number of extents of one compaction job; its transactions change a row for each."
    )
    table_bytes: Bytes = setting(
        128 * MIB, "Memory of the key table of one compaction job; a key takes 12 bytes."
    )

    # Pace of continuous compaction
    min_ingestion_files: int = setting(
        200, "Number of ingestion files that a watcher compacts at once; fewer wait for more."
    )
    min_ingestion_bytes: Bytes = setting(
        64 * MIB, "Size of the waiting ingestion files that a watcher compacts at once, however few they are."
    )
    max_ingestion_age_ms: int = setting(
        60_000, "Age of an ingestion file at which a watcher waits for no more files.", ge=0
    )
    min_cleaning_bytes: Bytes = setting(
        16 * MIB, "Dirty bytes of neighbouring partitions that a watcher cleans at once; fewer wait for more."
    )
    max_cleaning_age_ms: int = setting(
        300_000, "Age of dirty records at which a watcher waits for no more of them.", ge=0
    )

    # One plan
    max_plan_files: int = setting(500, "Maximum number of files of each kind that one plan considers.")
    max_plan_extents: int = setting(
        32_000,
        "Maximum number of extents that one plan considers, half of them in ingestion files; 1,000 extents "
        "take about a megabyte.",
    )
    max_plan_partitions: int = setting(
        20_000, "Maximum number of partitions that one plan considers for cleaning."
    )
    max_look_jobs: int = setting(
        100,
        "Maximum number of jobs that one look of a planner makes ready to run; it plans until every task "
        "slot has a job.",
        le=1000,
    )
    max_look_age_ms: int = setting(
        600_000,
        "Time after which a watcher considers everything again, although the last look of any watcher found "
        "nothing to do and nothing has changed.",
    )

    # Compacted files
    target_file_bytes: Bytes = setting(
        256 * MIB, "Size of compacted files; a file with fewer live bytes is merged with others."
    )
    merge_fan_in: int = setting(
        8, "Number of small compacted files of about the same size that are merged into one.", ge=2
    )
    level_floor_bytes: Bytes = internal(MIB, "Compacted files below this size count as equally large.")
    section_bytes: Bytes = setting(
        MIB, "Target length of extents in compacted files; shorter extents of a partition are merged."
    )
    section_floor_bytes: Bytes = internal(16 * 1024, "Extents below this length count as equally long.")
    dead_share: float = setting(
        0.5, "Minimum share of dead bytes of a compacted file that is rewritten.", ge=0.01, le=1
    )
    min_dead_bytes: Bytes = internal(
        MIB, "Minimum number of dead bytes of a compacted file that is rewritten."
    )
    merge_batches: bool = setting(
        True, "Merge small record batches that compaction leaves next to each other."
    )

    # Budgets
    budget_bytes_per_hour: Bytes = setting(
        0, "Maximum number of bytes that the jobs planned within an hour read and write; 0: no limit.", ge=0
    )
    budget_dollars_per_hour: float = setting(
        0.0,
        "Maximum cost in US dollars of the requests of the jobs planned within an hour; 0: no limit.",
        ge=0,
    )

    # Choices of the caller
    paced: bool = internal(False, "Let small amounts of new data wait for more, as a watcher does.")
    force: bool = internal(
        False, "Clean every compacted partition that has cleanable records, at any dirty ratio."
    )
    exact: bool = internal(
        True, "Plan the exact deduplication that partitions still need; the caller can run such jobs."
    )

    def __post_init__(self) -> None:
        check_bounds(self, "planner")

    @property
    def full_bytes(self) -> int:
        """Minimum live bytes of a file that needs no merging; two smaller files always fit into one job."""
        return max(1, min(self.target_file_bytes, self.max_job_input_bytes // 2))

    @property
    def resting_extents(self) -> int:
        """Number of short extents that a partition may keep: fewer than the fan-in on each level."""
        levels, bound = 1, self.section_floor_bytes
        while bound < self.section_bytes:
            levels, bound = levels + 1, bound * self.merge_fan_in
        return levels * (self.merge_fan_in - 1)

    @property
    def max_seen_extents(self) -> int:
        """Extents of a partition that one plan examines: twice what the partition may keep."""
        return 2 * (self.resting_extents + 1)

    @property
    def max_merged_extents(self) -> int:
        """Maximum number of extents of a file to merge: `merge_fan_in` such files fit into one plan."""
        return max(1, self.max_plan_extents // (4 * self.merge_fan_in))
