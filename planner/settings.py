"""How much the planner may put into one job, and what it waits for; plain values, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bedrock.errors import InvalidInputError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """What bounds a plan; `docs/planner.md` has the reasons for the defaults.

    Sizes are bytes of whole input files, as each is read from end to end, twice. `force` cleans every
    compacted partition that has something cleanable, whatever its dirty ratio.
    """

    max_job_input_bytes: int = 1024 * MIB
    max_job_files: int = 200
    max_job_extents: int = 50_000
    min_ingestion_files: int = 1
    max_ingestion_age_ms: int = 60_000
    max_plan_files: int = 500
    max_plan_extents: int = 50_000
    max_plan_partitions: int = 20_000
    table_bytes: int = 128 * MIB
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse a bound that would let nothing through."""
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in {"max_ingestion_age_ms", "force"} else 1
            if value < least:
                raise InvalidInputError(
                    f"planner setting {field.name} is {value}", remedy=f"give a number of at least {least}"
                )
