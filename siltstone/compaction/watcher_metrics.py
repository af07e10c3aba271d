"""What a watcher counts, for Prometheus: read from its `Watch` at each scrape, over plain HTTP."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from core.errors import InvalidInputError
from spark_jobs.report import PEAKS, SUMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from siltstone.compaction.watcher import WatcherStatus

_PREFIX: Final = "siltstone_compaction"
_GAUGES: Final = frozenset(
    {
        "jobs_running",
        "last_poll_ms",
        "jobs_waiting",
        "jobs_deferred",
        "ingestion_files",
        "ingestion_bytes",
        "ingestion_age_ms",
        "suspected_files",
        "quarantined_files",
    }
)


class WatcherCollector(Collector):
    """`siltstone_compaction_…`: the names of job reports (see `spark_jobs.report`) and of `Watch`."""

    def __init__(self, status: WatcherStatus) -> None:
        self._watch = status

    @override
    def collect(self) -> Iterator[Metric]:
        run = self._watch.run
        compaction = run.compaction
        for name in ("jobs", "jobs_completed", *SUMS):
            yield _counter(name, getattr(compaction, name))
        for phase, seconds in list(compaction.seconds.items()):
            yield _counter(f"{phase.replace(' ', '_')}_seconds", seconds)
        for name in PEAKS:
            yield _gauge(f"{name}_max", getattr(compaction, name))
        yield _counter("rounds", run.rounds)
        yield _counter("jobs_lost", run.jobs_lost)
        for each in fields(self._watch):
            if each.name != "run":
                make = _gauge if each.name in _GAUGES else _counter
                yield make(each.name, getattr(self._watch, each.name))


@contextlib.contextmanager
def serve_metrics(status: WatcherStatus, address: tuple[str, int] | None) -> Iterator[tuple[str, int] | None]:
    """Serve `/metrics` at host and port (0: any free one) for the block; it is given where.

    Without an address, nothing. InvalidInputError when it cannot be listened on.
    """
    if address is None:
        yield None
        return
    registry = CollectorRegistry()
    registry.register(WatcherCollector(status))
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


def _counter(name: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}_{name}", name.replace("_", " "), value=value)


def _gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", name.replace("_", " "), value=value)
