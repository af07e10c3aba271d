"""The metrics of local logs are taken once for each scrape."""

from __future__ import annotations

from agent.local_topics.disks.log_metrics import LocalLogCollector
from local_tier.cleaner.log_cleaner import CleanerMetrics
from local_tier.manager.log_manager import LogManagerMetrics

METRICS = LogManagerMetrics(
    logs=3,
    log_size_bytes=7,
    offline_log_directory_count=0,
    remaining_logs_to_recover={"a": 1, "b": 2},
    remaining_segments_to_recover={},
    logs_waiting_for_deletion=0,
    stray_logs=0,
    logs_set_aside=0,
    offline_logs=0,
    cleaner=CleanerMetrics(
        max_compaction_delay_secs=0.0,
        max_dirty_percent=0,
        time_since_last_run_ms=2500,
        dead_thread_count=0,
        uncleanable_partitions={},
        uncleanable_bytes={},
        cleans_total=5,
        bytes_read_total=0,
        bytes_written_total=0,
    ),
)


def _values(collector: LocalLogCollector) -> dict[str, float]:
    return {each.name.removeprefix("siltstone_local_"): each.samples[0].value for each in collector.collect()}


def test_a_scrape_takes_the_metrics_once() -> None:
    taken = []

    def metrics() -> LogManagerMetrics:
        taken.append(1)
        return METRICS

    values = _values(LocalLogCollector(metrics))

    assert len(taken) == 1
    assert (values["logs"], values["logs_to_recover"], values["cleanings"]) == (3, 3, 5)
    assert values["cleaner_idle_seconds"] == 2.5


def test_all_values_are_zero_without_a_log_manager() -> None:
    assert set(_values(LocalLogCollector(lambda: None)).values()) == {0}
