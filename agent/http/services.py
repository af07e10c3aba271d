"""What the HTTP API is a face of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.byte_budget import ByteBudget
    from agent.metrics import AgentMetrics
    from agent.pools import Pools
    from agent.read_path import ReadPath
    from agent.record_producer import RecordProducer
    from agent.settings import AgentSettings
    from agent.topic_directory import TopicDirectory
    from bedrock.ids import Ids
    from catalog.topics import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts that routes call. `problems` lists what keeps the agent from being well: name → what."""

    settings: AgentSettings
    topics: Topics
    directory: TopicDirectory
    producer: RecordProducer
    read_path: ReadPath
    pools: Pools
    request_budget: ByteBudget
    metrics: AgentMetrics
    ids: Ids
    problems: Callable[[], Mapping[str, str]]
