"""Commits of files whose sections are in two databases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from catalog.errors import InvalidCommitError
from core.clock import SystemClock
from prototypes.sharded_catalog import PartialCommitError, ShardedCommits, open_shards
from tests.catalog.scene import run_of
from tests.prototypes.sharded_catalog.cluster import RECORDS, Cluster, Switch, ranges

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.cluster.commits import CommittedFile
    from catalog.model import SectionResult

_DEADLINE = 60.0


def test_a_file_is_committed_in_all_its_shards(cluster: Cluster) -> None:
    first, second = cluster.file(0, 1), cluster.file(1)
    assert ranges(first, cluster.commits.commit(first)) == [(0, RECORDS), (0, RECORDS)]
    assert ranges(second, cluster.commits.commit(second)) == [(RECORDS, 2 * RECORDS)]
    assert cluster.records(0) == [(first.file_id, 0, RECORDS - 1)]
    assert [file_id for file_id, _, _ in cluster.records(1)] == [first.file_id, second.file_id]


def test_results_are_in_the_order_of_the_sections(cluster: Cluster) -> None:
    file = cluster.file(0, 1, runs={0: [run_of(1)], 1: [run_of(2)]})
    file = replace(file, sections=file.sections[::-1])
    assert ranges(file, cluster.commits.commit(file)) == [(0, 2), (0, 1)]


def test_a_shard_that_is_away_does_not_delay_the_others(urls: list[str], tmp_path: Path) -> None:
    cluster = Cluster(urls, tmp_path, retry_seconds=_DEADLINE)
    with Switch(urls[1]) as away:
        away.turn_off()
        submitted = [cluster.commits.submit(cluster.file(0, 1)) for _ in range(3)]
        for number, file in enumerate(submitted):
            (result,) = file.part(0).result(_DEADLINE)
            assert result.high_watermark == RECORDS * (number + 1)
            assert not file.part(1).done()
    ends = [[each.high_watermark for each in file.results()] for file in submitted]
    assert ends == [[RECORDS] * 2, [2 * RECORDS] * 2, [3 * RECORDS] * 2]
    cluster.close()


def test_a_retry_completes_a_partial_commit_exactly_once(cluster: Cluster, urls: list[str]) -> None:
    file = cluster.file(0, 1)
    with Switch(urls[1]) as away:
        away.turn_off()
        with pytest.raises(PartialCommitError, match="shard 1") as failed:
            cluster.commits.commit(file)
    assert failed.value.results.keys() == {0}
    assert failed.value.failures.keys() == {1}
    for _ in range(2):
        assert ranges(file, cluster.commits.commit(file)) == [(0, RECORDS), (0, RECORDS)]
    assert [len(cluster.records(shard)) for shard in (0, 1)] == [1, 1]


def test_another_process_repeats_a_commit_whose_response_was_lost(cluster: Cluster, urls: list[str]) -> None:
    file = cluster.file(0, 1, runs={1: [run_of(RECORDS, producer=(7, 0, 0))]})
    lost = cluster.commit_part(file, 1)
    cluster.commits.commit(cluster.file(0, 1))
    with open_shards(urls, cluster.clock, cluster.ids) as shards:
        commits = ShardedCommits(shards, SystemClock(), cluster.ids, retry_seconds=0)
        home, other = commits.commit(file)
        commits.close()
    assert (other,) == lost
    assert home.high_watermark == 2 * RECORDS
    assert [file_id for file_id, _, _ in cluster.records(1)].count(file.file_id) == 1


def test_a_duplicate_batch_and_a_deleted_topic_concern_their_shard_only(cluster: Cluster) -> None:
    batch = {1: [run_of(RECORDS, producer=(7, 0, 0))]}
    cluster.commits.commit(cluster.file(0, 1, runs=batch))
    home, other = cluster.commits.commit(cluster.file(0, 1, runs=batch))
    assert (home.high_watermark, other.high_watermark) == (2 * RECORDS, RECORDS)
    assert other.runs[0].duplicate
    cluster.catalog(0).topics.delete("topic-0")
    home, other = cluster.commits.commit(cluster.file(0, 1))
    assert home.runs[0].refusal is not None
    assert other.high_watermark == 2 * RECORDS


def test_a_part_that_was_given_up_is_never_committed(cluster: Cluster) -> None:
    file = cluster.file(0, 1)
    cluster.commit_part(file, 0)
    assert cluster.commits.give_up(file, 1).result(_DEADLINE)
    with pytest.raises(PartialCommitError) as failed:
        cluster.commits.commit(file)
    assert isinstance(failed.value.failures[1], InvalidCommitError)
    assert cluster.records(1) == []


def test_a_part_that_was_committed_cannot_be_given_up(cluster: Cluster) -> None:
    file = cluster.file(0, 1)
    results = cluster.commits.commit(file)
    assert cluster.commits.give_up(file, 1).result(_DEADLINE)
    assert cluster.commits.commit(file) == results
    assert len(cluster.records(1)) == 1


def test_a_file_with_other_shards_than_its_name_says_is_rejected(cluster: Cluster) -> None:
    file = replace(cluster.file(0), sections=cluster.file(0, 1).sections)
    with pytest.raises(InvalidCommitError, match="does not say"):
        cluster.commits.commit(file)
    assert cluster.records(0) == []


def test_a_listener_gets_each_part_as_a_file(cluster: Cluster) -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[tuple[int, int]] = []

        def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
            assert len(file.commit.sections) == len(results)
            self.heard.append((cluster.topics.index(results[0].topic_id), results[0].high_watermark))
            raise RuntimeError("a listener that fails")

    listener = Listener()
    commits = ShardedCommits(
        cluster.shards, SystemClock(), cluster.ids, retry_seconds=0, listeners=[listener]
    )
    with capture_logs() as logs:
        for _ in range(2):
            commits.commit(cluster.file(0, 1))
        commits.close()
    assert len(logs) == 4
    for shard in (0, 1):
        assert [end for number, end in listener.heard if number == shard] == [RECORDS, 2 * RECORDS]
