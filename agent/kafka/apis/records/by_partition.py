"""Requests about many partitions: look up their topics together, then respond chunk by chunk.

A chunk bounds the work of one catalog query and the memory of its result.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from agent.kafka.authorization import current_acls, refusal, refused_names
from agent.kafka.placement import prefetch_leaders
from agent.kafka.topic_lookup import find_topics
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct
    from agent.security.rights import Right
    from catalog.model import PartitionId, Topic
    from catalog.topics.leader_epochs import EpochHistory

Wanted = TypeVar("Wanted")


class RequestedPartition(NamedTuple, Generic[Wanted]):
    """One partition of a request.

    `topic` is an error if the topic cannot be looked up. `wanted` is the partition's entry in the request.
    """

    topic_name: str
    topic: Topic | SiltstoneError
    wanted: Wanted

    @property
    def object_topic(self) -> Topic | None:
        """The topic, if it exists and keeps its records in the object store."""
        return None if isinstance(self.topic, SiltstoneError) or self.topic.is_local else self.topic


async def respond_by_partition(
    requested: Sequence[tuple[str, Sequence[Wanted]]],
    respond: Callable[[Sequence[RequestedPartition[Wanted]], RequestContext], Awaitable[Sequence[Struct]]],
    context: RequestContext,
    *,
    right: Right | None,
    chunk_size: int | None = None,
) -> list[tuple[str, list[Struct]]]:
    """Return the responses for each topic of a request, in the request's order.

    `requested` lists topic names and the entries of their partitions. `respond` returns one response for
    each partition of a chunk; without `chunk_size`, all partitions are one chunk. Unless `right` is None, the
    client needs it on a topic, also when a later chunk begins.
    """
    acls = current_acls(context)
    names = [name for name, _ in requested]
    refused = frozenset() if right is None else await refused_names(context, right, names)
    topics = await find_topics(context.services.directory, (each for each in names if each not in refused))
    if right is not None:
        topics |= dict.fromkeys(refused, refusal(right))
    await prefetch_leaders(topics.values(), context)
    partitions = [
        RequestedPartition(name, topics[name], each) for name, wanted in requested for each in wanted
    ]
    step = chunk_size or max(1, len(partitions))
    responses: list[Struct] = []
    for start in range(0, len(partitions), step):
        chunk = partitions[start : start + step]
        if right is not None and current_acls(context) is not acls:
            refused = await refused_names(context, right, (each.topic_name for each in chunk))
            chunk = [
                each._replace(topic=refusal(right)) if each.topic_name in refused else each for each in chunk
            ]
        responses += await respond(chunk, context)
    remaining = iter(responses)
    return [(name, list(islice(remaining, len(wanted)))) for name, wanted in requested]


async def epoch_histories(
    partitions: Collection[PartitionId], context: RequestContext
) -> Mapping[PartitionId, EpochHistory]:
    """Return the leader epochs of partitions in the object store that have more than epoch 0."""
    services = context.services
    if services.epoch.current == 0:
        return {}
    return await services.pools.catalog.run(
        partial(services.catalog.leader_epochs.of_partitions, list(partitions))
    )
