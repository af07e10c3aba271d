"""Times and bounds of maintenance: plain values, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.clock import DAY_MS
from core.settings import check_bounds, internal, setting

GRACE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """Times that maintenance waits; `docs/explanation/maintenance.md` has the reasons."""

    grace_ms: int = internal(
        GRACE_MS, "Time that a dead file is kept; it exceeds the time that readers cache a lookup.", ge=0
    )
    session_silence_ms: int = internal(60_000, "Silence after which a session is marked as silent.", ge=0)
    fence_confirm_ms: int = setting(
        30_000,
        "Time after which a session or a job attempt that was marked as silent is fenced, unless it sends a "
        "heartbeat. Only time in which the catalog is reachable counts. It is at least twice the longest "
        "outage that is not noticed (10 s), so that an owner that was marked just before it can still send a "
        "heartbeat.",
        ge=20_000,
        ge_in_code=0,
    )
    job_silence_ms: int = internal(60_000, "Silence after which a job attempt is marked as silent.", ge=0)
    topic_delete_delay_ms: int = setting(
        DAY_MS,
        "Time for which a deleted topic keeps its data, and `siltstone topics undelete` brings it back.",
        ge=0,
    )
    unfinished_upload_ms: int = internal(
        DAY_MS, "Age from which unfinished uploads of unknown owners are aborted.", ge=0
    )
    owner_keep_ms: int = internal(DAY_MS, "Time that ended sessions and jobs keep their rows.", ge=0)
    producer_idle_ms: int = internal(
        DAY_MS, "Idle time after which a producer expires: Kafka's producer.id.expiration.ms.", ge=0
    )
    transactional_id_expiration_ms: int = setting(
        7 * DAY_MS,
        "Idle time after which a transactional id expires: Kafka's transactional.id.expiration.ms. An id "
        "with an ongoing transaction does not expire.",
        ge=1,
    )
    producer_check_ms: int = internal(
        600_000, "Interval of the checks for idle producers: Kafka's check.interval.ms.", ge=0
    )
    batch: int = internal(1000, "Objects that one request deletes.")

    @property
    def takeover_ms(self) -> int:
        """Time without a heartbeat after which another attempt may replace that of a job."""
        return self.job_silence_ms + self.fence_confirm_ms

    def __post_init__(self) -> None:
        """Reject values out of range."""
        check_bounds(self, "maintenance")
