"""Prometheus metrics of a watcher, read from its `WatcherStatus` at each scrape."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from core.errors import InvalidInputError
from spark_jobs.report import PEAKS, SECONDS, SUMS
from spark_jobs.write_amplification import MAX_TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from prometheus_client.metrics_core import Metric

    from siltstone.compaction.watcher import WatcherStatus

_PREFIX: Final = "siltstone_compaction"
# Fields of `WatcherStatus`, with their descriptions.
_COUNTERS: Final = {
    "polls": "Polls of the watcher, including those that found nothing to do",
    "polls_failed": "Polls that an error ended",
    "jobs_failed": "Jobs that failed, including those that are retried",
}
_GAUGES: Final = {
    "jobs_running": "Jobs that this watcher runs now",
    "paused": "1 while compaction is paused because unrelated jobs failed alike, otherwise 0",
    "last_poll_ms": "End of the last poll, in milliseconds since 1970 by this machine's clock",
    "outage_seconds": "Time since the first of the last polls that all failed; 0 after a successful poll",
    "jobs_waiting": "Jobs in the queue at the last poll",
    "jobs_deferred": "Jobs that the hourly budget deferred at the last poll",
    "ingestion_files": "Ingestion files without a job at the last poll",
    "ingestion_bytes": "Bytes of the ingestion files without a job at the last poll",
    "ingestion_age_ms": "Age of the oldest ingestion file without a job at the last poll, in milliseconds",
    "quarantine_candidate_files": "Files of failed jobs: those that are retried, and those in quarantine",
    "quarantined_files": "Files that compaction leaves out because every job with them fails",
}


class WatcherCollector(Collector):
    """Metrics of a watcher, with the names of job reports (`spark_jobs.report`) and of `WatcherStatus`."""

    def __init__(self, status: WatcherStatus) -> None:
        self._status = status

    @override
    def collect(self) -> Iterator[Metric]:
        run = self._status.run
        compaction = run.compaction
        yield _counter("jobs", "Jobs that this watcher ran", compaction.jobs)
        yield _counter("jobs_completed", "Jobs whose results were published", compaction.jobs_completed)
        yield _counter("jobs_lost", "Planned jobs that another planner submitted first", run.jobs_lost)
        yield _counter("rounds", "Polls in which jobs ran", run.rounds)
        for name, text in SUMS.items():
            yield _counter(name, text, getattr(compaction, name))
        for name, text in SECONDS.items():
            yield _counter(f"{name}_seconds", text, compaction.seconds.get(name, 0.0))
        yield _gauge(
            "write_amplification",
            "Bytes that jobs of this watcher wrote for each byte from an ingestion file",
            compaction.write_amplification or 0.0,
        )
        topics = compaction.topics
        for name, text, values in (
            ("topic_ingested_bytes", "Bytes that jobs took from ingestion files, by topic", topics.ingested),
            ("topic_rewritten_bytes", "Bytes of the extents that jobs wrote, by topic", topics.rewritten),
        ):
            family = CounterMetricFamily(
                f"{_PREFIX}_{name}", f"{text}, for the {MAX_TOPICS} largest", labels=["topic"]
            )
            for topic in topics.largest():
                family.add_metric([topic], values.get(topic, 0))
            yield family
        for name, text in PEAKS.items():
            yield _gauge(f"{name}_max", text, getattr(compaction, name))
        for name, text in _COUNTERS.items():
            yield _counter(name, text, getattr(self._status, name))
        for name, text in _GAUGES.items():
            yield _gauge(name, text, getattr(self._status, name))


def serve_metrics(
    status: WatcherStatus, address: tuple[str, int] | None
) -> AbstractContextManager[tuple[str, int] | None]:
    """Serve the metrics of a watcher, as `serve_collector` does."""
    return serve_collector(WatcherCollector(status), address)


@contextlib.contextmanager
def serve_collector(
    collector: Collector, address: tuple[str, int] | None
) -> Iterator[tuple[str, int] | None]:
    """Serve `/metrics` over HTTP during the block, and yield the host and port.

    Port 0 takes a free port. Without an address, nothing is served and None is yielded. Raises
    InvalidInputError if the address cannot be bound.
    """
    if address is None:
        yield None
        return
    registry = CollectorRegistry()
    registry.register(collector)
    host, port = address
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise InvalidInputError(
            f"metrics cannot be served at {host}:{port}: {error.strerror}", remedy="name another --metrics"
        ) from None
    try:
        yield host, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)
