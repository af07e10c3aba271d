"""The configuration of a log, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from object_format.record_batch.append_rules import AppendRules

NO_LIMIT = -1
"""Value of `retention_ms` and `retention_bytes` that disables the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The configuration of one log, with Kafka's names, units and defaults.

    Units are bytes, milliseconds and counts. `segment_bytes` may be smaller here than a topic's configuration
    allows.
    """

    segment_bytes: int = 2**30
    segment_ms: int = 7 * 24 * 3_600_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 2**20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3_600_000
    retention_bytes: int = NO_LIMIT
    flush_messages: int = 2**63 - 1
    flush_ms: int = 2**63 - 1
    max_message_bytes: int = 1_048_588
    compact: bool = False
    delete: bool = True
    delete_retention_ms: int = 24 * 3_600_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    log_append_time: bool = False
    message_timestamp_before_max_ms: int = 2**63 - 1
    message_timestamp_after_max_ms: int = 3_600_000
    preallocate: bool = False

    @property
    def max_segment_ms(self) -> int:
        """The age at which the active segment rolls: only rolled segments are cleaned (KIP-354)."""
        if self.compact and self.max_compaction_lag_ms > 0:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def append_rules(self) -> AppendRules:
        """The rules that batches of a producer must meet."""
        return AppendRules(
            require_keys=self.compact,
            max_message_bytes=self.max_message_bytes,
            append_time=self.log_append_time,
            before_max_ms=self.message_timestamp_before_max_ms,
            after_max_ms=self.message_timestamp_after_max_ms,
        )
