"""Garbage collection of files whose sections are in two databases."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from catalog.database.connection import SCHEMA
from catalog.errors import CatalogUnavailableError
from catalog.lifecycle.lost_commits import AcknowledgedCommit
from core.clock import ManualClock, SystemClock
from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.errors import ObjectsNotDeletedError
from prototypes.sharded_catalog import ShardedCommits, open_shards, parse, sharded_name
from tests.fixtures.logs import log_to_standard_error
from tests.fixtures.postgres import PATIENT
from tests.prototypes.sharded_catalog.cluster import BODY, Cluster, Switch, file_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def _assert_nothing_is_left(cluster: Cluster) -> None:
    assert not any(cluster.rows(shard.number) for shard in cluster.shards)
    assert [file.name for file in (cluster.directory).rglob("*.seg")] == []


def test_a_file_that_lives_in_one_shard_is_kept(cluster: Cluster) -> None:
    file = cluster.file(0, 1)
    cluster.commits.commit(file)
    for shard in (0, 1):
        assert cluster.exists(file)
        cluster.expire(shard)
        cluster.garbage.collect()
        assert cluster.exists(file), "the grace period has not passed"
        cluster.collect()
    assert not cluster.exists(file)
    _assert_nothing_is_left(cluster)


def test_a_file_is_kept_while_one_of_its_shards_is_away(cluster: Cluster, urls: list[str]) -> None:
    shared, own = cluster.file(0, 1), cluster.file(0)
    for file in (shared, own):
        cluster.commits.commit(file)
    for shard in (0, 1):
        cluster.expire(shard)
    with Switch(urls[1]) as away:
        away.turn_off()
        cluster.collect()
        assert cluster.exists(shared)
        assert not cluster.exists(own)
    cluster.collect()
    _assert_nothing_is_left(cluster)


def test_a_pending_part_keeps_the_file_as_long_as_its_session_is_active(cluster: Cluster) -> None:
    file = cluster.file(0, 1)
    cluster.commit_part(file, 0)
    cluster.expire(0)
    cluster.collect()
    assert cluster.exists(file)
    cluster.commit_part(file, 1)
    cluster.collect()
    assert cluster.exists(file)
    assert len(cluster.records(1)) == 1


def test_a_file_with_a_part_in_an_unknown_shard_is_kept(cluster: Cluster) -> None:
    file = cluster.file(0)
    name = sharded_name(file.session_id, file.file_id, {0, 5})
    cluster.store.put(name, [BODY], purpose=Purpose.INGEST)
    cluster.catalog(0).commits.commit(replace(file, object_name=name))
    cluster.expire(0)
    cluster.collect()
    assert cluster.exists(replace(file, object_name=name))


@pytest.mark.parametrize("committed", [0, 1])
def test_an_agent_that_dies_between_two_shards_leaves_no_garbage(cluster: Cluster, committed: int) -> None:
    file = cluster.file(0, 1)
    cluster.commit_part(file, committed)
    cluster.shards.fence(cluster.session_id)
    for _ in range(3):
        cluster.collect()
    assert cluster.exists(file)
    assert [len(cluster.records(shard)) for shard in (0, 1)] == [int(committed == 0), int(committed == 1)]
    assert cluster.catalog(committed).sessions.get(cluster.session_id) is None
    cluster.expire(committed)
    cluster.collect()
    _assert_nothing_is_left(cluster)


def test_a_process_that_is_killed_between_two_commits_leaves_no_garbage(
    cluster: Cluster, urls: list[str]
) -> None:
    file = cluster.file(0, 1)
    with psycopg.connect(urls[1]) as lock:
        lock.execute(f"LOCK TABLE {SCHEMA}.partitions".encode())
        arguments = [*urls, file.object_name, *map(str, cluster.topics)]
        script = f"import sys; from {commit_file.__module__} import commit_file; commit_file(*sys.argv[1:])"
        with subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "shard 0 has committed\n"
            process.kill()
    assert [file_id for file_id, _, _ in cluster.records(0)] == [file.file_id]
    cluster.shards.fence(cluster.session_id)
    cluster.collect()
    assert cluster.exists(file)
    assert cluster.records(1) == []
    cluster.expire(0)
    cluster.collect()
    _assert_nothing_is_left(cluster)


def test_a_part_that_was_given_up_does_not_keep_the_file(cluster: Cluster) -> None:
    file = cluster.file(0, 1)
    cluster.commit_part(file, 0)
    cluster.commits.give_up(file, 1).result()
    cluster.collect()
    assert cluster.exists(file)
    cluster.expire(0)
    cluster.collect()
    _assert_nothing_is_left(cluster)


def test_an_object_without_any_commit_is_deleted_after_its_session(cluster: Cluster) -> None:
    file = cluster.file(0, 1)
    cluster.collect()
    assert cluster.exists(file)
    cluster.catalog(0).sessions.end(cluster.session_id)
    cluster.collect()
    assert cluster.exists(file), "the other shard has not closed the session"
    cluster.catalog(1).sessions.fence(cluster.session_id)
    for _ in range(2):
        cluster.collect()
    _assert_nothing_is_left(cluster)


def test_a_session_with_lost_commits_voids_nothing_in_that_shard(cluster: Cluster) -> None:
    file = cluster.file(0, 1)
    cluster.commit_part(file, 0)
    cluster.expire(0)
    cluster.catalog(1).incarnations.declare_restore(
        "a test"
    )  # fences the session, which may have lost commits
    cluster.catalog(0).sessions.fence(cluster.session_id)
    cluster.collect()
    assert cluster.exists(file)
    (part,) = (each for each in cluster.commits.parts_of(file) if each.shard.number == 1)
    cluster.catalog(1).commits.readopt(part.commit)
    cluster.catalog(1).lost_commits.settle(
        [cluster.session_id], cluster.catalog(1).incarnations.current().epoch
    )
    cluster.collect()
    assert cluster.exists(file)
    assert len(cluster.records(1)) == 1


def test_a_part_is_voided_only_if_its_session_has_closed_and_lost_nothing(cluster: Cluster) -> None:
    file, shard = cluster.file(0, 1), cluster.shards[1]

    def void() -> bool:
        cluster.clock.advance(1)
        now_ms = cluster.clock.now_ms()
        return shard.void(file.file_id, file.object_name, file.size, file.session_id, now_ms)

    assert not void()
    shard.catalog.sessions.fence(file.session_id)
    lost = AcknowledgedCommit(
        file_id=file.file_id,
        session_id=file.session_id,
        object_name=file.object_name,
        number=1,
        committed_ms=0,
        offsets=(),
    )
    shard.catalog.lost_commits.report([file.session_id], [lost], shard.catalog.incarnations.current().epoch)
    assert not void()
    shard.catalog.lost_commits.mark_unreadable(
        file.file_id, file.session_id, file.object_name, "a test", gives_up=True
    )
    assert not void()
    shard.catalog.lost_commits.settle([file.session_id], shard.catalog.incarnations.current().epoch)
    assert cluster.rows(1) == []
    assert void()
    assert cluster.rows(1) == [file.file_id]


class Death(BaseException):
    """Death of a process at a certain step."""


@pytest.mark.parametrize("shard", [0, 1])
def test_a_collector_that_dies_before_it_has_deleted_all_rows_is_continued(
    cluster: Cluster, shard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cluster.file(0, 1)
    cluster.commits.commit(file)
    for each in (0, 1):
        cluster.expire(each)

    def die(_file_ids: Sequence[UUID]) -> int:
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(cluster.catalog(shard).garbage, "delete_rows", die)
        with pytest.raises(Death):
            cluster.collect()
    assert not cluster.exists(file)
    for _ in range(2):
        cluster.collect()
    _assert_nothing_is_left(cluster)


def test_rows_of_a_shard_that_was_away_are_deleted_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cluster.file(0, 1)
    cluster.commits.commit(file)
    for each in (0, 1):
        cluster.expire(each)

    def fail(_file_ids: Sequence[UUID]) -> int:
        raise CatalogUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.catalog(1).garbage, "delete_rows", fail)
        cluster.collect()
    assert (cluster.rows(0), cluster.rows(1)) == ([], [file.file_id])
    cluster.collect()
    _assert_nothing_is_left(cluster)


def test_objects_that_cannot_be_deleted_keep_their_rows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cluster.file(0, 1)
    cluster.commits.commit(file)
    for each in (0, 1):
        cluster.expire(each)

    def refuse(object_names: Sequence[str], *, purpose: Purpose) -> None:
        raise ObjectsNotDeletedError(purpose, dict.fromkeys(object_names, "denied"))

    with monkeypatch.context() as patch:
        patch.setattr(cluster.store, "delete", refuse)
        cluster.collect()
    assert cluster.rows(0) == cluster.rows(1) == [file.file_id]
    cluster.collect()
    _assert_nothing_is_left(cluster)


def commit_file(first_url: str, second_url: str, object_name: str, *topic_ids: str) -> None:
    """Commit a file with a section in each of two shards, and report when the first of them has it."""
    log_to_standard_error()
    name, clock = parse(object_name), SystemClock()
    assert name is not None
    ids = SystemIds(clock)
    shards = open_shards([first_url, second_url], ManualClock(), ids, limits=PATIENT)
    file = file_of(name.session_id, object_name, name.file_id, map(UUID, topic_ids))
    submitted = ShardedCommits(shards, clock, ids, retry_seconds=0).submit(file)
    submitted.part(0).result()
    print("shard 0 has committed", flush=True)  # noqa: T201  # for the test
    submitted.results()
