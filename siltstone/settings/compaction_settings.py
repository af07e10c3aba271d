"""The settings of compaction: how large jobs and files are, and what they may cost."""

from __future__ import annotations

from pydantic import ByteSize, Field
from pydantic_settings import BaseSettings

from planner.settings import PlannerSettings

_PLANNER = PlannerSettings()


class CompactionSettings(BaseSettings):
    """A part of `siltstone.settings.configuration.Settings`."""

    max_job_input_bytes: ByteSize = Field(
        default=ByteSize(_PLANNER.max_job_input_bytes),
        ge=1,
        description="How many bytes of its input files one compaction job may read in a pass.",
    )
    max_job_files: int = Field(
        default=_PLANNER.max_job_files, ge=1, description="How many input files one compaction job may take."
    )
    table_bytes: ByteSize = Field(
        default=ByteSize(_PLANNER.table_bytes),
        ge=1,
        description="The memory of one compaction job's key table, at 12 bytes a key.",
    )
    target_file_bytes: ByteSize = Field(
        default=ByteSize(_PLANNER.target_file_bytes),
        ge=1,
        description="How large compacted files are made; smaller ones are merged.",
    )
    merge_fan_in: int = Field(
        default=_PLANNER.merge_fan_in,
        ge=2,
        description="How many small compacted files of about one size make one larger one.",
    )
    merge_batches: bool = Field(
        default=_PLANNER.merge_batches,
        description="Whether compaction makes larger batches of small ones that it leaves side by side.",
    )
    section_bytes: ByteSize = Field(
        default=ByteSize(_PLANNER.section_bytes),
        ge=1,
        description="How much of a partition compacted files keep together; shorter extents are joined.",
    )
    dead_share: float = Field(
        default=_PLANNER.dead_share,
        ge=0.01,
        le=1,
        description="Which part of a compacted file must have died before the rest is written anew.",
    )
    budget_bytes_per_hour: ByteSize = Field(
        default=ByteSize(_PLANNER.budget_bytes_per_hour),
        ge=0,
        description="How many bytes the jobs planned in an hour may read and write; 0 sets no bound.",
    )
    budget_dollars_per_hour: float = Field(
        default=_PLANNER.budget_dollars_per_hour,
        ge=0,
        description="What the requests of the jobs planned in an hour may cost, in dollars; 0 sets no bound.",
    )

    def planner(self, *, force: bool = False, exact: bool = True) -> PlannerSettings:
        """What a planner is told; `force` cleans whatever there is to clean, `exact` as in its settings."""
        return PlannerSettings(
            max_job_input_bytes=self.max_job_input_bytes,
            max_job_files=self.max_job_files,
            table_bytes=self.table_bytes,
            target_file_bytes=self.target_file_bytes,
            merge_fan_in=self.merge_fan_in,
            merge_batches=self.merge_batches,
            section_bytes=self.section_bytes,
            dead_share=self.dead_share,
            budget_bytes_per_hour=self.budget_bytes_per_hour,
            budget_dollars_per_hour=self.budget_dollars_per_hour,
            force=force,
            exact=exact,
        )
