"""What a usual Fetch request asks for, by topics: read in columns, and judged as far as memory can."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID

from agent.kafka.fetch_sessions import FINAL_EPOCH, NO_SESSION, SessionlessFetch, SessionRequest
from agent.kafka.topics.lookup import LEADER_EPOCH
from agent.read.memory_reads import PartitionRead

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.cluster.topic_directory import TopicDirectory
    from agent.kafka.fast_path.fetch_parser import FetchRequest
    from agent.kafka.fetch_sessions import FetchContext, FetchSessions, PartitionKey
    from agent.read.memory_reads import PartitionReadTuple
    from catalog.model import Topic

# A named tuple's own constructor is a Python function, and every partition needs one.
_wanted = partial(tuple.__new__, PartitionRead)


class Runs(NamedTuple):
    """What is wanted, in order, and how requests name each topic.

    A topic comes again where partitions of others lie between its own.
    """

    names: list[bytes]
    topics: list[tuple[Topic, Sequence[PartitionReadTuple]]]


Reads: TypeAlias = "tuple[FetchContext, Runs]"


def read_request(
    request: FetchRequest,
    data: memoryview,
    sessions: FetchSessions,
    directory: TopicDirectory,
    *,
    by_id: bool,
) -> Reads | None:
    """What to read for a request, whose bytes are `data`; None when anything is not as it should be.

    Raises `KafkaError` for a session that is not as the request says.
    """
    if request.session_epoch == FINAL_EPOCH and request.session_id == NO_SESSION:
        runs = _runs(request, data, directory, by_id=by_id)
        if runs is not None:
            return SessionlessFetch(partial(_by_key, request, data)), runs
    forgotten = [(bytes(data[start:end]), partition) for start, end, partition in request.forgotten]
    wanted = _by_key(request, data)
    reads = sessions.find(SessionRequest(request.session_id, request.session_epoch, wanted, forgotten, by_id))
    found = _runs_of_session(reads.wanted, directory, by_id=by_id)
    return None if found is None else (reads, found)


def _by_key(request: FetchRequest, data: memoryview) -> dict[PartitionKey, PartitionRead]:
    """What a session remembers of it; of a partition that is named twice, what is said last."""
    starts, ends, partitions, epochs, offsets, most = request.wanted
    spans = dict(zip(starts, ends, strict=True))
    names = {start: bytes(data[start:end]) for start, end in spans.items()}
    keys = zip(map(names.__getitem__, starts), partitions, strict=True)
    return dict(zip(keys, map(_wanted, zip(partitions, offsets, most, epochs, strict=True)), strict=True))


def _runs(request: FetchRequest, data: memoryview, directory: TopicDirectory, *, by_id: bool) -> Runs | None:
    """The request's own partitions; None also where one of them, or a topic, is named twice."""
    starts, ends, partitions, epochs, offsets, most = request.wanted
    if not starts or max(epochs) > LEADER_EPOCH:
        return None
    parts = list(zip(partitions, offsets, most, epochs, strict=True))
    runs = Runs([], [])
    seen: set[bytes] = set()
    end = 0
    while end < len(starts):
        begin, end = end, bisect_right(starts, starts[end], end)
        name, numbers = bytes(data[starts[begin] : ends[begin]]), partitions[begin:end]
        topic = None if name in seen else _topic(name, directory, by_id=by_id)
        if topic is None or len(set(numbers)) < len(numbers):
            return None
        if min(numbers) < 0 or max(numbers) >= topic.partition_count:
            return None
        seen.add(name)
        runs.names.append(name)
        runs.topics.append((topic, parts[begin:end]))
    return runs


def _runs_of_session(
    wanted: Mapping[PartitionKey, PartitionRead], directory: TopicDirectory, *, by_id: bool
) -> Runs | None:
    """The same of a session, in its order."""
    runs = Runs([], [])
    found: dict[bytes, Topic] = {}
    last, partitions = b"", 0
    parts: list[PartitionRead] = []
    for (name, partition), each in wanted.items():
        if name != last or not parts:
            topic = found.get(name) or _topic(name, directory, by_id=by_id)
            if topic is None:
                return None
            found[name] = topic
            last, partitions, parts = name, topic.partition_count, []
            runs.names.append(name)
            runs.topics.append((topic, parts))
        if not 0 <= partition < partitions or each.leader_epoch > LEADER_EPOCH:
            return None
        parts.append(each)
    return runs if parts else None


def _topic(name: bytes, directory: TopicDirectory, *, by_id: bool) -> Topic | None:
    """The topic that requests call so, where nobody needs to be asked."""
    if by_id:
        return directory.cached_by_id(UUID(bytes=name))
    return directory.cached(str(name, "utf-8", "replace"))
