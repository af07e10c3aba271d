"""Commits of several files in one transaction."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.errors import CommitResultExpiredError, InvalidCommitError, SessionFencedError
from catalog.lifecycle.expiry import COMMIT_RESULT_RETENTION_MS
from catalog.lifecycle.incarnation import RecoveryBacklog
from catalog.model import PartitionId, RunRefusal
from catalog.open import open_catalog
from core.clock import ManualClock
from tests.catalog.checks import InvariantChecker
from tests.catalog.commit.test_commit_cost import Sent
from tests.catalog.database.wire import WireProxy
from tests.catalog.scene import Scene, run_of
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.model import BatchRun, FileCommit, SectionResult, Topic
    from core.clock import Clock
    from core.ids import Ids

_WAITING = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
_PARTITIONS = 3


def _file(scene: Scene, topic: Topic, *runs: BatchRun, partition: int = 0) -> FileCommit:
    return scene.file({PartitionId(topic.topic_id, partition): runs})


def _base_offsets(results: list[tuple[SectionResult, ...]]) -> list[list[int]]:
    return [[run.base_offset for section in file for run in section.runs] for file in results]


def test_files_get_consecutive_offsets_in_their_order(scene: Scene) -> None:
    topic = scene.topic()
    files = [_file(scene, topic, run_of(size)) for size in (3, 2, 4)]
    results = scene.catalog.commits.commit_together(files, with_extents=True)
    assert _base_offsets(results) == [[0], [3], [5]]
    assert [file[0].high_watermark for file in results] == [3, 5, 9]
    assert [extent for file in results for extent in file[0].extents] == scene.extents(topic)
    assert [extent.file_id for extent in scene.extents(topic)] == [file.file_id for file in files]
    assert scene.catalog.incarnations.evidence.last_commit == files[-1].file_id
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_producer_continues_its_sequence_from_file_to_file(scene: Scene) -> None:
    """A duplicate of the first file is known in the second, and a gap is refused."""
    topic = scene.topic()
    files = [_file(scene, topic, run_of(2, producer=(1, 0, sequence))) for sequence in (0, 2, 0, 9, 4)]
    results = [file[0].runs[0] for file in scene.catalog.commits.commit_together(files)]
    assert [run.base_offset for run in results] == [0, 2, 0, -1, 4]
    assert [run.duplicate for run in results] == [False, False, True, False, False]
    assert results[3].refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE


def test_a_repeated_call_may_have_other_files(scene: Scene) -> None:
    topic, commits = scene.topic(), scene.catalog.commits
    first, second, third = (_file(scene, topic, run_of(2, producer=(1, 0, 2 * n))) for n in range(3))
    results = commits.commit_together([first, second])
    assert commits.commit_together([first, second]) == results
    *repeated, new = commits.commit_together([second, third])
    assert repeated == results[1:]
    assert new[0].runs[0].base_offset == 4
    assert [commits.commit(file) for file in (first, second, third)] == [*results, new]
    assert commits.commit_together([third, first, third]) == [new, results[0], new]
    assert len(scene.extents(topic)) == 3


def test_a_group_of_a_fenced_session_commits_nothing(scene: Scene) -> None:
    topic, commits = scene.topic(), scene.catalog.commits
    before, after, other = (_file(scene, topic, run_of(2)) for _ in range(3))
    result = commits.commit(before)
    scene.catalog.sessions.fence(scene.session_id)
    for group in ([after, other], [before, after], [after, before]):
        with pytest.raises(SessionFencedError):
            commits.commit_together(group)
    assert commits.commit_together([before, before]) == [result, result]
    assert [extent.file_id for extent in scene.extents(topic)] == [before.file_id]


def test_a_group_with_an_expired_result_commits_nothing(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    topic, commits = scene.topic(), scene.catalog.commits
    old, new, last = (_file(scene, topic, run_of(2)) for _ in range(3))
    commits.commit(old)
    clock.advance(COMMIT_RESULT_RETENTION_MS / 1000 + 1)
    scene.commit(topic, run_of(1))  # a commit deletes a few expired results
    with pytest.raises(CommitResultExpiredError):
        commits.commit_together([new, old, last])
    assert len(scene.extents(topic)) == 2
    assert scene.catalog.incarnations.evidence.last_commit not in {new.file_id, last.file_id}
    assert _base_offsets(commits.commit_together([new, last])) == [[3], [5]]


def test_a_file_with_a_transaction_another_session_or_an_empty_section_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, commits = scene.topic(), scene.catalog.commits
    producer = scene.catalog.transactions.initialize("t", 60_000).producer
    plain = _file(scene, topic, run_of(1))
    transactional = _file(scene, topic, run_of(1, producer=(*producer, 0), adds_partition=True))
    foreign = replace(_file(scene, topic, run_of(1)), session_id=scene.ids.new_uuid())
    empty = _file(scene, topic)
    sent = Sent(monkeypatch)
    for group, problem in (
        ([plain, transactional], "has a transaction"),
        ([transactional, plain], "has a transaction"),
        ([plain, foreign], "several sessions"),
        ([empty], "the section is empty"),
        ([plain, empty], "the section is empty"),
    ):
        with pytest.raises(InvalidCommitError, match=problem):
            commits.commit_together(group)
    assert sent.statements == [], "the refusal costs no statement"
    assert _base_offsets(commits.commit_together([transactional])) == [[0]]
    assert _base_offsets(commits.commit_together([plain])) == [[1]]


def test_groups_with_crossing_partitions_do_not_deadlock(catalog_url: str, clock: Clock, ids: Ids) -> None:
    """Another client holds both partitions until both groups wait. Each begins with another partition."""
    limits = replace(PATIENT, commit_lock_seconds=240)
    url = connection_string(catalog_url, DatabaseLimits())
    with open_catalog(catalog_url, clock, ids, limits=limits) as catalog, ThreadPoolExecutor(2) as pool:
        agents = [Scene.set_up(catalog, ids) for _ in range(2)]
        topic = agents[0].topic(partitions=2)
        groups = [
            [_file(agent, topic, run_of(1), partition=partition) for partition in order]
            for agent, order in zip(agents, ((0, 1), (1, 0)), strict=True)
        ]
        with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as observer:
            holder.execute("SELECT FROM partitions FOR UPDATE")
            running = [pool.submit(catalog.commits.commit_together, group) for group in groups]
            while len(observer.execute(_WAITING).fetchall()) < 2:
                assert not any(each.done() for each in running)
            holder.rollback()
            found = [_base_offsets(each.result()) for each in running]
        assert sorted(found) == [[[0], [0]], [[1], [1]]]
        assert catalog.operation_counts()["commits.commit"].retries == 0


def test_concurrent_groups_of_the_same_files_commit_each_once(scene: Scene) -> None:
    """An agent repeats a call while the server still executes the first one, with files in another order."""
    topic = scene.topic(partitions=2)
    for number in range(5):
        files = [
            _file(scene, topic, run_of(2, producer=(1, 0, 2 * number)), partition=partition)
            for partition in range(2)
        ]
        with ThreadPoolExecutor(4) as pool:
            forward, backward = files, files[::-1]
            results = list(pool.map(scene.catalog.commits.commit_together, [forward, backward] * 2))
        assert results == [results[0], results[0][::-1]] * 2
    assert len(scene.extents(topic)) == 5
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_process_that_dies_between_the_files_commits_none(scene: Scene, catalog_url: str) -> None:
    topic = scene.topic()
    arguments = [catalog_url, str(scene.session_id), str(topic.topic_id)]
    process = subprocess.run(
        [sys.executable, "-m", "tests.catalog.killed_committer", *arguments], check=False, timeout=600
    )
    assert process.returncode == -signal.SIGKILL
    assert scene.commit(topic, run_of(1)).runs[0].base_offset == 0, "it waits until the locks are released"
    assert len(scene.extents(topic)) == 1


def test_a_group_is_retried_when_its_response_is_lost(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic()
        wire.lose_next_commit()
        files = [_file(scene, topic, run_of(2, producer=(1, 0, 2 * number))) for number in range(2)]
        results = catalog.commits.commit_together(files)
        assert _base_offsets(results) == [[0], [2]]
        assert not any(file[0].runs[0].duplicate for file in results)
        assert len(scene.extents(topic)) == 2
        assert catalog.operation_counts()["commits.commit"].retries >= 1


@pytest.mark.parametrize("files", [1, 2, 5])
def test_a_group_takes_one_round_trip_more_than_it_has_files(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids, files: int
) -> None:
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic(partitions=3)
        for number in range(8):  # psycopg prepares a statement after some executions
            group = [
                scene.file(
                    {
                        PartitionId(topic.topic_id, partition): [
                            run_of(1, producer=(1, 0, number * files + ordinal)),
                            run_of(1),
                        ]
                        for partition in range(3)
                    }
                )
                for ordinal in range(files)
            ]
            before = wire.waits
            catalog.commits.commit_together(group)
            assert wire.waits - before == files + 1


def test_a_group_takes_all_locks_before_it_writes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is that of every transaction. The rest are the statements of each file alone."""
    topic = scene.topic(partitions=2)
    scene.commit(topic, run_of(1))  # the first one begins the leader epoch
    alone = [
        "lock_file_id",
        "find_result",
        "lock_session",
        "lock_partitions",
        "advance_partitions",
        "insert_extents",
        "insert_file",
        "insert_result",
    ]
    sent = Sent(monkeypatch)
    scene.catalog.commits.commit_together([_file(scene, topic, run_of(1)) for _ in range(2)])
    names = [query.name for query, _ in sent.statements]
    assert names == ["lock_file_id"] * 2 + ["hold_session", "lock_partitions"] + alone * 2


class _Run(NamedTuple):
    partition: int
    producer: int | None
    epoch: int
    sequence: int
    size: int

    def build(self) -> BatchRun:
        producer = None if self.producer is None else (self.producer, self.epoch, self.sequence)
        return run_of(self.size, producer=producer)


_RUNS = st.builds(
    _Run,
    partition=st.integers(0, _PARTITIONS),  # the last one does not exist
    producer=st.sampled_from([None, 1, 2]),
    epoch=st.integers(0, 1),
    sequence=st.integers(0, 5),
    size=st.integers(1, 2),
)
_FILES = st.lists(st.lists(_RUNS, min_size=1, max_size=4), min_size=1, max_size=6)
_ROWS = {
    "partitions": "partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,"
    " leader_epoch, max_timestamp, live_bytes, dirty_bytes, dirty_since_ms, ingestion_extents",
    "leader_epochs": "partition, leader_epoch, start_offset",
    "extents": "partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,"
    " max_timestamp_so_far, position, length, offset_shift, leader_epoch, committed_ms",
    "producers": "partition, producer_id, producer_epoch, batches, updated_ms",
    "sequence_gaps": "partition, producer_id, producer_epoch, first_sequence, last_sequence, found_ms",
}
_numbers = count()


def _build(scene: Scene, topic: Topic, files: list[list[_Run]], failed: set[int]) -> list[FileCommit]:
    commits = []
    for runs in files:
        sections: dict[PartitionId, list[BatchRun]] = {}
        for run in runs:
            sections.setdefault(PartitionId(topic.topic_id, run.partition), []).append(run.build())
        producers = frozenset((producer, epoch) for producer in failed for epoch in range(2))
        commits.append(replace(scene.file(sections), failed_producers=producers))
    return commits


def _rows(catalog_url: str, topic: Topic) -> dict[str, Counter[tuple[object, ...]]]:
    with psycopg.connect(connection_string(catalog_url, DatabaseLimits())) as connection:
        return {
            table: Counter(
                connection.execute(
                    f"SELECT {columns} FROM {table} WHERE topic_id = %s",
                    [topic.topic_id],
                )
            )
            for table, columns in _ROWS.items()
        }


def _comparable(results: list[tuple[SectionResult, ...]], topic: Topic) -> list[list[SectionResult]]:
    """Return results as if they were those of `topic`, without the ids of files."""
    return [[replace(each, topic_id=topic.topic_id, extents=()) for each in file] for file in results]


@settings(suppress_health_check=list(HealthCheck))
@given(
    files=_FILES,
    sizes=st.lists(st.integers(1, 4), min_size=6, max_size=6),
    repeated=st.lists(st.integers(0, 5), max_size=4),
    failed=st.sets(st.integers(1, 2)),
    known=st.booleans(),
    is_recovering=st.booleans(),
)
def test_groups_leave_the_results_and_rows_of_commits_one_by_one(
    scene: Scene,
    catalog_url: str,
    files: list[list[_Run]],
    sizes: list[int],
    repeated: list[int],
    failed: set[int],
    known: bool,
    is_recovering: bool,
) -> None:
    """Topics that differ in nothing else get the same files. Some groups repeat files of earlier ones."""
    commits, number = scene.catalog.commits, next(_numbers)
    alone, together = (scene.topic(f"{kind}-{number}", _PARTITIONS) for kind in ("alone", "together"))
    scene.catalog.incarnations.backlog = RecoveryBacklog(unsettled_sessions=int(is_recovering))
    if known:  # these producers may begin with any sequence number, unless they have failed
        for topic in (alone, together):
            scene.catalog.producers.accept_any_sequence(
                [(topic.topic_id, partition, id_) for partition in range(_PARTITIONS) for id_ in (1, 2)]
            )
    expected = [commits.commit(file) for file in _build(scene, alone, files, failed)]

    sent = _build(scene, together, files, failed)
    found: list[tuple[SectionResult, ...]] = []
    for size, again in zip(sizes, [*repeated, *[-1] * 6], strict=False):
        new = sent[len(found) : len(found) + size]
        earlier = sent[again : again + 1] if 0 <= again < len(found) else []
        results = commits.commit_together([*earlier, *new]) if earlier or new else []
        assert results[: len(earlier)] == found[again : again + len(earlier)]
        found += results[len(earlier) :]
    assert _comparable(found, alone) == _comparable(expected, alone)
    assert _rows(catalog_url, together) == _rows(catalog_url, alone)
    assert commits.commit_together(sent[::-1]) == found[::-1]
