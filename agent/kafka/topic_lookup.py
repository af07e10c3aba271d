"""Lookup of the topics that requests name: by name, or by id since KIP-516."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from agent.cluster.topic_directory import require_partition
from agent.kafka.authorization import refusal, refused_names
from agent.kafka.errors import ErrorCode, KafkaError
from core.errors import NotFoundError, SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from agent.cluster.topic_directory import TopicDirectory
    from agent.kafka.api_definition import RequestContext
    from agent.security.rights import Right
    from catalog.model import Topic

TopicKey: TypeAlias = "tuple[str, UUID | None]"
"""The name and id of a topic in a request. `by_id` selects one of them."""


NO_LEADER_EPOCH: Final = -1
"""The epoch in a request of a client that knows none."""


async def find_topic(directory: TopicDirectory, name: str, topic_id: UUID | None, *, by_id: bool) -> Topic:
    """Return the topic, or raise `KafkaError` if it does not exist."""
    try:
        if not by_id:
            return await directory.get(name)
        if topic_id is not None:
            return await directory.get_by_id(topic_id)
    except NotFoundError as error:
        code = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
        raise KafkaError(code, error.message) from error
    raise KafkaError(ErrorCode.unknown_topic_id, "the request has no topic id")


async def find_topics(directory: TopicDirectory, names: Iterable[str]) -> dict[str, Topic | SiltstoneError]:
    """Look up topics by name together, and return the topic or the error for each name."""
    found = await find_topics_by_key(directory, ((name, None) for name in names), by_id=False)
    return {name: topic for (name, _), topic in found.items()}


async def find_topics_by_key(
    directory: TopicDirectory, keys: Iterable[TopicKey], *, by_id: bool
) -> dict[TopicKey, Topic | SiltstoneError]:
    """Look up topics by name or by id together, and return the topic or the error for each key."""
    wanted = list(dict.fromkeys(keys))
    if len(wanted) == 1:  # `find_topic` returns a more specific error message
        try:
            return {wanted[0]: await find_topic(directory, *wanted[0], by_id=by_id)}
        except SiltstoneError as error:
            return {wanted[0]: error}
    if by_id:
        return await _find_by_id(directory, wanted)
    try:
        found = await directory.get_many(name for name, _ in wanted)
    except SiltstoneError as error:
        return {key: directory.cached(key[0]) or error for key in wanted}
    return {key: found[key[0]] if key[0] in found else _missing(key[0]) for key in wanted}


async def _find_by_id(
    directory: TopicDirectory, wanted: Sequence[TopicKey]
) -> dict[TopicKey, Topic | SiltstoneError]:
    ids = {key: topic_id for key in wanted if (topic_id := key[1]) is not None}
    missing = KafkaError(ErrorCode.unknown_topic_id, "there is no topic with that id")
    try:
        found = await directory.get_many_by_id(ids.values())
    except SiltstoneError as error:
        return {key: directory.cached_by_id(ids[key]) or error if key in ids else missing for key in wanted}
    return {key: found.get(ids[key], missing) if key in ids else missing for key in wanted}


async def find_permitted_topics(
    context: RequestContext, keys: Iterable[TopicKey], right: Right, *, by_id: bool
) -> dict[TopicKey, Topic | SiltstoneError]:
    """Look up topics by name or by id together; the outcome is a refusal for those that need another right.

    Refused names are not looked up: the time of the response would tell whether they exist. Ids need a
    lookup, and are not secret.
    """
    directory, wanted = context.services.directory, list(dict.fromkeys(keys))
    if by_id:
        found = await find_topics_by_key(directory, wanted, by_id=True)
        names = {key: topic.name for key, topic in found.items() if not isinstance(topic, SiltstoneError)}
        hidden = await refused_names(context, right, names.values())
        return found | {key: refusal(right) for key, name in names.items() if name in hidden}
    hidden = await refused_names(context, right, filter(None, (name for name, _ in wanted)))
    found = await find_topics_by_key(directory, (key for key in wanted if key[0] not in hidden), by_id=False)
    return found | {key: refusal(right) for key in wanted if key[0] in hidden}


def _missing(name: str) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")


def check_partition(
    topic: Topic, partition: int, epoch: int = NO_LEADER_EPOCH, current_leader_epoch: int = NO_LEADER_EPOCH
) -> None:
    """Raise unless the topic has the partition, and the client is in the same leader epoch.

    `epoch` is the one that the agent knows. A client may state none. It validates its position when it learns
    of a new epoch (KIP-320). The epochs of a local topic are not compared: it has always had the same leader.
    """
    require_partition(topic, partition)
    if not topic.is_local and current_leader_epoch not in {epoch, NO_LEADER_EPOCH}:
        raise epoch_error(f"{topic.name}-{partition}", epoch, current_leader_epoch)


def epoch_error(partition_name: str, epoch: int, current_leader_epoch: int) -> KafkaError:
    """Return the error for a client in an earlier or later leader epoch than the agent."""
    is_earlier = current_leader_epoch < epoch
    code = ErrorCode.fenced_leader_epoch if is_earlier else ErrorCode.unknown_leader_epoch
    return KafkaError(code, f"{partition_name} is in leader epoch {epoch}, not {current_leader_epoch}")
