"""Settings of the logs on an agent's disks; names and defaults are Kafka's where Kafka has the setting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.errors import InvalidInputError
from core.settings import Bytes, check_bounds, internal, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_RATE: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTierSettings:
    """Background work of local logs, and which new topics are local."""

    local_topics: str | None = setting(
        None,
        "Regular expression. A new topic whose whole name matches it is created with `storage.mode=local`, "
        "unless the request sets `storage.mode`. For tools that know only Kafka's settings.",
    )
    log_cleaner_threads: int = setting(1, "Threads that compact the local logs of each log directory.", le=64)
    log_cleaner_dedupe_buffer_size: Bytes = setting(
        128 * 2**20, "Memory for the keys of all compactions of local logs.", ge=2**20
    )
    log_cleaner_io_buffer_size: Bytes = setting(
        4 * 2**20, "Memory for the reads of all compactions of local logs.", ge=2**16
    )
    log_cleaner_io_max_bytes_per_second: int = setting(
        _NO_RATE, "Maximum rate of reads and writes by all compactions of local logs."
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, "Time that a cleaner thread waits when no local log is due.", ge=0
    )
    num_recovery_threads_per_data_dir: int = setting(
        2, "Threads that open and close the logs of each log directory.", le=256
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "Interval at which expired segments of local logs are deleted."
    )
    log_flush_scheduler_interval_ms: int = setting(
        1_000, "Interval at which local logs are checked for `flush.ms`. Unlimited in Kafka."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "Interval at which the recovery points of local logs are written."
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, "Interval at which the log start offsets of local logs are written."
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5_000, "Interval at which the high watermarks of local logs are written."
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "Interval at which expired producers of local logs are removed."
    )
    log_initial_task_delay_ms: int = internal(
        30_000, "Time after the start before the first background work of local logs.", ge=0
    )

    def __post_init__(self) -> None:
        check_bounds(self, "local_tier")
        try:
            re.compile(self.local_topics or "")
        except re.error as error:
            raise InvalidInputError(
                f"local_topics is not a regular expression: {error}", remedy="see Python's re module"
            ) from None

    def with_storage_mode(self, topic: str, config: Mapping[str, str]) -> dict[str, str]:
        """Return the configuration of a new topic, with the storage mode that its name implies."""
        matches = self.local_topics is not None and re.fullmatch(self.local_topics, topic) is not None
        return {"storage.mode": "local", **config} if matches else dict(config)
