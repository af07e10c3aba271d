"""Numbers that an agent's parts have at hand: bytes held, calls under way, and what memory answered."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.runtime.metrics import NumbersCollector

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.app import Agent


def metrics_snapshot(agent: Agent) -> NumbersCollector:
    """What is read off the agent when somebody asks for its metrics."""
    gauges: dict[str, tuple[str, Callable[[], float]]] = {
        "siltstone_write_buffer_bytes": ("Taken, not answered yet", lambda: agent.write_path.budget.held),
        "siltstone_write_files_in_flight": (
            "Files closed, not answered yet",
            lambda: agent.write_path.files_in_flight,
        ),
        "siltstone_request_bytes": ("Request bodies in memory", lambda: agent.request_budget.held),
        "siltstone_fetch_bytes": ("Fetched, not handed out yet", lambda: agent.read_path.budget.held),
        "siltstone_tail_bytes": ("Newest batches in memory", lambda: agent.tail.size),
        "siltstone_cache_bytes": ("Ranges of objects in memory", lambda: agent.cache.size),
        "siltstone_loop_lag_seconds": ("How late the event loop is", lambda: agent.loop_lag.seconds),
    }
    gauges["siltstone_fetch_sessions"] = ("Fetch sessions", lambda: len(agent.fetch_sessions))
    gauges["siltstone_fetch_session_partitions"] = (
        "Partitions in fetch sessions",
        lambda: agent.fetch_sessions.partition_count,
    )
    gauges |= agent.disks.gauges()
    for pool in agent.pools.all():
        name = f"siltstone_pool_{pool.name.replace(' ', '_')}_calls"
        gauges[name] = (f"Calls under way or waiting: {pool.name}", partial(getattr, pool, "pending"))
    return NumbersCollector(
        gauges=gauges,
        counters={
            **agent.disks.counters(),
            "siltstone_tail_hits": ("Reads that the tail in memory served", lambda: agent.tail.hits),
            "siltstone_cache_hits": ("Ranges found in memory", lambda: agent.cache.hits),
            "siltstone_cache_misses": ("Ranges that were read", lambda: agent.cache.misses),
            "siltstone_cache_joined": ("Ranges another read brought", lambda: agent.cache.joined),
            "siltstone_fetch_session_evictions": (
                "Fetch sessions that others took the place of",
                lambda: agent.fetch_sessions.evictions,
            ),
            "siltstone_write_refusals": (
                "Appends refused by a full buffer",
                lambda: agent.write_path.budget.refusals,
            ),
            "siltstone_request_refusals": (
                "Requests refused for want of memory",
                lambda: agent.request_budget.refusals,
            ),
        },
    )
