"""What the Kafka protocol is a face of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.append_router import AppendRouter
    from agent.byte_budget import ByteBudget
    from agent.groups.coordinator import GroupCoordinator
    from agent.kafka.brokers import Brokers
    from agent.kafka.fetch_sessions import FetchSessions
    from agent.local_logs.disk_reads import DiskReads
    from agent.local_logs.leaders import LeaderDirectory
    from agent.memory_reads import MemoryReads
    from agent.metrics import AgentMetrics
    from agent.pools import Pools
    from agent.read_path import ReadPath
    from agent.settings import AgentSettings
    from agent.timestamp_lookup import TimestampLookup
    from agent.topic_directory import TopicDirectory
    from bedrock.clock import Clock
    from bedrock.ids import Ids
    from catalog.open import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts that handlers call. `catalog` blocks: go through `pools.catalog`."""

    settings: AgentSettings
    catalog: Catalog
    directory: TopicDirectory
    appends: AppendRouter
    disks: DiskReads
    leaders: LeaderDirectory
    read_path: ReadPath
    memory_reads: MemoryReads
    timestamps: TimestampLookup
    brokers: Brokers
    groups: GroupCoordinator
    fetch_sessions: FetchSessions
    pools: Pools
    request_budget: ByteBudget
    metrics: AgentMetrics
    clock: Clock
    ids: Ids
