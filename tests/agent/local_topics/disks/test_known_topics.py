"""The topics that an agent can create again after a failover."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from agent.local_topics.disks.known_topics import MAX_AGE_MS, KnownTopics
from catalog.config.values import TopicConfig
from catalog.lifecycle.garbage import LOCAL_TOPIC_KEPT_MS
from catalog.model import Topic
from core.clock import ManualClock


def topic(number: int, mode: str = "local", partitions: int = 2) -> Topic:
    return Topic(
        topic_id=UUID(int=number),
        name=f"t{number}",
        partition_count=partitions,
        config=TopicConfig.of({"storage.mode": mode}),
        created_ms=0,
    )


def lost(known: KnownTopics, *found: Topic) -> list[tuple[int, int]]:
    """Return the ids of lost topics, and the epochs in which they were known."""
    by_id = {each.topic_id: each for each in found}
    lost = known.lost((UUID(int=number) for number in range(9)), by_id)
    return [(each.topic.topic_id.int, each.epoch) for each in lost]


def test_lost_are_local_topics_that_are_absent_or_lack_partitions() -> None:
    known = KnownTopics(ManualClock(), lambda: 3)
    known.note([topic(1), topic(2, "object"), topic(3), topic(4), topic(5)], known.begin_reading())
    known.forget([UUID(int=1)])
    found = topic(3), replace(topic(4), partition_count=1)
    assert lost(known, *found) == [(4, 3), (5, 3)]
    assert known.ids() == {UUID(int=number) for number in (3, 4, 5)}


def test_a_topic_is_known_for_a_day_after_the_catalog_had_it() -> None:
    """The catalog remembers its deletion for longer."""
    assert MAX_AGE_MS * 2 < LOCAL_TOPIC_KEPT_MS
    clock, epoch = ManualClock(), [1]
    known = KnownTopics(clock, lambda: epoch[0])
    known.note([topic(1), topic(2)], known.begin_reading())
    clock.advance(MAX_AGE_MS / 1000)
    assert lost(known) == [(1, 1), (2, 1)]
    epoch[0] = 2
    known.note([topic(2)], known.begin_reading())
    clock.advance(0.001)
    assert lost(known) == [(2, 2)]


def test_a_topic_counts_for_the_epoch_before_the_catalog_was_asked() -> None:
    """A failover during the reading may lose it."""
    epoch = [1]
    known = KnownTopics(ManualClock(), lambda: epoch[0])
    reading = known.begin_reading()
    epoch[0] = 2
    known.note([topic(1)], reading)
    assert lost(known) == [(1, 1)]


def test_a_new_log_does_not_renew_its_topic() -> None:
    """A request may have the topic from the epoch before, and the failover has lost the topic."""
    epoch = [1]
    known = KnownTopics(ManualClock(), lambda: epoch[0])
    known.note([topic(1)], known.begin_reading())
    epoch[0] = 2
    known.note_new_log(topic(1))
    known.note_new_log(topic(1, partitions=3))
    known.note_new_log(topic(2))
    assert lost(known) == [(1, 1), (2, 2)]
    assert lost(known, topic(1), topic(2)) == [(1, 1)]


def test_partitions_that_get_logs_during_a_reading_stay_known() -> None:
    """They were added after the catalog was asked. A later reading decides."""
    clock = ManualClock()
    known = KnownTopics(clock, lambda: 1)
    reading = known.begin_reading()
    known.note_new_log(topic(1, partitions=3))
    known.note([topic(1)], reading)
    assert lost(known, topic(1)) == [(1, 1)]
    clock.advance(1)
    known.note([topic(1)], known.begin_reading())
    assert lost(known, topic(1)) == []
