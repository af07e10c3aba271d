"""The metrics of the local logs: their number and size, failed disks, recovery, cleaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.metrics_core import Metric

    from local_tier.manager.log_manager import LogManagerMetrics


class LocalLogCollector(Collector):
    """Metrics of a log manager. They are taken once for each scrape, because that walks over all logs.

    Without a log manager, all values are 0.
    """

    def __init__(self, metrics: Callable[[], LogManagerMetrics | None]) -> None:
        self._metrics = metrics

    @override
    def collect(self) -> Iterable[Metric]:
        """Yield one sample per value."""
        metrics = self._metrics()
        for name, (text, read) in _GAUGES.items():
            value = 0 if metrics is None else read(metrics)
            yield GaugeMetricFamily(f"siltstone_local_{name}", text, value=value)
        for name, (text, read) in _COUNTERS.items():
            value = 0 if metrics is None else read(metrics)
            yield CounterMetricFamily(f"siltstone_local_{name}", text, value=value)


_GAUGES: Final[dict[str, tuple[str, Callable[[LogManagerMetrics], float]]]] = {
    "logs": ("Logs on local disks", lambda each: each.logs),
    "log_bytes": ("Bytes of local logs", lambda each: each.log_size_bytes),
    "directories_offline": (
        "Log directories whose disk has failed",
        lambda each: each.offline_log_directory_count,
    ),
    "logs_offline": (
        "Logs whose disk has failed, and logs that could not be opened",
        lambda each: each.offline_logs,
    ),
    "stray_logs": (
        "Logs without a topic that were found or set aside since the start, and are kept",
        lambda each: each.stray_logs,
    ),
    "logs_to_recover": (
        "Logs that must still be opened",
        lambda each: sum(each.remaining_logs_to_recover.values()),
    ),
    "segments_to_recover": (
        "Segments that must still be read by logs that are being recovered",
        lambda each: sum(each.remaining_segments_to_recover.values()),
    ),
    "logs_waiting_for_deletion": (
        "Deleted logs whose files still exist",
        lambda each: each.logs_waiting_for_deletion,
    ),
    "logs_set_aside": (
        "Logs of deleted topics that are kept until these cannot be undeleted",
        lambda each: each.logs_set_aside,
    ),
    "uncleanable_logs": (
        "Compacted logs that are not cleaned before the next start, because cleaning them failed",
        lambda each: sum(each.cleaner.uncleanable_partitions.values()),
    ),
    "uncleanable_bytes": (
        "Bytes that should be cleaned in such logs",
        lambda each: sum(each.cleaner.uncleanable_bytes.values()),
    ),
    "cleaner_dead_threads": ("Cleaner threads that have ended", lambda each: each.cleaner.dead_thread_count),
    "cleaner_dirty_percent": (
        "Largest share of dirty bytes of a compacted log, at the last search for logs to clean",
        lambda each: each.cleaner.max_dirty_percent,
    ),
    "cleaner_delay_seconds": (
        "Time by which the oldest dirty record exceeds `max.compaction.lag.ms`",
        lambda each: each.cleaner.max_compaction_delay_secs,
    ),
    "cleaner_idle_seconds": (
        "Time since a cleaner last searched for logs to clean",
        lambda each: each.cleaner.time_since_last_run_ms / 1000,
    ),
}
_COUNTERS: Final[dict[str, tuple[str, Callable[[LogManagerMetrics], float]]]] = {
    "cleanings": ("Cleanings of compacted local logs", lambda each: each.cleaner.cleans_total),
    "cleaner_read_bytes": ("Bytes that cleanings have read", lambda each: each.cleaner.bytes_read_total),
    "cleaner_written_bytes": (
        "Bytes that cleanings have written",
        lambda each: each.cleaner.bytes_written_total,
    ),
}
