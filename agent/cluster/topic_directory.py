"""TopicTable by name, looked up in the catalog and remembered for a short while.

What is remembered may be stale by `topic_cache_ms`: a topic that was deleted meanwhile is refused by the
commit, one whose configuration changed is validated by the old one until then.
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
    from core.clock import Clock

_MAX_CACHED_TOPICS = 100_000
_MAX_KEYS_PER_QUERY = 5_000  # with one query
Key = TypeVar("Key")


class TopicTable(Protocol):
    """What the directory needs of the catalog."""

    def get(self, name: str, /) -> Topic:
        """The topic, or `NotFoundError`."""
        ...

    def by_id(self, topic_id: UUID, /) -> Topic:
        """The topic, or `NotFoundError`."""
        ...

    def named(self, names: Sequence[str], /) -> Sequence[Topic]:
        """Those of the topics that there are."""
        ...

    def identified(self, topic_ids: Sequence[UUID], /) -> Sequence[Topic]:
        """Those of the topics that there are."""
        ...


class TopicDirectory:
    """A bounded, short-lived memory of topics. Belongs to the event loop."""

    def __init__(self, topics: TopicTable, *, pool: WorkPool, clock: Clock, cache_ms: int) -> None:
        self._topics = topics
        self._pool = pool
        self._clock = clock
        self._ttl_seconds = cache_ms / 1000
        self._by_name: dict[str, tuple[float, Topic]] = {}
        self._by_id: dict[UUID, tuple[float, Topic]] = {}

    def cached(self, name: str) -> Topic | None:
        """The topic called `name`, where nobody needs to be asked."""
        known = self._by_name.get(name)
        return None if known is None or known[0] <= self._clock.monotonic() else known[1]

    def cached_by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of that identifier, where nobody needs to be asked."""
        known = self._by_id.get(topic_id)
        return None if known is None or known[0] <= self._clock.monotonic() else known[1]

    async def get(self, name: str) -> Topic:
        """The topic called `name`; `NotFoundError` when there is none."""
        topic = self.cached(name)
        if topic is not None:
            return topic
        try:
            return self._store(await self._pool.run(partial(self._topics.get, name)))
        except NotFoundError:
            self._by_name.pop(name, None)
            raise

    async def get_by_id(self, topic_id: UUID) -> Topic:
        """The topic of that identifier; `NotFoundError` when there is none."""
        topic = self.cached_by_id(topic_id)
        if topic is not None:
            return topic
        try:
            return self._store(await self._pool.run(partial(self._topics.by_id, topic_id)))
        except NotFoundError:
            self._by_id.pop(topic_id, None)
            raise

    async def get_many(self, names: Iterable[str]) -> dict[str, Topic]:
        """The topics of these names, in one look-up for thousands; those that do not exist are left out."""
        found, missing = _split(names, self.cached)
        for some in _slices(missing):
            topics = await self._pool.run(partial(self._topics.named, some))
            for name in some:
                self._by_name.pop(name, None)
            found.update((topic.name, self._store(topic)) for topic in topics)
        return found

    async def get_many_by_id(self, topic_ids: Iterable[UUID]) -> dict[UUID, Topic]:
        """As `get_many`, by identifiers."""
        found, missing = _split(topic_ids, self.cached_by_id)
        for some in _slices(missing):
            topics = await self._pool.run(partial(self._topics.identified, some))
            for topic_id in some:
                self._by_id.pop(topic_id, None)
            found.update((topic.topic_id, self._store(topic)) for topic in topics)
        return found

    def last_known(self, name: str) -> Topic | None:
        """The topic as it was last seen, for when the catalog does not tell; None if it is not remembered."""
        known = self._by_name.get(name)
        return None if known is None else known[1]

    def last_known_by_id(self, topic_id: UUID) -> Topic | None:
        """The topic as it was last seen, however long ago; None when it is not remembered."""
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
        """The topic called `name`, which has that partition; `NotFoundError` otherwise."""
        topic = await self.get(name)
        require_partition(topic, partition)
        return topic

    def invalidate(self, name: str) -> None:
        """Look it up anew next time."""
        known = self._by_name.pop(name, None)
        if known is not None:
            self._by_id.pop(known[1].topic_id, None)

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Forget topics that the catalog does not know any more."""
        del file
        gone: set[UUID] = {
            result.topic_id
            for result in results
            if any(run.refusal is RunRefusal.UNKNOWN_TOPIC_OR_PARTITION for run in result.runs)
        }
        if gone:
            self.invalidate_all(gone)

    def invalidate_all(self, topic_ids: Container[UUID]) -> None:
        """Look all of these up anew next time, by name too."""
        self._by_id = {key: known for key, known in self._by_id.items() if key not in topic_ids}
        self._by_name = {
            name: known for name, known in self._by_name.items() if known[1].topic_id not in topic_ids
        }


def _split(
    wanted: Iterable[Key], cached: Callable[[Key], Topic | None]
) -> tuple[dict[Key, Topic], list[Key]]:
    """What is remembered, and what is to be looked up."""
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
            remedy=f"name a partition from 0 to {topic.partition_count - 1}",
        )
