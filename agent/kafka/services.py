"""The parts of an agent that the Kafka protocol uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.cluster.brokers import Brokers
    from agent.cluster.catalog_epoch import CatalogEpoch
    from agent.cluster.replica_cache import ReplicaCache
    from agent.cluster.topic_directory import TopicDirectory
    from agent.groups.coordinator import GroupCoordinator
    from agent.kafka.automatic_topics import AutomaticTopics
    from agent.kafka.fetch_sessions import FetchSessions
    from agent.local_topics.append_router import AppendRouter
    from agent.local_topics.leaders import LeaderDirectory
    from agent.local_topics.reader import LocalLogReader
    from agent.quotas.follower import QuotaFollower
    from agent.read.memory_reads import MemoryReads
    from agent.read.read_path import ReadPath
    from agent.read.timestamp_lookup import TimestampLookup
    from agent.runtime.byte_budget import ByteBudget
    from agent.runtime.health import LoopLag
    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.pools import Pools
    from agent.security.acl_follower import AclFollower
    from agent.security.authentication import Authentication
    from agent.security.authorizer import Authorizer
    from agent.settings import AgentSettings
    from agent.transactions.coordinator import TransactionCoordinator
    from agent.write.failed_producers import FailedProducers
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaServices:
    """The services that handlers call. The methods of `catalog` block: run them in `pools.catalog`.

    There are an authorizer and a follower of its ACLs only if `authorizer_enable` is set.
    """

    settings: AgentSettings
    catalog: Catalog
    directory: TopicDirectory
    automatic_topics: AutomaticTopics
    appends: AppendRouter
    failed_producers: FailedProducers
    local_logs: LocalLogReader
    leaders: LeaderDirectory
    read_path: ReadPath
    memory_reads: MemoryReads
    timestamps: TimestampLookup
    brokers: Brokers
    replicas: ReplicaCache
    epoch: CatalogEpoch
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    fetch_sessions: FetchSessions
    quotas: QuotaFollower
    pools: Pools
    authentication: Authentication
    request_budget: ByteBudget
    parsing_budget: ByteBudget
    metrics: AgentMetrics
    clock: Clock
    loop_lag: LoopLag
    ids: Ids
    authorizer: Authorizer | None = None
    acl_follower: AclFollower | None = None
