"""Producers of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import PartitionId
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from tests.catalog.scene import Scene


def test_producers_of_several_partitions_are_returned_together(scene: Scene) -> None:
    """At most `limit` of each partition, the most recent first."""
    topic, other = scene.topic(partitions=2), scene.topic("other")
    for number in range(3):
        scene.commit(topic, run_of(1, producer=(number, 0, 0)))
    for sequence in (0, 4):
        scene.commit(other, run_of(4, producer=(7, 2, sequence)))
    keys = [PartitionId(other.topic_id, 0), PartitionId(topic.topic_id, 1), PartitionId(topic.topic_id, 0)]
    found = scene.catalog.producers.of_partitions(keys, limit=2)
    assert {
        key: [(each.producer_id, each.producer_epoch, each.last_sequence) for each in found[key]]
        for key in keys
    } == {keys[0]: [(7, 2, 7)], keys[1]: [], keys[2]: [(0, 0, 0), (1, 0, 0)]}
