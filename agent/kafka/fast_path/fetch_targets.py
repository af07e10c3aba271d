"""The partitions that a common Fetch request reads, grouped by topic and checked from memory alone."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID

from agent.kafka.fetch_sessions import FINAL_EPOCH, NO_SESSION, SessionlessFetch, SessionRequest
from agent.kafka.topic_lookup import NO_LEADER_EPOCH
from agent.read.memory_reads import PartitionRead

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.cluster.topic_directory import TopicDirectory
    from agent.kafka.fast_path.fetch_parser import FetchRequest
    from agent.kafka.fetch_sessions import FetchContext, FetchSessions, PartitionKey
    from agent.read.memory_reads import PartitionReadTuple
    from agent.security.identity import Principal
    from catalog.model import Topic

# The constructor of a named tuple is a Python function, and every partition needs one.
_new_wanted = partial(tuple.__new__, PartitionRead)


class FetchTargets(NamedTuple):
    """The partitions to read, in order, and each topic's name (or id) as bytes in the request.

    A topic occurs again if partitions of other topics lie between its own.
    """

    names: list[bytes]
    topics: list[tuple[Topic, Sequence[PartitionReadTuple]]]


FindTopic: TypeAlias = "Callable[[bytes], Topic | None]"
SessionTargets: TypeAlias = "tuple[FetchContext, FetchTargets]"


def find_targets(
    request: FetchRequest,
    data: memoryview,
    sessions: FetchSessions,
    directory: TopicDirectory,
    epoch: int,
    *,
    owner: Principal,
    by_id: bool,
    is_readable: Callable[[str], bool] | None = None,
) -> SessionTargets | None:
    """Return the request's fetch context and targets; None if the ordinary path must handle the request.

    `data` is the request's frame, `epoch` the leader epoch that the agent knows, and `owner` the principal of
    the client. `is_readable` returns True for the name of a topic that the client may read; without it, all
    are. Raises `KafkaError` for a session error.
    """
    find = partial(_topic, directory=directory, by_id=by_id, is_readable=is_readable)
    if request.session_epoch == FINAL_EPOCH and request.session_id == NO_SESSION:
        targets = _targets_of_request(request, data, find, epoch)
        if targets is not None:
            return SessionlessFetch(partial(_wanted_by_key, request, data)), targets
    forgotten = [(bytes(data[start:end]), partition) for start, end, partition in request.forgotten]
    wanted = _wanted_by_key(request, data)
    fetch_context = sessions.find(
        SessionRequest(owner, request.session_id, request.session_epoch, wanted, forgotten, by_id)
    )
    found = _targets_of_session(fetch_context.wanted, find, epoch)
    return None if found is None else (fetch_context, found)


def _wanted_by_key(request: FetchRequest, data: memoryview) -> dict[PartitionKey, PartitionRead]:
    """Return the request as a session remembers it. The last mention of a partition counts."""
    starts, ends, partitions, epochs, offsets, max_bytes = request.wanted
    spans = dict(zip(starts, ends, strict=True))
    names = {start: bytes(data[start:end]) for start, end in spans.items()}
    keys = zip(map(names.__getitem__, starts), partitions, strict=True)
    return dict(
        zip(keys, map(_new_wanted, zip(partitions, offsets, max_bytes, epochs, strict=True)), strict=True)
    )


def _targets_of_request(
    request: FetchRequest, data: memoryview, find: FindTopic, epoch: int
) -> FetchTargets | None:
    """Return the targets of a sessionless request; None also if it names a topic or partition twice."""
    starts, ends, partitions, epochs, offsets, max_bytes = request.wanted
    if not starts or not {epoch, NO_LEADER_EPOCH}.issuperset(epochs):
        return None
    parts = list(zip(partitions, offsets, max_bytes, epochs, strict=True))
    targets = FetchTargets([], [])
    seen: set[bytes] = set()
    end = 0
    while end < len(starts):
        begin, end = end, bisect_right(starts, starts[end], end)
        name, numbers = bytes(data[starts[begin] : ends[begin]]), partitions[begin:end]
        topic = None if name in seen else find(name)
        if topic is None or len(set(numbers)) < len(numbers):
            return None
        if min(numbers) < 0 or max(numbers) >= topic.partition_count:
            return None
        seen.add(name)
        targets.names.append(name)
        targets.topics.append((topic, parts[begin:end]))
    return targets


def _targets_of_session(
    wanted: Mapping[PartitionKey, PartitionRead], find: FindTopic, epoch: int
) -> FetchTargets | None:
    """Return the targets of a session, in the session's order."""
    targets = FetchTargets([], [])
    found: dict[bytes, Topic] = {}
    last, partitions = b"", 0
    parts: list[PartitionRead] = []
    for (name, partition), each in wanted.items():
        if name != last or not parts:
            topic = found.get(name) or find(name)
            if topic is None:
                return None
            found[name] = topic
            last, partitions, parts = name, topic.partition_count, []
            targets.names.append(name)
            targets.topics.append((topic, parts))
        if not 0 <= partition < partitions or each.leader_epoch not in {epoch, NO_LEADER_EPOCH}:
            return None
        parts.append(each)
    return targets if parts else None


def _topic(
    name: bytes, *, directory: TopicDirectory, by_id: bool, is_readable: Callable[[str], bool] | None
) -> Topic | None:
    """Return the topic if the directory has it in memory and the client may read it."""
    if by_id:
        topic = directory.cached_by_id(UUID(bytes=name))
    else:
        topic = directory.cached(str(name, "utf-8", "replace"))
    return topic if topic is None or is_readable is None or is_readable(topic.name) else None
