"""The topics of the local logs, as the catalog last had them.

A failover may lose the creation of a topic to whose logs this agent has acknowledged records. The logs have
the topic's name and id. Only this memory has its settings and its number of partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from catalog.model import Topic
    from core.clock import Clock

MAX_AGE_MS: Final = 24 * 3_600_000
"""Time for which a topic counts as known after the catalog had it.

The catalog remembers a deleted topic for much longer (`LOCAL_TOPIC_KEPT_MS`). So a topic that is known, and
of which the catalog has no row, was not deleted: its creation was lost.
"""


class KnownTopic(NamedTuple):
    """Local topic as the catalog had it in an epoch, at a time in milliseconds."""

    topic: Topic
    epoch: int
    noted_ms: int


class KnownTopics:
    """Local topics by id; one for each local log at most. Thread-safe.

    `epoch` returns the epoch of the catalog that the agent knows.
    """

    def __init__(self, clock: Clock, epoch: Callable[[], int]) -> None:
        self._clock = clock
        self._epoch = epoch
        self._topics: dict[UUID, KnownTopic] = {}

    def note(self, topics: Iterable[Topic]) -> None:
        """Note those of the topics that are local. The catalog has just returned them."""
        now_ms, epoch = self._clock.now_ms(), self._epoch()
        self._topics.update(
            (topic.topic_id, KnownTopic(topic, epoch, now_ms)) for topic in topics if topic.is_local
        )

    def ids(self) -> set[UUID]:
        """Return the ids of all topics."""
        return set(self._topics)

    def forget(self, topic_ids: Iterable[UUID]) -> None:
        """Forget topics of which no log is left."""
        for topic_id in topic_ids:
            self._topics.pop(topic_id, None)

    def lost(self, topic_ids: Iterable[UUID], found: Mapping[UUID, Topic]) -> list[KnownTopic]:
        """Return the known ones of these topics that are not `found`, or with fewer partitions."""
        since_ms = self._clock.now_ms() - MAX_AGE_MS
        known = (self._topics.get(topic_id) for topic_id in sorted(set(topic_ids)))
        return [
            each
            for each in known
            if each is not None
            and each.noted_ms >= since_ms
            and _lacks_partitions(found.get(each.topic.topic_id), each.topic)
        ]


def _lacks_partitions(found: Topic | None, known: Topic) -> bool:
    return found is None or found.partition_count < known.partition_count
