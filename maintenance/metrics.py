"""Prometheus metrics of a maintenance runner, read from its totals at each scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from maintenance.runner import MaintenanceRunner

_PREFIX: Final = "siltstone_maintenance"
_COUNTERS: Final = {
    "expired_extents": "Extents that retention removed",
    "expired_bytes": "Bytes of the extents that retention removed",
    "fenced_sessions": "Silent sessions that were fenced",
    "released_jobs": "Jobs of silent attempts that returned to the queue",
    "removed_rows": "Rows of deleted topics that were removed",
    "dead_files": "Unreferenced files that were deleted",
    "dead_bytes": "Bytes of unreferenced files that were deleted",
    "orphans": "Objects without a catalog entry that were deleted",
    "orphan_bytes": "Bytes of objects without a catalog entry that were deleted",
    "aborted_uploads": "Unfinished uploads that were aborted",
    "removed_owners": "Ended sessions and jobs whose rows were removed",
    "expired_producers": "Idle producers that expired",
    "aborted_transactions": "Transactions that were aborted because they exceeded their timeouts",
    "not_deleted": "Failed attempts to delete an object",
}
_GAUGES: Final = {
    "ongoing_transactions": "Ongoing transactions, in the process that aborts those that time out",
    "oldest_transaction_seconds": "Age of the oldest ongoing transaction, in the same process; 0 without any",
}


class MaintenanceCollector(Collector):
    """Metrics of maintenance in this process; the age of success covers all processes."""

    def __init__(self, runner: MaintenanceRunner) -> None:
        self._runner = runner

    @override
    def collect(self) -> Iterator[Metric]:
        totals = self._runner.totals
        now = self._runner.clock.monotonic()
        age = GaugeMetricFamily(
            f"{_PREFIX}_success_age_seconds",
            "Time since the last successful round of a task in any process, by task; absent before the first",
            labels=["task"],
        )
        leader = GaugeMetricFamily(
            f"{_PREFIX}_leader", "1 if this process runs the task, otherwise 0, by task", labels=["task"]
        )
        rounds = CounterMetricFamily(
            f"{_PREFIX}_rounds", "Successful rounds of a task in this process, by task", labels=["task"]
        )
        failures = CounterMetricFamily(
            f"{_PREFIX}_failures", "Failed rounds of a task in this process, by task", labels=["task"]
        )
        for name, each in totals.items():
            if each.success_at is not None:
                age.add_metric([name], now - each.success_at)
            leader.add_metric([name], float(each.is_leader))
            rounds.add_metric([name], each.rounds)
            failures.add_metric([name], each.failures)
        yield from (age, leader, rounds, failures)
        for field, text in _COUNTERS.items():
            value = sum(getattr(each.report, field) for each in totals.values())
            yield CounterMetricFamily(f"{_PREFIX}_{field}", text, value=value)
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text)
            for each in totals.values():
                if each.is_leader and name in each.report.gauges:
                    gauge.add_metric([], each.report.gauges[name])
            yield gauge
