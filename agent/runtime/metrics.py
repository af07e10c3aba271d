"""The metrics of an agent: its own instruments, and collectors that read other parts at each scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from object_store.accounting import CountsSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from catalog.database.server_state import ServerState
    from catalog.open import Catalog
    from object_store.interface import ObjectStore

MetricReaders: TypeAlias = "dict[str, tuple[str, Callable[[], float]]]"
"""Name → (description, function that reads the value)."""

# Otherwise each counter has a second series with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no annotation there

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_FILE_BYTES = tuple(float(4**power * 1024) for power in range(8))  # 1 KiB to 16 MiB


class BulkHistogram(Collector):
    """Histogram that takes many observations at once, for events that are too frequent to observe singly."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0

    def observe_all(self, values: Sequence[float]) -> None:
        """Add observations."""
        found = np.searchsorted(self._bounds, values)
        self._counts = self._counts + np.bincount(found, minlength=len(self._counts))
        self._sum += sum(values)

    @override
    def collect(self) -> Iterable[Metric]:
        """Yield the buckets, each with the number of values up to its bound."""
        bounds = [*map(repr, self._bounds.tolist()), "+Inf"]
        totals = np.cumsum(self._counts).tolist()
        buckets = list(zip(bounds, map(float, totals), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class AgentMetrics:
    """The instruments of one agent, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.append_seconds = BulkHistogram(
            "siltstone_append_seconds",
            "Time from the append of a request's batches to their commit",
            _SECONDS,
        )
        registry.register(self.append_seconds)
        self.buffer_seconds = Histogram(
            "siltstone_ingestion_buffer_seconds",
            "Time from the first append to an ingestion file to the start of its upload",
            buckets=_SECONDS,
            registry=registry,
        )
        self.put_seconds = Histogram(
            "siltstone_ingestion_put_seconds",
            "Time of the PUT of one ingestion file, with retries",
            buckets=_SECONDS,
            registry=registry,
        )
        self.commit_seconds = Histogram(
            "siltstone_ingestion_commit_seconds",
            "Time of the commit of one ingestion file and of the files that share it, with retries",
            buckets=_SECONDS,
            registry=registry,
        )
        self.fetch_seconds = Histogram(
            "siltstone_fetch_seconds",
            "Time of one fetch, without the time that it waited for new records",
            buckets=_SECONDS,
            registry=registry,
        )
        self.wake_up_seconds = Histogram(
            "siltstone_fetch_wake_up_seconds",
            "Time from the notification of a commit to the response of a fetch that waited for it",
            buckets=_SECONDS,
            registry=registry,
        )
        self.ingestion_file_bytes = Histogram(
            "siltstone_ingestion_file_bytes",
            "Size of the ingestion files that were uploaded",
            buckets=_FILE_BYTES,
            registry=registry,
        )
        self.files_closed = Counter(
            "siltstone_ingestion_files_closed",
            "Ingestion files, by the reason for which they were closed: full, interval, stalled (producers"
            " used up their requests in flight), idle (nothing more arrived) or stop",
            ["reason"],
            registry=registry,
        )
        self.tls_handshakes = Counter(
            "siltstone_tls_handshakes",
            "TLS handshakes by outcome: complete, failed, foreign (the client speaks no TLS), timeout,"
            " evicted (too many were open) or lost (the client went away)",
            ["outcome"],
            registry=registry,
        )
        self.tls_reloads = Counter(
            "siltstone_tls_reloads",
            "Changed certificates by outcome: loaded, or failed and the old one stays",
            ["outcome"],
            registry=registry,
        )
        self.files_failed = Counter(
            "siltstone_ingestion_files_failed",
            "Ingestion files that could not be uploaded or committed",
            registry=registry,
        )
        self.lost_files = Counter(
            "siltstone_lost_files",
            "Ingestion files that this agent acknowledged and a failover of the catalog lost",
            registry=registry,
        )
        self.lost_records = Counter(
            "siltstone_lost_records", "Records in lost ingestion files", registry=registry
        )
        self.readopted_files = Counter(
            "siltstone_readopted_files", "Lost ingestion files that were committed again", registry=registry
        )
        self.readopted_records = Counter(
            "siltstone_readopted_records",
            "Records of lost ingestion files that were appended again",
            registry=registry,
        )
        self.readoption_rejected_records = Counter(
            "siltstone_readoption_rejected_records",
            "Acknowledged records of lost ingestion files that were rejected when these were committed again",
            registry=registry,
        )
        self.appended_records = Counter(
            "siltstone_appended_records", "Records that were appended", registry=registry
        )
        self.appended_bytes = Counter(
            "siltstone_appended_bytes",
            "Bytes of the sections whose batches were all appended",
            registry=registry,
        )
        self.rejected_runs = Counter(
            "siltstone_rejected_runs",
            "Runs of batches that the catalog rejected, by reason",
            ["reason"],
            registry=registry,
        )
        self.ended_transactions = Counter(
            "siltstone_ended_transactions",
            "Transactions that their producers ended through this agent, by outcome",
            ["outcome"],
            registry=registry,
        )
        self.fetched_bytes = Counter(
            "siltstone_fetched_bytes", "Bytes of batches in responses to readers", registry=registry
        )
        self.extracted_bytes = Counter(
            "siltstone_extracted_bytes",
            "Bytes of batches that were verified and copied, once for all readers while they are cached",
            registry=registry,
        )
        self.fetches = Counter("siltstone_fetches", "Fetches, by outcome", ["outcome"], registry=registry)
        self.read_ahead = Counter(
            "siltstone_read_ahead",
            "Read-ahead windows for sequential readers, by outcome",
            ["outcome"],
            registry=registry,
        )
        self.read_ahead_bytes = Counter(
            "siltstone_read_ahead_bytes", "Bytes of objects that were read ahead", registry=registry
        )
        self.kafka_requests = Counter(
            "siltstone_kafka_requests",
            "Kafka requests, by API and version",
            ["api", "version"],
            registry=registry,
        )
        self.kafka_connections = Gauge(
            "siltstone_kafka_connections", "Connections of Kafka clients", registry=registry
        )
        self.kafka_connections_closed = Counter(
            "siltstone_kafka_connections_closed",
            "Kafka connections that the agent closed itself, by reason",
            ["reason"],
            registry=registry,
        )
        self.throttles = Counter(
            "siltstone_quota_throttles",
            "Requests and connections that were throttled, by the quota that they exceeded",
            ["quota"],
            registry=registry,
        )
        self.throttle_seconds = Counter(
            "siltstone_quota_throttle_seconds",
            "Throttle times of requests and connections, in seconds, by quota",
            ["quota"],
            registry=registry,
        )
        self.authorizations_denied = Counter(
            "siltstone_authorizations_denied",
            "Operations of clients that the ACLs do not allow, by type of the resource and operation",
            ["resource_type", "operation"],
            registry=registry,
        )
        self.audit_lines_suppressed = Counter(
            "siltstone_audit_lines_suppressed",
            "Authorizations that were not logged because of the rate limit of the audit log",
            registry=registry,
        )
        self.authentications = Counter(
            "siltstone_authentications",
            "Logins over Kafka and HTTP, by mechanism and outcome",
            ["mechanism", "outcome"],
            registry=registry,
        )
        self.jwks_refreshes = Counter(
            "siltstone_jwks_refreshes",
            "Attempts to read the keys that verify tokens, by outcome",
            ["outcome"],
            registry=registry,
        )
        self.unauthenticated_connections = Gauge(
            "siltstone_unauthenticated_connections",
            "Connections of Kafka clients that have not authenticated yet, although they must",
            registry=registry,
        )
        self.http_requests = Counter(
            "siltstone_http_requests",
            "HTTP requests, by method, route and status",
            ["method", "route", "status"],
            registry=registry,
        )

    def expose(self, *sources: Collector) -> None:
        """Register collectors that read other parts of the agent."""
        for source in sources:
            self.registry.register(source)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


_STORE_FIELDS: Final = {
    "requests": "Requests to the object store",
    "bytes_in": "Bytes that the agent received from the object store",
    "bytes_out": "Bytes that the agent sent to the object store",
    "errors": "Requests to the object store that failed",
    "retries": "Requests to the object store that were sent again",
    "resumes": "Requests that resumed a broken stream from the object store",
    "hedges": "Slow reads and writes of the object store that were started a second time",
    "hedges_won": "Slow reads and writes of the object store whose second call was faster",
}
_CATALOG_FIELDS: Final = {
    "calls": "Calls of catalog operations",
    "retries": "Retries of catalog operations",
    "failures": "Catalog operations that failed",
    "statements": "SQL statements of catalog operations",
    "seconds": "Seconds in catalog operations",
}


_REPLICATION_METRICS: Final = {
    "standbys": ("standbys", "Standbys that are connected to the catalog's server"),
    "synchronous_standbys": ("synchronous_standbys", "Standbys that commits of the catalog wait for"),
    "lag_bytes": ("replication_lag_bytes", "WAL that the slowest standby of the catalog has not applied"),
}


class StoreCollector(Collector):
    """Requests of an object store and of the one that its probes use, by kind and purpose."""

    def __init__(self, store: ObjectStore, probe_store: ObjectStore) -> None:
        self._stores = {id(each): each for each in (store, probe_store)}

    @override
    def collect(self) -> Iterable[Metric]:
        """Yield one sample per field, kind and purpose."""
        counts = [each.counts.snapshot() for each in self._stores.values()]
        tallies = sum(counts, CountsSnapshot({})).tallies
        for field, description in _STORE_FIELDS.items():
            family = CounterMetricFamily(
                f"siltstone_store_{field}",
                f"{description}, by kind and purpose",
                labels=["kind", "purpose"],
            )
            for (kind, purpose), tally in sorted(tallies.items()):
                family.add_metric([kind.value, purpose.value], getattr(tally, field))
            yield family


class CatalogCollector(Collector):
    """Calls of the catalog, by operation."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @override
    def collect(self) -> Iterable[Metric]:
        """Yield one sample per field and operation."""
        counts = self._catalog.operation_counts()
        for field, description in _CATALOG_FIELDS.items():
            family = CounterMetricFamily(
                f"siltstone_catalog_{field}", f"{description}, by operation", labels=["operation"]
            )
            for operation, count in sorted(counts.items()):
                family.add_metric([operation], getattr(count, field))
            yield family


class CatalogServerCollector(Collector):
    """Durability of the catalog's server, and its standbys if the role may see them."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    @override
    def collect(self) -> Iterable[Metric]:
        """Yield what was last observed."""
        yield GaugeMetricFamily(
            "siltstone_catalog_unsafe_commits",
            "1 if the catalog's server may lose acknowledged records in a crash",
            value=bool(self._server.unsafe_settings),
        )
        replication = self._server.replication
        for field, (name, text) in _REPLICATION_METRICS.items():
            family = GaugeMetricFamily(f"siltstone_catalog_{name}", text)
            if replication is not None:
                family.add_metric([], getattr(replication, field))
            yield family


class SnapshotCollector(Collector):
    """Values that other parts of the agent keep, read at each scrape."""

    def __init__(self, *, gauges: MetricReaders, counters: MetricReaders) -> None:
        self._gauges = gauges
        self._counters = counters

    @override
    def collect(self) -> Iterable[Metric]:
        """Yield one sample per value."""
        for name, (text, read) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=read())
        for name, (text, read) in self._counters.items():
            yield CounterMetricFamily(name, text, value=read())
