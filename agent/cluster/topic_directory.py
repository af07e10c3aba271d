"""Cache of topics, by name and by identifier.

An entry may be stale by `topic_cache_ms`. The commit rejects batches for a topic that was deleted in the
meantime. A topic whose configuration changed is validated by the old configuration until then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from agent.cluster.errors import UnknownPartitionError
from catalog.model import RunRefusal
from core.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence
    from uuid import UUID

    from agent.cluster.commits import CommittedFile
    from agent.runtime.work_pool import WorkPool
    from catalog.model import SectionResult, Topic
    from catalog.topics.changes import TopicVersion
    from catalog.topics.repository import TopicList
    from core.clock import Clock

_MAX_CACHED_TOPICS = 100_000
_MAX_LISTED_TOPICS = 20_000  # about half a kilobyte each
_MAX_KEYS_PER_QUERY = 5_000  # with one query
Key = TypeVar("Key")


class TopicTable(Protocol):
    """The operations of the catalog that the directory needs."""

    def get(self, name: str, /) -> Topic:
        """Return the topic, or raise `NotFoundError`."""
        ...

    def by_id(self, topic_id: UUID, /) -> Topic:
        """Return the topic, or raise `NotFoundError`."""
        ...

    def by_names(self, names: Sequence[str], /) -> Sequence[Topic]:
        """Return the topics that exist."""
        ...

    def by_ids(self, topic_ids: Sequence[UUID], /) -> Sequence[Topic]:
        """Return the topics that exist."""
        ...

    def changed_since(self, known: TopicVersion | None, /) -> TopicList | None:
        """Return all topics; None if their version is still `known`."""
        ...


class TopicDirectory:
    """Bounded cache of topics with short-lived entries. Belongs to the event loop."""

    def __init__(self, topics: TopicTable, *, pool: WorkPool, clock: Clock, cache_ms: int) -> None:
        self._topics = topics
        self._pool = pool
        self._clock = clock
        self._ttl_seconds = cache_ms / 1000
        self._by_name: dict[str, tuple[float, Topic]] = {}
        self._by_id: dict[UUID, tuple[float, Topic]] = {}
        self._listed: TopicList | None = None

    async def all(self) -> Sequence[Topic]:
        """Return all topics by name as the catalog has them now.

        Up to 20,000 topics are cached, and listed again only after a change.
        """
        listed = self._listed
        changed = await self._pool.run(
            partial(self._topics.changed_since, None if listed is None else listed.version)
        )
        if changed is None:
            assert listed is not None
            return listed.topics
        self._listed = changed if len(changed.topics) <= _MAX_LISTED_TOPICS else None
        return changed.topics

    def cached(self, name: str) -> Topic | None:
        """Return the topic `name` from the cache, or None if it is missing or too old."""
        known = self._by_name.get(name)
        return None if known is None or known[0] <= self._clock.monotonic() else known[1]

    def cached_by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic from the cache, or None if it is missing or too old."""
        known = self._by_id.get(topic_id)
        return None if known is None or known[0] <= self._clock.monotonic() else known[1]

    async def get(self, name: str) -> Topic:
        """Return the topic `name`; raise `NotFoundError` if it does not exist."""
        topic = self.cached(name)
        if topic is not None:
            return topic
        try:
            return self._store(await self._pool.run(partial(self._topics.get, name)))
        except NotFoundError:
            self._by_name.pop(name, None)
            raise

    async def get_by_id(self, topic_id: UUID) -> Topic:
        """Return the topic; raise `NotFoundError` if it does not exist."""
        topic = self.cached_by_id(topic_id)
        if topic is not None:
            return topic
        try:
            return self._store(await self._pool.run(partial(self._topics.by_id, topic_id)))
        except NotFoundError:
            self._by_id.pop(topic_id, None)
            raise

    async def get_many(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return the existing topics of `names`, looked up with one query for thousands."""
        found, missing = _split(names, self.cached)
        for some in _slices(missing):
            topics = await self._pool.run(partial(self._topics.by_names, some))
            for name in some:
                self._by_name.pop(name, None)
            found.update((topic.name, self._store(topic)) for topic in topics)
        return found

    async def get_many_by_id(self, topic_ids: Iterable[UUID]) -> dict[UUID, Topic]:
        """Return the existing topics of `topic_ids`, looked up with one query for thousands."""
        found, missing = _split(topic_ids, self.cached_by_id)
        for some in _slices(missing):
            topics = await self._pool.run(partial(self._topics.by_ids, some))
            for topic_id in some:
                self._by_id.pop(topic_id, None)
            found.update((topic.topic_id, self._store(topic)) for topic in topics)
        return found

    def last_known(self, name: str) -> Topic | None:
        """Return the cached topic `name` however old it is, for use while the catalog does not respond."""
        known = self._by_name.get(name)
        return None if known is None else known[1]

    def last_known_by_id(self, topic_id: UUID) -> Topic | None:
        """Return the cached topic however old it is, or None."""
        known = self._by_id.get(topic_id)
        return None if known is None else known[1]

    def _store(self, topic: Topic) -> Topic:
        if len(self._by_name) >= _MAX_CACHED_TOPICS or len(self._by_id) >= _MAX_CACHED_TOPICS:
            self._by_name.clear()
            self._by_id.clear()
        entry = (self._clock.monotonic() + self._ttl_seconds, topic)
        self._by_name[topic.name] = self._by_id[topic.topic_id] = entry
        return topic

    async def get_partition(self, name: str, partition: int) -> Topic:
        """Return the topic `name`; raise `NotFoundError` if it has no such partition."""
        topic = await self.get(name)
        require_partition(topic, partition)
        return topic

    def invalidate(self, name: str) -> None:
        """Remove a topic from the cache."""
        known = self._by_name.pop(name, None)
        if known is not None:
            self._by_id.pop(known[1].topic_id, None)

    def clear(self) -> None:
        """Remove all topics from the cache."""
        self._by_name.clear()
        self._by_id.clear()

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Remove topics for which the catalog rejected batches as unknown."""
        del file
        gone: set[UUID] = {
            result.topic_id
            for result in results
            if any(run.refusal is RunRefusal.UNKNOWN_TOPIC_OR_PARTITION for run in result.runs)
        }
        if gone:
            self.invalidate_all(gone)

    def invalidate_all(self, topic_ids: Container[UUID]) -> None:
        """Remove all of these topics from the cache."""
        self._by_id = {key: known for key, known in self._by_id.items() if key not in topic_ids}
        self._by_name = {
            name: known for name, known in self._by_name.items() if known[1].topic_id not in topic_ids
        }


def _split(
    wanted: Iterable[Key], cached: Callable[[Key], Topic | None]
) -> tuple[dict[Key, Topic], list[Key]]:
    """Split the keys into cached topics and keys to look up."""
    found, missing = {}, []
    for key in dict.fromkeys(wanted):
        topic = cached(key)
        if topic is None:
            missing.append(key)
        else:
            found[key] = topic
    return found, missing


def _slices(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    return (keys[start : start + _MAX_KEYS_PER_QUERY] for start in range(0, len(keys), _MAX_KEYS_PER_QUERY))


def require_partition(topic: Topic, partition: int) -> None:
    """Raise `UnknownPartitionError` unless the topic has that partition."""
    if not 0 <= partition < topic.partition_count:
        raise UnknownPartitionError(
            f"topic {topic.name!r} has no partition {partition}",
            remedy=f"use a partition from 0 to {topic.partition_count - 1}",
        )
