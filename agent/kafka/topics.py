"""Topics as requests name them: by name, or since KIP-516 by identifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.errors import ErrorCode, KafkaError
from agent.local_logs.local_topics import is_local
from agent.topic_directory import require_partition
from bedrock.errors import NotFoundError, SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from agent.topic_directory import TopicDirectory
    from catalog.model import Topic

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
    wanted = list(dict.fromkeys(names))
    if len(wanted) == 1:  # its words say more
        try:
            return {wanted[0]: await find_topic(directory, wanted[0], None, by_id=False)}
        except SiltstoneError as error:
            return {wanted[0]: error}
    try:
        found = await directory.get_many(wanted)
    except SiltstoneError as error:
        return dict.fromkeys(wanted, error)
    return {name: found[name] if name in found else _missing(name) for name in wanted}


def _missing(name: str) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")


def check_partition(topic: Topic, partition: int, current_leader_epoch: int = -1) -> None:
    """Raise unless the topic has the partition, and a client does not know of a later leader than we do.

    A local topic's epochs are not compared: its leader is the only one that ever was, and loses nothing.
    """
    require_partition(topic, partition)
    if is_local(topic):
        return
    if current_leader_epoch > LEADER_EPOCH:
        raise KafkaError(
            ErrorCode.unknown_leader_epoch,
            f"{topic.name}-{partition} is in epoch {LEADER_EPOCH}, not {current_leader_epoch}",
        )
