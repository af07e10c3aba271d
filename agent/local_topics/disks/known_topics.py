"""The topics of the local logs, as the catalog last had them.

A failover may lose the creation of a topic to whose logs this agent has acknowledged records. The logs have
the topic's name and id. Only this memory has its settings and its number of partitions.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from catalog.model import Topic
    from core.clock import Clock

MAX_AGE_MS: Final = 24 * 3_600_000
"""Time for which a topic counts as known after the catalog had it.

The catalog remembers a deleted topic for much longer (`LOCAL_TOPIC_KEPT_MS`). So if it has no row of a known
topic, the topic was not deleted: its creation was lost.
"""


class KnownTopic(NamedTuple):
    """Local topic as the catalog had it.

    `epoch` and `noted_ms` are the epoch of the catalog and the time in milliseconds then, or earlier ones.
    """

    topic: Topic
    epoch: int
    noted_ms: int


class Reading(NamedTuple):
    """Epoch and time in milliseconds before topics are read. A new epoch may begin during the reading."""

    epoch: int
    began_ms: int


class KnownTopics:
    """Local topics by id; one for each local log at most. Thread-safe.

    `epoch` returns the epoch of the catalog that the agent knows, 0 before it has registered a session.
    """

    def __init__(self, clock: Clock, epoch: Callable[[], int]) -> None:
        self._clock = clock
        self._epoch = epoch
        self._lock = threading.Lock()
        self._topics: dict[UUID, KnownTopic] = {}

    def begin_reading(self) -> Reading:
        """Return the time and the epoch; call it before the catalog is asked for topics."""
        return Reading(self._epoch(), self._clock.now_ms())

    def note(self, topics: Iterable[Topic], reading: Reading) -> None:
        """Note those of the topics that are local, as the catalog has returned them.

        A topic that was noted with more partitions since the reading began stays as it is: the reading may be
        older than the log of one of them.
        """
        with self._lock:
            for topic in topics:
                known = self._topics.get(topic.topic_id)
                is_newer = known is not None and known.noted_ms >= reading.began_ms
                if known is not None and is_newer and _lacks_partitions(topic, known.topic):
                    continue
                if topic.is_local:
                    self._topics[topic.topic_id] = KnownTopic(topic, *reading)

    def note_new_log(self, topic: Topic) -> None:
        """Note the local topic of a log that is created, or opened again.

        The caller may know it from an earlier epoch than the agent knows now. So the epoch of a topic that
        has other logs stays.
        """
        with self._lock:
            known, (epoch, now_ms) = self._topics.get(topic.topic_id), self.begin_reading()
            if known is None:
                self._topics[topic.topic_id] = KnownTopic(topic, epoch, now_ms)
            elif _lacks_partitions(known.topic, topic):
                self._topics[topic.topic_id] = KnownTopic(topic, known.epoch, now_ms)

    def ids(self) -> set[UUID]:
        """Return the ids of all topics."""
        with self._lock:
            return set(self._topics)

    def forget(self, topic_ids: Iterable[UUID]) -> None:
        """Forget topics that have no log any more."""
        with self._lock:
            for topic_id in topic_ids:
                self._topics.pop(topic_id, None)

    def lost(self, topic_ids: Iterable[UUID], found: Mapping[UUID, Topic]) -> list[KnownTopic]:
        """Return the known ones of these topics that are not `found`, or with fewer partitions."""
        since_ms = self._clock.now_ms() - MAX_AGE_MS
        with self._lock:
            known = [self._topics.get(topic_id) for topic_id in sorted(set(topic_ids))]
        return [
            each
            for each in known
            if each is not None
            and each.noted_ms >= since_ms
            and _lacks_partitions(found.get(each.topic.topic_id), each.topic)
        ]


def _lacks_partitions(found: Topic | None, known: Topic) -> bool:
    return found is None or found.partition_count < known.partition_count
