"""Metrics that are read from the parts of an agent at each scrape: memory, calls under way, cache hits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.runtime.metrics import SnapshotCollector
from agent.runtime.process_resources import open_file_count, open_file_limit

if TYPE_CHECKING:
    from agent.assembly.data_path import DataPath
    from agent.assembly.resources import Resources
    from agent.kafka.fetch_sessions import FetchSessions
    from agent.runtime.health import LoopLag
    from agent.runtime.metrics import MetricReaders


def metrics_snapshot(
    resources: Resources, data: DataPath, fetch_sessions: FetchSessions, loop_lag: LoopLag
) -> SnapshotCollector:
    """Return a collector of the current values of these parts."""
    write_path, read_path, tail, blocks = data.write_path, data.read_path, data.tail, data.blocks
    cache, local_logs, incarnations = data.reader.cache, data.local_logs, resources.catalog.incarnations
    gauges: MetricReaders = {
        "siltstone_write_buffer_bytes": (
            "Bytes of batches that were accepted and are not acknowledged yet",
            lambda: write_path.budget.used,
        ),
        "siltstone_write_files_in_flight": (
            "Ingestion files that are closed and not committed yet",
            lambda: write_path.files_in_flight,
        ),
        "siltstone_request_bytes": (
            "Bytes of request bodies in memory",
            lambda: resources.request_budget.used,
        ),
        "siltstone_parsed_bytes": (
            "Bytes that are reserved for requests after they were parsed",
            lambda: resources.parsing_budget.used,
        ),
        "siltstone_fetch_bytes": (
            "Bytes that were fetched and are not sent yet",
            lambda: read_path.budget.used,
        ),
        "siltstone_early_close_idle_seconds": (
            "Time without arrivals after which an ingestion file is closed early, in seconds",
            lambda: write_path.early_close.idle_seconds,
        ),
        "siltstone_tail_bytes": ("Bytes of the newest batches in memory (the hot tail)", lambda: tail.size),
        "siltstone_cache_bytes": (
            "Bytes of the read cache: object ranges, and batches that were extracted from them",
            lambda: blocks.memory.size,
        ),
        "siltstone_loop_lag_seconds": (
            "Latest delay of the event loop, in seconds",
            lambda: loop_lag.seconds,
        ),
        "siltstone_loop_lag_max_seconds": (
            "Longest delay of the event loop in the last one to two minutes, in seconds",
            lambda: loop_lag.worst_seconds,
        ),
        "siltstone_fetch_sessions": ("Fetch sessions", lambda: len(fetch_sessions)),
        "siltstone_fetch_session_partitions": (
            "Partitions in fetch sessions",
            lambda: fetch_sessions.partition_count,
        ),
        "siltstone_catalog_epoch": (
            "Epoch of the catalog; each failover and each restore begins a new one",
            lambda: resources.epoch.current,
        ),
        "siltstone_unsettled_sessions": (
            "Sessions that may have lost commits in a failover; their orphans, and deleted topics, are kept",
            lambda: incarnations.backlog.unsettled_sessions,
        ),
        "siltstone_waiting_lost_files": (
            "Lost ingestion files that wait to be committed again",
            lambda: incarnations.backlog.waiting_commits,
        ),
        "siltstone_open_files": ("Files that the process has open", open_file_count),
        "siltstone_open_file_limit": ("Files that the process may have open", open_file_limit),
        **local_logs.gauges(),
    }
    for pool in resources.pools.all():
        name = f"siltstone_pool_{pool.name.replace(' ', '_')}_calls"
        gauges[name] = (
            f"Running and waiting calls of the thread pool: {pool.name}",
            partial(getattr, pool, "pending"),
        )
    counters: MetricReaders = {
        "siltstone_tail_hits": ("Reads that were served from the hot tail", lambda: tail.hits),
        "siltstone_block_cache_hits": (
            "Reads that were served from batches which another read had extracted",
            lambda: blocks.hits,
        ),
        "siltstone_cache_hits": ("Object ranges that were in the cache", lambda: cache.hits),
        "siltstone_cache_misses": ("Object ranges that were read from the store", lambda: cache.misses),
        "siltstone_cache_joined": ("Object ranges that another read was loading", lambda: cache.joined),
        "siltstone_fetch_session_evictions": (
            "Fetch sessions that were evicted because a new session replaced them",
            lambda: fetch_sessions.evictions,
        ),
        "siltstone_early_closes_held_back": (
            "Ingestion files whose early close waited for the budget of PUTs",
            lambda: write_path.early_close.held_back,
        ),
        "siltstone_write_rejections": (
            "Appends that were rejected because the write buffer was full",
            lambda: write_path.budget.rejections,
        ),
        "siltstone_request_rejections": (
            "Requests that were rejected because the memory for request bodies was full",
            lambda: resources.request_budget.rejections,
        ),
        **local_logs.counters(),
    }
    return SnapshotCollector(gauges=gauges, counters=counters)
