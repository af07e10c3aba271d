"""What a planner asks of the catalog: answers that are bounded, and fair to every topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.jobs.planning_queries import DirtyRule
from catalog.model import Exactness, PartitionId
from tests.catalog.scene import run_of, with_keys

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import Topic
    from tests.catalog.scene import Scene

DIRTY_ENOUGH = DirtyRule(above_ratio=0.5, limited=False)


def test_topics_take_turns_with_their_dirtiest_partitions(scene: Scene) -> None:
    """A noisy topic takes no more than its turn; what nobody asks about is left out."""
    noisy, quiet, other = scene.topic("noisy", 3), scene.topic("quiet", 1), scene.topic("other", 1)
    for topic, partition, commits in (
        (noisy, 0, 2),
        (noisy, 1, 4),
        (noisy, 2, 3),
        (quiet, 0, 1),
        (other, 0, 9),
    ):
        for _ in range(commits):
            scene.commit(topic, run_of(1), partition=partition)
    rules = {noisy.topic_id: DIRTY_ENOUGH, quiet.topic_id: DIRTY_ENOUGH}
    found = [size.partition_id for size in scene.catalog.planning.dirty_partitions(rules, 3)]
    assert found == [
        PartitionId(noisy.topic_id, 1),
        PartitionId(quiet.topic_id, 0),
        PartitionId(noisy.topic_id, 2),
    ]
    assert len(scene.catalog.planning.dirty_partitions(rules, 10)) == 4


def test_a_partition_that_is_clean_enough_is_not_looked_at(scene: Scene) -> None:
    """Unless its topic limits how long records stay dirty; a clean one never is."""
    topic = scene.topic("t", 2)
    for partition in (0, 1):
        scene.commit(topic, run_of(1), partition=partition)
        job = scene.claimed(scene.extents(topic, partition))
        scene.catalog.jobs.complete(scene.result(job))
    planning = scene.catalog.planning
    assert planning.dirty_partitions({topic.topic_id: DirtyRule(above_ratio=0, limited=True)}, 10) == []
    scene.commit(topic, run_of(1))  # 100 bytes beside 40 clean ones
    ratio = 100 / 140
    assert planning.dirty_partitions({topic.topic_id: DirtyRule(above_ratio=ratio, limited=False)}, 10) == []
    for rule in (DirtyRule(above_ratio=ratio - 0.01, limited=False), DirtyRule(above_ratio=1, limited=True)):
        (size,) = planning.dirty_partitions({topic.topic_id: rule}, 10)
        assert size.partition_id == PartitionId(topic.topic_id, 0)


def test_a_clean_partition_is_looked_at_while_an_exact_job_is_owed_to_it(scene: Scene) -> None:
    """Unless nobody could run one; it is as dirty as it is large."""
    topic = scene.topic("t", 2)
    for partition, unique in ((0, True), (1, False)):
        scene.commit(topic, run_of(1), partition=partition)
        job = scene.claimed(scene.extents(topic, partition))
        scene.catalog.jobs.complete(with_keys(scene.result(job), unique=unique))
    rules = {topic.topic_id: DirtyRule(above_ratio=1, limited=False)}
    (size,) = scene.catalog.planning.dirty_partitions(rules, 10)
    assert size.partition_id == PartitionId(topic.topic_id, 1)
    assert size.exactness is Exactness.DEDUP_INCOMPLETE
    assert scene.catalog.planning.dirty_partitions(rules, 10, include_incomplete=False) == []


def test_ingestion_files_come_with_no_more_extents_than_asked_for(scene: Scene) -> None:
    """One file at least, however many it has: a plan must be able to begin."""
    topic = scene.topic("t", 3)
    for _ in range(3):
        scene.catalog.commits.commit(
            scene.file({PartitionId(topic.topic_id, number): [run_of(1)] for number in range(3)})
        )
    counts = [len(scene.catalog.planning.ingestion_files(10, max_extents=most)) for most in (1, 3, 6, 8, 9)]
    assert counts == [1, 1, 2, 2, 3]


def test_the_extents_of_files_are_all_of_them_claimed_or_not(scene: Scene) -> None:
    topic = scene.topic("t", 2)
    sections = {PartitionId(topic.topic_id, number): [run_of(1)] for number in range(2)}
    commit = scene.file(sections)
    scene.catalog.commits.commit(commit)
    scene.commit(topic, run_of(1))
    spec = scene.submitted(scene.extents(topic, 1))
    found = scene.catalog.planning.extents_of_files([commit.file_id])
    assert [(each.partition, each.claimed_by) for each in found] == [(0, None), (1, spec.job_id)]
    (live,) = scene.catalog.planning.files_of([commit.file_id])
    assert (live.object_name, live.size) == (commit.object_name, commit.size)


def compacted(scene: Scene, topic: Topic, extents: int) -> UUID:
    """A compacted file with an extent of 40 bytes in each of the first so many partitions."""
    keys = [PartitionId(topic.topic_id, number) for number in range(extents)]
    scene.catalog.commits.commit(scene.file({key: [run_of(1)] for key in keys}))
    newest = [scene.extents(topic, key.partition)[-1] for key in keys]
    result = scene.result(scene.claimed(newest, reaches_log_start=False))
    scene.catalog.jobs.complete(result)
    return result.files[0].file_id


def test_files_to_merge_fill_the_room_that_there_is(scene: Scene) -> None:
    """One that no room would do for comes beside those that fit: it would never be seen otherwise."""
    topic = scene.topic("t", 7)
    five, two, seven, one, three = (compacted(scene, topic, extents) for extents in (5, 2, 7, 1, 3))

    def to_merge(max_extents: int) -> list[UUID]:
        files = scene.catalog.planning.files_to_merge(
            below_bytes=1000, dead_bytes=1, dead_share=0.5, limit=10, max_extents=max_extents
        )
        assert all(len(each.extents) * 40 == each.live_bytes for each in files)
        return [each.file.file_id for each in files]

    assert to_merge(18) == [one, two, three, five, seven]
    assert to_merge(10) == [one, two, three], "neither fits into what is left, nor is too large for all of it"
    assert to_merge(6) == [one, two, three, seven]
    assert to_merge(4) == [one, two, five], "of two that are too large the smaller one comes"
    assert to_merge(1) == [one, two]
