"""How much the planner may put into one job, and what it waits for; plain values, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from core.errors import InvalidInputError

MIB = 1024 * 1024
_LEAST: Final = {
    "max_ingestion_age_ms": 0,
    "merge_batches": 0,
    "force": 0,
    "exact": 0,
    "merge_fan_in": 2,
    "dead_share": 0.01,
    "budget_bytes_per_hour": 0,
    "budget_dollars_per_hour": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """What bounds a plan; `docs/explanation/planner.md` has the reasons for the defaults.

    Sizes of jobs are bytes that one stream over every input reads. A compacted file with fewer live bytes
    than `target_file_bytes` is small: `merge_fan_in` small ones of about one size are merged,
    `level_floor_bytes` being the size below which all count as one. One of which `dead_share`, and
    `least_dead_bytes`, have died is rewritten. An extent below `section_bytes` is short: as many short ones
    of about one length become one, `section_floor_bytes` being the length below which all count as one. The
    budgets are for what was planned in the last hour; 0 sets none.
    `merge_batches` makes larger batches of small ones that are left next to each other.
    `force` cleans every compacted partition that has something cleanable, whatever its dirty ratio. `exact`
    tells that jobs may be run by the exact plan, so that those are planned which are owed to partitions.
    """

    max_job_input_bytes: int = 1024 * MIB
    max_job_files: int = 400
    max_job_extents: int = 50_000
    min_ingestion_files: int = 1
    max_ingestion_age_ms: int = 60_000
    max_plan_files: int = 500
    max_plan_extents: int = 32_000
    max_plan_partitions: int = 20_000
    table_bytes: int = 128 * MIB
    target_file_bytes: int = 256 * MIB
    merge_fan_in: int = 8
    level_floor_bytes: int = MIB
    section_bytes: int = MIB
    section_floor_bytes: int = 16 * 1024
    dead_share: float = 0.5
    least_dead_bytes: int = MIB
    budget_bytes_per_hour: int = 0
    budget_dollars_per_hour: float = 0.0
    merge_batches: bool = True
    force: bool = False
    exact: bool = True

    def __post_init__(self) -> None:
        """Refuse a bound that would let nothing through."""
        for field in fields(self):
            value = getattr(self, field.name)
            least = _LEAST.get(field.name, 1)
            if value < least:
                raise InvalidInputError(
                    f"planner setting {field.name} is {value}", remedy=f"give a number of at least {least}"
                )
        if self.dead_share > 1:
            raise InvalidInputError(
                f"planner setting dead_share is {self.dead_share}", remedy="give a share of at most 1"
            )

    @property
    def full_bytes(self) -> int:
        """From how many live bytes on a file is large enough: any two that are not must fit into one job."""
        return max(1, min(self.target_file_bytes, self.max_job_input_bytes // 2))

    @property
    def resting_extents(self) -> int:
        """How many short extents of a partition need no other job: fewer than the fan-in on each level."""
        levels, bound = 1, self.section_floor_bytes
        while bound < self.section_bytes:
            levels, bound = levels + 1, bound * self.merge_fan_in
        return levels * (self.merge_fan_in - 1)

    @property
    def seen_extents(self) -> int:
        """How many extents of a partition one plan may look at to sort them: twice what it rests with."""
        return 2 * (self.resting_extents + 1)

    @property
    def most_merged_extents(self) -> int:
        """Of files with more extents, as many as the fan-in do not fit into the part of a plan for them."""
        return max(1, self.max_plan_extents // (4 * self.merge_fan_in))
