"""Topics that change, lose records or are deleted while a job runs: no record returns or is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.errors import TopicNotFoundError
from catalog.model import FileKind, JobState, PartitionId
from catalog.open import open_catalog
from core.errors import StaleStateError
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import Scene, advance_log_start, run_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.clock import Clock
    from core.ids import Ids

NAMES = ("t0", "t1", "t2")
_WAITING = b"SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def test_a_topic_that_is_no_longer_compacted_keeps_every_record(scene: Scene) -> None:
    """The job had dropped records. Its other partitions are published, and the inputs are unclaimed again."""
    changed, compacted = scene.topic("changed"), scene.topic("compacted")
    for _ in range(2):
        sections = {PartitionId(topic.topic_id, 0): [run_of(5)] for topic in (changed, compacted)}
        scene.catalog.commits.commit(scene.file(sections))
    before = scene.extents(changed)
    job = scene.claimed([*before, *scene.extents(compacted)])
    scene.catalog.topics.alter_config("changed", {"cleanup.policy": "delete"})
    scene.catalog.jobs.complete(scene.result(job))
    assert scene.extents(changed) == before
    assert [each.file_kind for each in scene.extents(compacted)] == [FileKind.COMPACTED]
    assert InvariantChecker(scene.catalog).violations() == []
    assert scene.catalog.garbage.dead_files(2**62, 10) == []
    scene.submitted(before)


def test_a_publication_waits_for_a_change_of_policy(scene: Scene, catalog_url: str) -> None:
    """The publication then applies the new policy."""
    topic = scene.topic("t")
    scene.commit(topic, run_of(5))
    before = scene.extents(topic)
    job = scene.claimed(before)
    with (
        psycopg.connect(connection_string(catalog_url, DatabaseLimits())) as other,
        psycopg.connect(catalog_url, autocommit=True) as watcher,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute(b"""UPDATE topics SET config = '{"cleanup.policy": "delete"}'""")
        done = pool.submit(scene.catalog.jobs.complete, scene.result(job))
        while not watcher.execute(_WAITING).rowcount:
            pass
        other.commit()
        done.result(timeout=240)
    assert scene.extents(topic) == before


@pytest.mark.parametrize(("start", "left"), [(4, [(0, 9)]), (7, [(0, 9)]), (10, []), (12, [])])
def test_deleted_records_do_not_return_with_a_publication(
    scene: Scene, start: int, left: list[tuple[int, int]]
) -> None:
    """The log start stays, and outputs below it are dropped, whether or not the inputs were removed."""
    topic = scene.topic("t", cleanup_policy="compact")
    for _ in range(2):
        scene.commit(topic, run_of(5))
    job = scene.claimed(scene.extents(topic))
    scene.commit(topic, run_of(5))
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, start)
    scene.catalog.retention.expire([PartitionId(topic.topic_id, 0)])
    scene.catalog.jobs.complete(scene.result(job))
    found = [(each.base_offset, each.last_offset) for each in scene.extents(topic)]
    assert found == [*left, (10, 14)]
    (state,) = scene.catalog.topics.partitions(topic.topic_id)
    assert state.log_start_offset >= start
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_recreated_topic_gets_no_records_of_the_old_one(scene: Scene) -> None:
    old = scene.topic("t")
    scene.commit(old, run_of(5))
    job = scene.claimed(scene.extents(old))
    scene.catalog.topics.delete("t")
    new = scene.topic("t")
    scene.catalog.jobs.complete(scene.result(job))
    assert scene.extents(new) == []
    assert scene.catalog.jobs.get(job.spec.job_id).state is JobState.COMPLETED
    scene.remove_deleted_topics()
    dead = scene.catalog.garbage.dead_files(2**62, 10)
    assert {each.kind for each in dead} == {FileKind.INGESTION, FileKind.COMPACTED}


@dataclass(frozen=True)
class Crowd:
    """Operations that several threads run on a few topics at the same time."""

    scene: Scene
    ids: Ids

    def topic(self, name: str) -> None:
        self.scene.topic(name, 2, retention_ms="-1", retention_bytes="500")

    def write(self, random: Random) -> None:
        topics = random.sample(self.scene.catalog.topics.list(), k=2)
        sections = {PartitionId(each.topic_id, random.randrange(2)): [run_of(3)] for each in topics}
        self.scene.catalog.commits.commit(self.scene.file(sections))

    def compact(self, random: Random) -> None:
        topic = random.choice(self.scene.catalog.topics.list())
        extents = self.scene.extents(topic, random.randrange(2))[: random.randint(1, 5)]
        if not extents:
            return
        with suppress(StaleStateError):
            self.scene.submitted(extents, reaches_log_start=False)
        for job in self.scene.catalog.jobs.claim(f"worker {self.ids.new_uuid()}", 1):
            self.scene.catalog.jobs.complete(self.scene.result(job))

    def cut(self, random: Random) -> None:
        topic_id = random.choice(self.scene.catalog.topics.list()).topic_id
        retention = self.scene.catalog.retention
        with suppress(TopicNotFoundError):
            advance_log_start(retention, topic_id, random.randrange(2), random.randrange(40))
        retention.expire([PartitionId(topic_id, number) for number in (0, 1)], limit=4)

    def change(self, random: Random) -> None:
        name = random.choice(NAMES)
        if random.random() < 0.4:
            self.scene.catalog.topics.delete(name)
            self.topic(name)
        else:
            policy = random.choice(["compact", "delete", "compact,delete"])
            self.scene.catalog.topics.alter_config(name, {"cleanup.policy": policy})


def test_concurrent_operations_keep_the_invariants(catalog_url: str, clock: Clock, ids: Ids) -> None:
    """Commits, jobs, retention, and deletions and changes of topics do not deadlock."""
    with open_catalog(catalog_url, clock, ids, limits=DatabaseLimits(max_connections=12)) as catalog:
        crowd = Crowd(Scene.set_up(catalog, ids), ids)
        for name in NAMES:
            crowd.topic(name)

        def repeat(operation: Callable[[Random], None], seed: int, times: int) -> None:
            random = Random(seed)
            for _ in range(times):
                operation(random)

        operations = (
            [(crowd.write, 25)] * 3 + [(crowd.compact, 15), (crowd.cut, 15)] * 2 + [(crowd.change, 10)]
        )
        with ThreadPoolExecutor(len(operations)) as pool:
            for each in [
                pool.submit(repeat, operation, seed, times)
                for seed, (operation, times) in enumerate(operations)
            ]:
                each.result(timeout=600)
        while catalog.garbage.remove_deleted():
            pass
        assert InvariantChecker(catalog).violations() == []
