"""The parts of an agent that the HTTP routes use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.cluster.topic_directory import TopicDirectory
    from agent.http.records.producer import RecordProducer
    from agent.quotas.follower import QuotaFollower
    from agent.read.read_path import ReadPath
    from agent.runtime.byte_budget import ByteBudget
    from agent.runtime.health import Health
    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.pools import Pools
    from agent.security.authorizer import Authorizer
    from agent.settings import AgentSettings
    from catalog.topics.repository import Topics
    from core.ids import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpContext:
    """The parts of an agent that the HTTP routes use."""

    settings: AgentSettings
    topics: Topics
    directory: TopicDirectory
    producer: RecordProducer
    read_path: ReadPath
    quotas: QuotaFollower
    pools: Pools
    request_budget: ByteBudget
    parsing_budget: ByteBudget
    metrics: AgentMetrics
    ids: Ids
    health: Health
    authorizer: Authorizer | None = None
