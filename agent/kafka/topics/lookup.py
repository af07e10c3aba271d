"""Topics as requests name them: by name, or since KIP-516 by identifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from agent.cluster.topic_directory import require_partition
from agent.kafka.errors import ErrorCode, KafkaError
from core.errors import NotFoundError, SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from agent.cluster.topic_directory import TopicDirectory
    from catalog.model import Topic

Key: TypeAlias = "tuple[str, UUID | None]"

LEADER_EPOCH = 0
"""Of a topic whose home is the object store: agents hold no state that a new leader would have to fence."""


async def find_topic(directory: TopicDirectory, name: str, topic_id: UUID | None, *, by_id: bool) -> Topic:
    """The topic; a `KafkaError` tells a client that there is none."""
    try:
        if not by_id:
            return await directory.get(name)
        if topic_id is not None:
            return await directory.get_by_id(topic_id)
    except NotFoundError as error:
        code = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
        raise KafkaError(code, error.message) from error
    raise KafkaError(ErrorCode.unknown_topic_id, "no topic identifier was given")


async def find_topics(directory: TopicDirectory, names: Iterable[str]) -> dict[str, Topic | SiltstoneError]:
    """As `find_topic`, by names, in one look-up for all of them: the topic or the error by each name."""
    found = await find_each(directory, ((name, None) for name in names), by_id=False)
    return {name: topic for (name, _), topic in found.items()}


async def find_each(
    directory: TopicDirectory, keys: Iterable[Key], *, by_id: bool
) -> dict[Key, Topic | SiltstoneError]:
    """The same by names and identifiers, as a request has them."""
    wanted = list(dict.fromkeys(keys))
    if len(wanted) == 1:  # its words say more
        try:
            return {wanted[0]: await find_topic(directory, *wanted[0], by_id=by_id)}
        except SiltstoneError as error:
            return {wanted[0]: error}
    if by_id:
        return await _find_by_id(directory, wanted)
    try:
        found = await directory.get_many(name for name, _ in wanted)
    except SiltstoneError as error:
        return {key: directory.fresh(key[0]) or error for key in wanted}
    return {key: found[key[0]] if key[0] in found else _missing(key[0]) for key in wanted}


async def _find_by_id(directory: TopicDirectory, wanted: Sequence[Key]) -> dict[Key, Topic | SiltstoneError]:
    ids = {key: topic_id for key in wanted if (topic_id := key[1]) is not None}
    none = KafkaError(ErrorCode.unknown_topic_id, "there is no topic of that identifier")
    try:
        found = await directory.get_many_by_id(ids.values())
    except SiltstoneError as error:
        return {key: directory.fresh_by_id(ids[key]) or error if key in ids else none for key in wanted}
    return {key: found.get(ids[key], none) if key in ids else none for key in wanted}


def _missing(name: str) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")


def check_partition(topic: Topic, partition: int, current_leader_epoch: int = -1) -> None:
    """Raise unless the topic has the partition, and a client does not know of a later leader than we do.

    A local topic's epochs are not compared: its leader is the only one that ever was, and loses nothing.
    """
    require_partition(topic, partition)
    if topic.is_local:
        return
    if current_leader_epoch > LEADER_EPOCH:
        raise KafkaError(
            ErrorCode.unknown_leader_epoch,
            f"{topic.name}-{partition} is in epoch {LEADER_EPOCH}, not {current_leader_epoch}",
        )
