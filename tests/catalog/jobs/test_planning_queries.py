"""Queries of the planner: bounded, and fair to every topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from catalog.database.sql_files import load_queries
from catalog.jobs.planning_queries import DirtyRule
from catalog.model import Exactness, PartitionId
from tests.catalog.scene import run_of, with_keys

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import Topic
    from tests.catalog.scene import Scene

_SQL = load_queries("planning")
DIRTY_ENOUGH = DirtyRule(above_ratio=0.5, limited=False)


def test_dirty_partitions_alternate_between_topics(scene: Scene) -> None:
    """A topic with many dirty partitions does not starve others; topics without a rule are left out."""
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


def test_a_partition_with_a_low_dirty_ratio_is_not_returned(scene: Scene) -> None:
    """Except if its topic limits how long records stay dirty. A clean partition is never returned."""
    topic = scene.topic("t", 2)
    for partition in (0, 1):
        scene.commit(topic, run_of(1), partition=partition)
        job = scene.claimed(scene.extents(topic, partition))
        scene.catalog.jobs.complete(scene.result(job))
    planning = scene.catalog.planning
    assert planning.dirty_partitions({topic.topic_id: DirtyRule(above_ratio=0, limited=True)}, 10) == []
    scene.commit(topic, run_of(1))  # 100 dirty bytes in addition to 40 clean ones
    ratio = 100 / 140
    assert planning.dirty_partitions({topic.topic_id: DirtyRule(above_ratio=ratio, limited=False)}, 10) == []
    for rule in (DirtyRule(above_ratio=ratio - 0.01, limited=False), DirtyRule(above_ratio=1, limited=True)):
        (size,) = planning.dirty_partitions({topic.topic_id: rule}, 10)
        assert size.partition_id == PartitionId(topic.topic_id, 0)


def test_a_clean_partition_is_returned_while_its_deduplication_is_incomplete(scene: Scene) -> None:
    """All its bytes count as dirty. It is left out if no exact job can run."""
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


def test_ingestion_files_have_at_most_the_requested_extents(scene: Scene) -> None:
    """The first file is returned even if it exceeds the limit, so that a plan can make progress."""
    topic = scene.topic("t", 3)
    for _ in range(3):
        scene.catalog.commits.commit(
            scene.file({PartitionId(topic.topic_id, number): [run_of(1)] for number in range(3)})
        )
    counts = [
        len(scene.catalog.planning.ingestion_files(10, max_extents=limit).files) for limit in (1, 3, 6, 8, 9)
    ]
    assert counts == [1, 1, 2, 2, 3]


def test_the_extents_of_files_include_claimed_ones(scene: Scene) -> None:
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
    """Create a compacted file with one extent of 40 bytes in each of `extents` partitions."""
    keys = [PartitionId(topic.topic_id, number) for number in range(extents)]
    scene.catalog.commits.commit(scene.file({key: [run_of(1)] for key in keys}))
    newest = [scene.extents(topic, key.partition)[-1] for key in keys]
    result = scene.result(scene.claimed(newest, reaches_log_start=False))
    scene.catalog.jobs.complete(result)
    return result.files[0].file_id


def test_files_to_merge_fill_the_limit_of_extents(scene: Scene) -> None:
    """One file that alone exceeds the limit is added, because it would never be returned otherwise."""
    topic = scene.topic("t", 7)
    five, two, seven, one, three = (compacted(scene, topic, extents) for extents in (5, 2, 7, 1, 3))

    def to_merge(max_extents: int) -> list[UUID]:
        files = scene.catalog.planning.files_to_merge(
            below_bytes=1000, dead_bytes=1, dead_share=0.5, limit=10, max_extents=max_extents
        ).files
        assert all(len(each.extents) * 40 == each.live_bytes for each in files)
        return [each.file.file_id for each in files]

    assert to_merge(18) == [one, two, three, five, seven]
    assert to_merge(10) == [one, two, three], (
        "the others fit neither the remaining extents nor exceed the limit alone"
    )
    assert to_merge(6) == [one, two, three, seven]
    assert to_merge(4) == [one, two, five], "of two oversized files, the smaller one is returned"
    assert to_merge(1) == [one, two]


def test_the_planner_gets_unclaimed_extents_in_commit_order(scene: Scene) -> None:
    topic = scene.topic(partitions=3)
    files = [
        scene.file({PartitionId(topic.topic_id, partition): [run_of(2)] for partition in partitions})
        for partitions in ((0, 1), (2,), (0, 2))
    ]
    for file in files:
        scene.catalog.commits.commit(file)
    seen = scene.catalog.planning.ingestion_files(10).files
    assert [file.file_id for file in seen] == [file.file_id for file in files]
    assert [extent.partition for extent in seen[0].extents] == [0, 1]
    assert [file.file_id for file in scene.catalog.planning.ingestion_files(2).files] == [
        file.file_id for file in files[:2]
    ]
    spec = scene.submitted(scene.extents(topic, 0))
    seen = scene.catalog.planning.ingestion_files(10).files
    assert [[extent.partition for extent in file.extents] for file in seen] == [[1], [2], [2]]
    claimed = scene.catalog.planning.extents_of(PartitionId(topic.topic_id, 0), 0, 10)
    assert {extent.claimed_by for extent in claimed} == {spec.job_id}
    both = scene.catalog.planning.extents_of_each(
        [(PartitionId(topic.topic_id, 2), 0), (PartitionId(topic.topic_id, 0), 3)], 1
    )
    assert [(extent.partition, extent.base_offset) for extent in both] == [(0, 2), (2, 0)]


def test_partition_sizes_are_paged(scene: Scene) -> None:
    one, two = scene.topic("one", 3), scene.topic("two", 2)
    scene.commit(one, run_of(2), partition=1)
    planning = scene.catalog.planning
    everything = planning.partition_sizes()
    assert len(everything) == 5
    assert planning.partition_sizes(limit=2) == everything[:2]
    assert planning.partition_sizes(after=everything[1].partition_id) == everything[2:]
    sizes = planning.partition_sizes([one.topic_id])
    assert [size.live_bytes for size in sizes] == [0, 100, 0]
    assert planning.partition_sizes([]) == []
    assert {size.state.topic_id for size in planning.partition_sizes([two.topic_id])} == {two.topic_id}


def test_totals_cover_the_whole_catalog(scene: Scene) -> None:
    topic = scene.topic_with_extents(10)
    scene.catalog.jobs.complete(scene.result(scene.claimed(scene.extents(topic)[:4])))
    totals = scene.catalog.planning.totals()
    assert (totals.partitions, totals.ingestion_extents, totals.compacted_extents) == (1, 6, 1)
    assert (totals.live_bytes, totals.dirty_bytes) == (640, 600)
    assert totals.live_ingestion_files.count == 6
    assert totals.live_compacted_files.count == 1
    assert (totals.dead_files.count, totals.dead_files.size) == (4, 4 * 164)


def test_no_extents_are_read_to_find_files_while_no_topic_is_deleted(scene: Scene, catalog_url: str) -> None:
    """Only a deleted topic can leave a file without anything to compact."""
    topic = scene.topic_with_extents(3)
    params = {"limit": 10, "max_extents": 10, "after": 0}

    def extents_read() -> int:
        with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
            found = 0
            for query in (_SQL["files_to_compact"], _SQL["backlog"]):
                (plan,) = (
                    connection.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + query.sql, params).fetchone()
                    or ()
                )
                found += _loops_over(plan[0]["Plan"], "extents")
            return found

    assert extents_read() == 0
    assert len(scene.catalog.planning.ingestion_files(10).files) == 3
    scene.catalog.topics.delete(topic.name)
    assert extents_read() > 0
    assert scene.catalog.planning.ingestion_files(10).files == []


def _loops_over(node: dict[str, Any], table: str) -> int:
    """Return how often an executed plan has scanned a table."""
    own = int(node["Actual Loops"]) if node.get("Relation Name") == table else 0
    return own + sum(_loops_over(each, table) for each in node.get("Plans", ()))
