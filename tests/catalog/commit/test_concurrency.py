"""Concurrent commits in threads and processes, while connections break at random."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from catalog.model import PartitionId
from core.clock import SystemClock
from tests.catalog.checks import InvariantChecker
from tests.catalog.committer import append_at_random, retry_while_unavailable
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from core.clock import Clock
    from tests.catalog.scene import Scene


@pytest.fixture
def clock() -> Clock:
    """Return the system clock, because these tests wait for other processes."""
    return SystemClock()


def _check(scene: Scene, appended: Iterable[tuple[int, int, int]]) -> None:
    """Check that the acknowledged appends cover the log without gap or overlap."""
    assert InvariantChecker(scene.catalog).violations() == []
    acknowledged: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for partition, base_offset, count in appended:
        acknowledged[partition] += range(base_offset, base_offset + count)
    for size in scene.catalog.planning.partition_sizes():
        assert sorted(acknowledged[size.state.partition]) == list(range(size.state.log_end_offset))


def test_appends_of_threads_do_not_overlap(scene: Scene, catalog_url: str) -> None:
    topic = scene.topic(partitions=3)
    with ThreadPoolExecutor(4) as pool:
        done = pool.map(lambda seed: append_at_random(catalog_url, topic.topic_id, seed, 20), range(2, 6))
    _check(scene, [each for appended in done for each in appended])


def test_broken_connections_neither_lose_nor_duplicate_appends(
    scene: Scene, catalog_url: str, breaking_connections: Callable[[], None]
) -> None:
    topic = retry_while_unavailable(lambda: scene.topic(partitions=3))
    with ThreadPoolExecutor(2) as pool:
        done = list(
            pool.map(lambda seed: append_at_random(catalog_url, topic.topic_id, seed, 15), range(2, 4))
        )
    breaking_connections()
    _check(scene, [each for appended in done for each in appended])


def test_appends_of_processes_do_not_overlap(scene: Scene, catalog_url: str) -> None:
    topic = scene.topic(partitions=3)
    command = [sys.executable, "-m", "tests.catalog.committer", catalog_url, str(topic.topic_id)]
    children = [
        subprocess.Popen([*command, str(seed), "15"], stdout=subprocess.PIPE, text=True) for seed in (2, 3)
    ]
    output = [child.communicate(timeout=600)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    reports = [json.loads(text.splitlines()[-1]) for text in output]  # after events of the log
    _check(scene, [tuple(each) for report in reports for each in report])


def test_concurrent_attempts_commit_a_file_once(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    keys = [PartitionId(topic.topic_id, partition) for partition in (0, 1)]
    for number in range(10):
        commit = scene.file({key: [run_of(2, producer=(1, 0, 2 * number))] for key in keys})
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(scene.catalog.commits.commit, [commit] * 4))
        assert results == [results[0]] * 4
        assert not any(run.duplicate for result in results[0] for run in result.runs)
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_topic_deletion_during_commits_leaves_no_rows(scene: Scene) -> None:
    for _ in range(5):
        topic = scene.topic(partitions=3)
        with ThreadPoolExecutor(4) as pool:
            commits = [pool.submit(scene.commit, topic, run_of(2), partition=n % 3) for n in range(9)]
            pool.submit(scene.catalog.topics.delete, topic.name).result()
        for commit in commits:
            commit.result()
        assert scene.catalog.planning.ingestion_files(100).files == []
        scene.remove_deleted_topics()
        assert scene.catalog.topics.deleted.list() == []
    assert InvariantChecker(scene.catalog).violations() == []


def test_concurrent_drivers_claim_different_jobs(scene: Scene) -> None:
    topic = scene.topic(partitions=20)
    for partition in range(20):
        scene.commit(topic, run_of(1), partition=partition)
        scene.submitted(scene.extents(topic, partition))

    def claim(number: int) -> list[object]:
        return [job.spec.job_id for job in scene.catalog.jobs.claim(f"driver {number}", 3)]

    with ThreadPoolExecutor(4) as pool:
        claimed = [job for jobs in pool.map(claim, range(8)) for job in jobs]
    assert len(claimed) == 20
    assert len(set(claimed)) == 20
