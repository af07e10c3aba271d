"""A log whose end was lost and readopted equals one that lost nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from catalog.commit.results import refused_runs
from catalog.errors import CatalogReplacedError, CommitResultExpiredError, SessionFencedError
from catalog.lifecycle.expiry import InactiveOwner, OwnerKind
from catalog.lifecycle.lost_commits import AcknowledgedCommit
from catalog.model import OffsetRange, PartitionId, RefusedRun, RunRefusal
from catalog.open import open_catalog
from core.clock import ManualClock
from core.ids import SeededIds
from maintenance.readopt import (
    LostFile,
    in_commit_order,
    read_lost_file,
    readopt_file,
    reported_files,
    wait_for_agents,
)
from object_format.segment_file import UnsupportedFormatError
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from object_store.names import ingestion_name
from tests.catalog.scene import Scene, run_of
from tests.fixtures.postgres import PATIENT
from tests.object_format.segment_file.samples import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from random import Random

    from catalog.model import FileCommit, SectionResult, Topic
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids

_PARTITIONS = 2


class Batch(NamedTuple):
    """A batch of a commit: partition, records, and the producer (None: not idempotent).

    A retry repeats the producer's last batch. The batch before an early one is missing, so it is refused.
    """

    partition: int
    records: int
    producer: int | None
    is_retry: bool
    is_early: bool


_COMMITS = st.lists(
    st.lists(
        st.builds(
            Batch,
            st.integers(0, _PARTITIONS - 1),
            st.integers(1, 4),
            st.sampled_from([None, 5, 6]),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=8,
)


class Log:
    """Commits to one topic of one catalog, from the same batches in every log."""

    def __init__(self, catalog: Catalog, ids: Ids, number: int) -> None:
        self.scene = Scene.set_up(catalog, ids)
        self.topic: Topic = self.scene.topic(f"t{number}", partitions=_PARTITIONS)
        self._sequences: dict[tuple[int, int], tuple[int, int]] = {}

    def file(self, batches: list[Batch]) -> FileCommit:
        """Return a file with these batches."""
        sections: dict[PartitionId, list] = {}  # type: ignore[type-arg]  # of runs
        for partition, records, producer, is_retry, is_early in batches:
            stamp = None
            count = records
            if producer is not None:
                key = (partition, producer)
                first, length = self._sequences.get(key, (0, 0))
                if is_retry and length:
                    count = length
                elif is_early:
                    first += length + 1
                else:
                    first, length = first + length, records
                    self._sequences[key] = (first, records)
                stamp = (producer, 0, first)
            runs = sections.setdefault(PartitionId(self.topic.topic_id, partition), [])
            runs.append(run_of(count, producer=stamp))
        return self.scene.file(sections)

    def refused(self, file: FileCommit, results: Sequence[SectionResult]) -> list[RefusedRun]:
        """Return the runs that the commit of the same file to another log has refused."""
        runs = refused_runs(file, results)
        return [RefusedRun(str(self.topic.topic_id), partition, first) for _, partition, first in runs]

    def state(self) -> object:
        """Return what readers, producers and the planner see of the log, without ids and epochs."""
        extents = [
            [
                (each.base_offset, each.last_offset, each.record_count, each.max_timestamp, each.offset_shift)
                for each in self.scene.extents(self.topic, partition)
            ]
            for partition in range(_PARTITIONS)
        ]
        ids = [PartitionId(self.topic.topic_id, partition) for partition in range(_PARTITIONS)]
        producers = self.scene.catalog.producers.of_partitions(ids)
        known = [
            sorted((each.producer_id, each.producer_epoch, each.last_sequence) for each in producers[key])
            for key in ids
        ]
        return extents, known, [each.high_watermark for each in self.scene.catalog.topics.states(ids)]


@pytest.fixture
def scene(catalog: Catalog, ids: Ids) -> Scene:
    """Return an empty catalog with a session."""
    return Scene.set_up(catalog, ids)


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(10_000))


@pytest.fixture
def catalogs(new_catalog_url: Callable[..., str]) -> Iterator[tuple[Catalog, Catalog]]:
    """Return two empty catalogs for all examples; each example uses a new topic."""
    clock = ManualClock()
    with (
        open_catalog(new_catalog_url(), clock, SeededIds(1, clock), limits=PATIENT) as first,
        open_catalog(new_catalog_url(), clock, SeededIds(2, clock), limits=PATIENT) as second,
    ):
        yield first, second


def appended(results: tuple[SectionResult, ...]) -> list[int]:
    return [run.base_offset for result in results for run in result.runs]


def test_a_readopted_log_equals_one_that_lost_nothing(
    catalogs: tuple[Catalog, Catalog], numbers: Iterator[int]
) -> None:
    """Offsets, sequence numbers, duplicates and refusals are the same; repeated calls change nothing."""

    @given(_COMMITS, st.integers(0, 8), st.integers(0, 2), st.booleans())
    def check(commits: list[list[Batch]], kept: int, repeated: int, acknowledged: bool) -> None:
        number = next(numbers)
        ids = SeededIds(number + 10, ManualClock())
        whole, lossy = (Log(catalog, ids, number) for catalog in catalogs)
        known = [whole.file(batches) for batches in commits]
        results = [whole.scene.catalog.commits.commit(file) for file in known]
        files = [lossy.file(batches) for batches in commits]
        for file in files[:kept]:
            lossy.scene.catalog.commits.commit(file)
        lossy.scene.catalog.incarnations.declare_restore("a test")
        for at, file in enumerate(files[kept:], kept):
            for _ in range(1 + repeated):
                refused = lossy.refused(known[at], results[at])
                done = lossy.scene.catalog.commits.readopt(file, acknowledged=acknowledged, refused=refused)
                assert appended(done) == appended(results[at])
        assert lossy.state() == whole.state()
        lossy.scene.catalog.lost_commits.settle(
            [lossy.scene.session_id], lossy.scene.catalog.incarnations.current().epoch
        )
        recorded = {each.file_id for each in lossy.scene.catalog.lost_commits.list()}
        assert recorded >= {file.file_id for file in files[kept:]}

    check()


def test_only_files_of_closed_and_unsettled_sessions_are_readopted(scene: Scene) -> None:
    """The session could still commit the file, or garbage collection could delete it."""
    topic = scene.topic()
    file = scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
    with pytest.raises(SessionFencedError, match="active"):
        scene.catalog.commits.readopt(file)
    scene.catalog.sessions.end(scene.session_id)
    with pytest.raises(SessionFencedError, match="ended"):
        scene.catalog.commits.readopt(file)
    scene.session_id = scene.ids.new_uuid()  # of a lost registration
    file = scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
    assert appended(scene.catalog.commits.readopt(file)) == [0]
    with pytest.raises(SessionFencedError):
        scene.catalog.sessions.heartbeat(scene.session_id)
    (unsettled,) = scene.catalog.lost_commits.unsettled_sessions()
    assert not unsettled.is_reported, "any other object of the session may be acknowledged, too"


def as_acknowledged(file: FileCommit) -> AcknowledgedCommit:
    return AcknowledgedCommit(
        file_id=file.file_id,
        session_id=file.session_id,
        object_name=file.object_name,
        number=1,
        committed_ms=0,
        offsets=(),
    )


def test_a_file_that_was_readopted_and_forgotten_is_not_readopted_again(
    scene: Scene, catalog_url: str
) -> None:
    """The process that was about to readopt it was suspended until its result had expired."""
    topic = scene.topic()
    file = scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
    scene.catalog.incarnations.declare_restore("a test")
    scene.catalog.commits.readopt(file, acknowledged=True)
    with psycopg.connect(catalog_url) as connection:
        for table in ("extents", "files", "commit_results"):
            connection.execute(f"DELETE FROM siltstone.{table}".encode())
    assert scene.catalog.lost_commits.unknown([file.file_id]) == frozenset()
    with pytest.raises(CommitResultExpiredError):
        scene.catalog.commits.readopt(file, acknowledged=True)
    (state,) = scene.catalog.topics.states([PartitionId(topic.topic_id, 0)])
    assert state.high_watermark == 3


def test_a_gap_that_a_readoption_may_fill_is_retried(scene: Scene) -> None:
    """Producers wait until agents have reported their lost commits, and until these are in the log."""
    topic = scene.topic(partitions=2)
    key = PartitionId(topic.topic_id, 0)
    scene.commit(topic, run_of(10, producer=(5, 0, 0)))
    lost = scene.file({key: [run_of(10, producer=(5, 0, 10))]})
    older = Scene.set_up(scene.catalog, scene.ids)
    scene.catalog.incarnations.declare_restore("a test")
    after = Scene.set_up(scene.catalog, scene.ids)

    def send(sequence: int) -> RunRefusal | None:
        """Send two batches; only the first has a gap before it."""
        sections = {
            key: [run_of(10, producer=(5, 0, sequence))],
            PartitionId(topic.topic_id, 1): [run_of(1)],
        }
        first, second = scene.catalog.commits.commit(after.file(sections))
        assert second.runs[0].refusal is None
        return first.runs[0].refusal

    assert send(20) is RunRefusal.AWAITS_READOPTION, "nothing is reported"
    scene.catalog.lost_commits.report(
        [scene.session_id], [as_acknowledged(lost)], scene.catalog.incarnations.current().epoch
    )
    scene.catalog.lost_commits.report([older.session_id], [], scene.catalog.incarnations.current().epoch)
    assert send(20) is RunRefusal.AWAITS_READOPTION, "a lost commit waits"
    scene.catalog.commits.readopt(lost, acknowledged=True)
    assert send(30) is RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert send(20) is None


def test_a_gap_before_files_of_a_dead_agent_is_final_after_a_minute(scene: Scene, clock: ManualClock) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(10, producer=(5, 0, 0)))
    scene.catalog.incarnations.declare_restore("a test")
    after = Scene.set_up(scene.catalog, scene.ids)
    refusals = []
    for _ in range(2):
        refusals.append(after.commit(topic, run_of(1, producer=(5, 0, 20))).runs[0].refusal)
        clock.advance(60)
    assert refusals == [RunRefusal.AWAITS_READOPTION, RunRefusal.OUT_OF_ORDER_SEQUENCE]


def test_an_acknowledged_batch_is_readopted_although_one_before_it_is_missing(scene: Scene) -> None:
    """Its producer does not send it again; the next batch of the producer follows it."""
    topic = scene.topic()
    key = PartitionId(topic.topic_id, 0)
    scene.commit(topic, run_of(10, producer=(5, 0, 0)), run_of(1, producer=(6, 1, 0)))
    runs = [run_of(10, producer=(5, 0, 20)), run_of(2, producer=(6, 0, 7)), run_of(3, producer=(7, 0, 4))]
    lost, again = (scene.file({key: runs}) for _ in range(2))
    scene.catalog.incarnations.declare_restore("a test")
    (refused,) = scene.catalog.commits.readopt(scene.file({key: runs}))
    assert appended((refused,)) == [-1, -1, -1]
    assert appended(scene.catalog.commits.readopt(lost, acknowledged=True)) == [11, 21, 23]
    (repeated,) = scene.catalog.commits.readopt(again, acknowledged=True)
    assert [run.duplicate for run in repeated.runs] == [True, False, True]
    late = [run_of(5, producer=(5, 0, 3)), run_of(10, producer=(5, 0, 10)), run_of(1, producer=(5, 0, 25))]
    (behind,) = scene.catalog.commits.readopt(scene.file({key: late}), acknowledged=True)
    in_log = RunRefusal.OUT_OF_ORDER_SEQUENCE
    assert [run.refusal for run in behind.runs] == [in_log, None, in_log], "only the second was missing"
    after = Scene.set_up(scene.catalog, scene.ids)
    for stamp in ((5, 0, 30), (6, 1, 1), (7, 0, 7)):
        assert after.commit(topic, run_of(1, producer=stamp)).runs[0].refusal is None


def gaps_of(url: str) -> list[tuple[int, ...]]:
    """Return producer, epoch, first and last sequence number of each recorded gap."""
    query = (
        b"SELECT producer_id, producer_epoch, first_sequence, last_sequence FROM siltstone.sequence_gaps "
        b"ORDER BY producer_id, first_sequence"
    )
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def test_what_is_missing_before_an_acknowledged_batch_is_recorded_until_it_is_readopted(
    scene: Scene, catalog_url: str
) -> None:
    """Later batches do not hide it, and its own file may not be known to be acknowledged."""
    topic = scene.topic(partitions=2)
    keys = [PartitionId(topic.topic_id, each) for each in range(2)]
    scene.commit(topic, run_of(10, producer=(5, 0, 0)))
    ahead = scene.file(
        {
            keys[0]: [run_of(10, producer=(5, 0, 30)), run_of(1, producer=(6, 2, 4))],
            keys[1]: [run_of(10, producer=(5, 0, 7))],
        }
    )
    scene.catalog.incarnations.declare_restore("a test")
    for _ in range(2):
        scene.catalog.commits.readopt(ahead, acknowledged=True)
        assert gaps_of(catalog_url) == [(5, 0, 0, 6), (5, 0, 10, 29), (6, 2, 0, 3)]
    after = Scene.set_up(scene.catalog, scene.ids)
    for sequence in range(40, 46):
        assert after.commit(topic, run_of(1, producer=(5, 0, sequence))).runs[0].refusal is None
    late = [run_of(10, producer=(5, 0, 20)), run_of(10, producer=(5, 0, 0)), run_of(5, producer=(5, 0, 10))]
    for acknowledged, expected in ((False, [-1, 27, -1, 37]), (True, [-1, -1, -1, -1])):
        file = scene.file({keys[0]: [run_of(11, producer=(5, 0, 20)), *late]})
        (result,) = scene.catalog.commits.readopt(file, acknowledged=acknowledged)
        assert appended((result,)) == expected
        assert gaps_of(catalog_url) == [(5, 0, 0, 6), (5, 0, 15, 19), (6, 2, 0, 3)]


def test_batches_behind_the_end_of_an_epoch_are_readopted_after_their_producer_began_another(
    scene: Scene, catalog_url: str
) -> None:
    """An agent died with them, so nothing says that its producer has their acknowledgement."""
    topic = scene.topic()
    key = PartitionId(topic.topic_id, 0)
    scene.commit(topic, run_of(5, producer=(5, 0, 0)))
    lost, again = (scene.file({key: [run_of(5, producer=(5, 0, 5))]}) for _ in range(2))
    first = scene.file({key: [run_of(5, producer=(5, 0, 0))]})
    scene.catalog.incarnations.declare_restore("a test")
    after = Scene.set_up(scene.catalog, scene.ids)
    after.commit(topic, run_of(1, producer=(5, 1, 0)), run_of(1, producer=(6, 0, 0)))
    assert [gap[:3] for gap in gaps_of(catalog_url)] == [(5, 0, 5)]
    assert appended(scene.catalog.commits.readopt(lost)) == [7]
    assert appended(scene.catalog.commits.readopt(again, acknowledged=True)) == [-1]
    assert appended(scene.catalog.commits.readopt(first, acknowledged=True)) == [-1]
    assert after.commit(topic, run_of(1, producer=(5, 1, 1))).runs[0].refusal is None
    epoch = scene.catalog.incarnations.current().epoch
    scene.catalog.lost_commits.settle([scene.session_id], epoch)
    scene.catalog.incarnations.ensure()
    after.commit(topic, run_of(1, producer=(6, 1, 0)))
    assert {gap[0] for gap in gaps_of(catalog_url)} == {5}, "nothing may be readopted any more"


def let_states_expire(url: str) -> None:
    """Let all producers be older than the states that the partitions have kept."""
    with psycopg.connect(url) as connection:
        connection.execute(b"UPDATE siltstone.partitions SET first_new_producer_id = 1000")


def test_a_producer_whose_state_may_have_expired_waits_for_its_lost_batches(
    scene: Scene, clock: ManualClock, catalog_url: str
) -> None:
    """After a minute it waits no longer, and its lost batches are appended behind."""
    topic = scene.topic()
    key = PartitionId(topic.topic_id, 0)
    let_states_expire(catalog_url)
    lost = scene.file({key: [run_of(2, producer=(5, 0, 40))]})
    scene.catalog.incarnations.declare_restore("a test")
    after = Scene.set_up(scene.catalog, scene.ids)
    refusals = []
    for _ in range(2):
        refusals.append(after.commit(topic, run_of(1, producer=(5, 0, 42))).runs[0].refusal)
        clock.advance(60)
    assert refusals == [RunRefusal.AWAITS_READOPTION, None]
    assert appended(scene.catalog.commits.readopt(lost, acknowledged=True)) == [1]
    assert after.commit(topic, run_of(1, producer=(5, 0, 43))).runs[0].refusal is None


def test_a_producer_whose_state_may_have_expired_waits_only_if_batches_may_be_lost(
    scene: Scene, catalog_url: str
) -> None:
    topic = scene.topic()
    let_states_expire(catalog_url)
    scene.catalog.incarnations.declare_restore("a test")
    after = Scene.set_up(scene.catalog, scene.ids)
    epoch = scene.catalog.incarnations.current().epoch
    scene.catalog.lost_commits.report([scene.session_id], [], epoch)
    assert after.commit(topic, run_of(1, producer=(5, 0, 42))).runs[0].refusal is None


def test_a_refused_run_without_a_producer_is_not_readopted(scene: Scene) -> None:
    """Its topic was deleted, and the deletion is lost, too."""
    topic = scene.topic(partitions=2)
    keys = [PartitionId(topic.topic_id, each) for each in range(2)]
    lost = scene.file({key: [run_of(3)] for key in keys})
    scene.catalog.incarnations.declare_restore("a test")
    refused = [RefusedRun(str(topic.topic_id), 1, 0)]
    done = scene.catalog.commits.readopt(lost, acknowledged=True, refused=refused)
    assert appended(done) == [0, -1]


def test_nothing_is_readopted_or_settled_for_an_epoch_that_has_ended(scene: Scene) -> None:
    """The new history may lack what was readopted, and what was judged in the one before."""
    catalog, topic = scene.catalog, scene.topic()
    file = scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
    epoch = catalog.incarnations.declare_restore("a test").epoch
    catalog.incarnations.declare_restore("another one")
    for call in (
        lambda: catalog.commits.readopt(file, epoch=epoch),
        lambda: catalog.lost_commits.report([scene.session_id], [], epoch),
        lambda: catalog.lost_commits.settle([scene.session_id], epoch),
    ):
        with pytest.raises(CatalogReplacedError, match=f"has begun since epoch {epoch}.*begin the operation"):
            call()
    assert catalog.lost_commits.is_any_unsettled()


def test_gaps_are_removed_with_their_topic_and_expire(
    scene: Scene, clock: ManualClock, catalog_url: str
) -> None:
    topics = [scene.topic(name) for name in "tu"]
    keys = [PartitionId(topic.topic_id, 0) for topic in topics]
    file = scene.file({key: [run_of(1, producer=(5, 0, 3))] for key in keys})
    epoch = scene.catalog.incarnations.declare_restore("a test").epoch
    scene.catalog.commits.readopt(file, acknowledged=True)
    scene.catalog.lost_commits.settle([scene.session_id], epoch)
    assert len(gaps_of(catalog_url)) == 2
    scene.catalog.topics.delete("t")
    clock.advance(89 * 86_400)
    while scene.catalog.garbage.remove_deleted(1):
        pass
    assert len(gaps_of(catalog_url)) == 1
    for days, expired in ((0, 0), (2, 1)):
        clock.advance(days * 86_400)
        assert scene.catalog.lost_commits.expire_gaps() == expired
        assert len(gaps_of(catalog_url)) == 1 - expired


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_lost_batch_of_a_transaction_is_never_readopted(scene: Scene, *, acknowledged: bool) -> None:
    """The end of its transaction is lost, too: it came later."""
    topic = scene.topic()
    producer = scene.catalog.transactions.initialize("t", 60_000).producer
    scene.catalog.transactions.add_partitions("t", producer, [PartitionId(topic.topic_id, 0)])
    runs = [run_of(1, producer=(*producer, 0), in_transaction=True), run_of(1, producer=(5, 0, 0))]
    lost = scene.file({PartitionId(topic.topic_id, 0): runs})
    scene.catalog.incarnations.declare_restore("a test")
    (result,) = scene.catalog.commits.readopt(lost, acknowledged=acknowledged)
    assert [run.refusal for run in result.runs] == [RunRefusal.INVALID_PRODUCER_EPOCH, None]


_HISTORIES = st.lists(
    st.tuples(st.integers(0, 2), st.sets(st.integers(0, 3), max_size=3), st.integers(0, 2**48 - 1)),
    max_size=12,
)


@given(_HISTORIES, st.randoms(use_true_random=False))
def test_files_are_ordered_by_offsets_and_numbers_whatever_the_clocks_say(
    history: list[tuple[int, set[int], int]], chance: Random
) -> None:
    """Three agents commit to four partitions; the ids of their files begin with the time."""
    topic, ends = str(UUID(int=9)), [0] * 4
    files = []
    for number, (agent, partitions, time) in enumerate(history, 1):
        offsets = [OffsetRange(topic, each, ends[each], ends[each] + 1) for each in sorted(partitions)]
        for each in partitions:
            ends[each] += 1
        files.append(
            LostFile(
                file_id=UUID(int=time << 80 | number),
                session_id=UUID(int=agent),
                object_name=f"object {number}",
                acknowledged=True,
                old_offsets=offsets,
                number=number,
                committed_epoch=1,
                found_epoch=3,
            )
        )
    shuffled = [
        *files,
        *(replace(file, file_id=UUID(int=file.file_id.int ^ 1 << 79), committed_epoch=2) for file in files),
    ]
    chance.shuffle(shuffled)
    ordered = in_commit_order(shuffled)
    assert sorted(ordered, key=id) == sorted(shuffled, key=id)
    assert [file.committed_epoch for file in ordered] == [1] * len(files) + [2] * len(files)
    for lost_together in (ordered[: len(files)], ordered[len(files) :]):
        for agent in range(3):
            numbers = [file.number for file in lost_together if file.session_id.int == agent]
            assert numbers == sorted(numbers)
        for partition in range(4):
            bases = [each[2] for file in lost_together for each in file.old_offsets if each[1] == partition]
            assert bases == sorted(bases)


def lost_file(number: int, *, agent: int, topic: int, base: int) -> LostFile:
    """Return a file with one record of a topic, as its agent reported it in epoch 3."""
    return LostFile(
        file_id=UUID(int=number),
        session_id=UUID(int=agent),
        object_name=f"object {number}",
        acknowledged=True,
        old_offsets=[OffsetRange(str(UUID(int=topic)), 0, base, base + 1)],
        number=number,
        found_epoch=3,
    )


def test_files_of_unknown_epochs_are_ordered_with_those_before_their_report() -> None:
    """Agents of the previous release report no epoch; files that are found by their objects have none."""
    files = [lost_file(number, agent=number, topic=1, base=20 - number) for number in range(6)]
    files[0] = replace(files[0], committed_epoch=1)
    files[1] = replace(files[1], committed_epoch=2)
    files[3] = replace(files[3], found_epoch=2)
    files[4] = replace(files[4], found_epoch=1, old_offsets=())
    files[5] = replace(files[5], old_offsets=())
    assert [file.file_id.int for file in in_commit_order(files)] == [3, 0, 4, 2, 1, 5]
    reported = [replace(file, committed_epoch=None) for file in files]
    assert [file.file_id.int for file in in_commit_order(reported)] == [4, 3, 2, 1, 0, 5]


def test_files_whose_offsets_contradict_each_other_stop_no_agent() -> None:
    """They are of two histories, and agents of the previous release do not report which."""
    histories = [
        lost_file(1, agent=1, topic=1, base=100),
        lost_file(2, agent=1, topic=2, base=50),
        lost_file(3, agent=2, topic=2, base=60),
        lost_file(4, agent=2, topic=1, base=90),
    ]
    others = [lost_file(5, agent=3, topic=3, base=0), lost_file(6, agent=1, topic=3, base=1)]
    with capture_logs() as logs:
        ordered = in_commit_order([*histories, *others])
    assert [file.file_id.int for file in ordered] == [5, 1, 2, 3, 4, 6]
    (error,) = logs
    assert (error["log_level"], error["files"], error["first_object"]) == ("error", 1, "object 1")
    earlier = [replace(file, committed_epoch=1) for file in histories[2:]]
    with capture_logs() as logs:
        ordered = in_commit_order([*(replace(file, committed_epoch=2) for file in histories[:2]), *earlier])
    assert [file.file_id.int for file in ordered] == [3, 4, 1, 2]
    assert not logs


@pytest.mark.parametrize("reports", [True, False])
def test_the_operator_waits_for_agents_that_live(scene: Scene, clock: Clock, *, reports: bool) -> None:
    """An agent that has not reported for half a minute does not live any more."""
    assert isinstance(clock, ManualClock)
    waiting: list[int] = []
    begun_ms = clock.now_ms()

    def note(agents: int) -> None:
        waiting.append(agents)
        if reports and len(waiting) == 3:
            scene.catalog.lost_commits.report(
                [scene.session_id], [], scene.catalog.incarnations.current().epoch
            )

    scene.catalog.incarnations.declare_restore("a test")
    wait_for_agents(scene.catalog, clock, 10_000, note)
    assert waiting == [1] * (3 if reports else 30)
    assert clock.now_ms() - begun_ms == 1000 * len(waiting)


def test_the_operator_waits_for_agents_after_another_has_reported_a_lost_registration(
    scene: Scene, clock: Clock
) -> None:
    """The row that the report inserts is no heartbeat, so agents did not die during the outage."""
    assert isinstance(clock, ManualClock)
    waiting: list[int] = []
    clock.advance(20)  # the outage, which is longer than an agent may be silent
    epoch = scene.catalog.incarnations.declare_restore("a test").epoch
    scene.catalog.lost_commits.report([scene.ids.new_uuid()], [], epoch)

    def note(agents: int) -> None:
        waiting.append(agents)
        scene.catalog.lost_commits.report([scene.session_id], [], epoch)

    wait_for_agents(scene.catalog, clock, 10_000, note)
    assert waiting == [1]


def test_an_agent_counts_as_alive_although_the_clock_was_ahead_at_the_heartbeat_of_another(
    scene: Scene, clock: Clock
) -> None:
    """A heartbeat in the future does not tell how recent the others are."""
    assert isinstance(clock, ManualClock)
    clock._start_ms += 3_600_000
    scene.catalog.sessions.heartbeat(scene.session_id)
    clock._start_ms -= 3_600_000
    scene.catalog.sessions.register(scene.ids.new_uuid(), "another agent")
    epoch = scene.catalog.incarnations.declare_restore("a test").epoch
    assert scene.catalog.lost_commits.unverified(10_000) == 2
    scene.catalog.lost_commits.report([scene.session_id], [], epoch)
    assert scene.catalog.lost_commits.unverified(10_000) == 1


def test_the_operator_waits_for_half_a_minute_although_the_clock_was_ahead_at_the_failover(
    scene: Scene, clock: Clock
) -> None:
    """By the clock of the catalog, the epoch begins in an hour only."""
    assert isinstance(clock, ManualClock)
    clock._start_ms += 3_600_000
    scene.catalog.incarnations.declare_restore("a test")
    clock._start_ms -= 3_600_000
    waiting: list[int] = []

    def note(agents: int) -> None:
        waiting.append(agents)
        assert len(waiting) <= 30

    wait_for_agents(scene.catalog, clock, 10_000, note)
    assert waiting == [1] * 30


def test_a_session_with_waiting_files_is_not_settled(scene: Scene) -> None:
    topic = scene.topic()
    file = scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
    scene.catalog.incarnations.declare_restore("a test")
    for _ in range(2):
        scene.catalog.lost_commits.report(
            [scene.session_id], [as_acknowledged(file)], scene.catalog.incarnations.current().epoch
        )
        scene.catalog.lost_commits.settle([scene.session_id], scene.catalog.incarnations.current().epoch)
    assert scene.catalog.lost_commits.is_any_unsettled()
    assert [each.is_reported for each in scene.catalog.lost_commits.unsettled_sessions()] == [True]
    scene.catalog.incarnations.ensure()
    assert scene.catalog.incarnations.backlog == (1, 1)
    scene.catalog.commits.readopt(file)
    scene.catalog.lost_commits.settle([scene.session_id], scene.catalog.incarnations.current().epoch)
    assert not scene.catalog.lost_commits.is_any_unsettled()
    scene.catalog.incarnations.ensure()
    assert scene.catalog.incarnations.backlog == (0, 0)
    (kept,) = scene.catalog.lost_commits.list()
    assert (kept.acknowledged, kept.outcome, [each[2:] for each in kept.new_offsets]) == (
        True,
        "readopted",
        [(0, 3)],
    )


def test_a_file_of_a_newer_format_waits_for_an_agent_that_can_read_it(scene: Scene, tmp_path: Path) -> None:
    """In a rolling upgrade, agents of the older release recover the commits of newer ones, too."""
    catalog = scene.catalog
    file = scene.file({PartitionId(scene.topic().topic_id, 0): [run_of(3)]})
    file = replace(file, object_name=ingestion_name(file.session_id, file.file_id))
    catalog.incarnations.declare_restore("a test")
    catalog.lost_commits.report(
        [scene.session_id], [as_acknowledged(file)], catalog.incarnations.current().epoch
    )
    newer = bytearray(write_file([]).data)
    newer[20:22] = b"\x00\x02"
    store = LocalStore(tmp_path, scene.ids)
    store.put(file.object_name, [newer], purpose=Purpose.INGEST)
    (lost,) = reported_files(catalog)
    with pytest.raises(UnsupportedFormatError, match="format version 2"):
        readopt_file(
            catalog, partial(read_lost_file, store), lost, epoch=catalog.incarnations.current().epoch
        )
    assert [each.file_id for each in catalog.lost_commits.list(waiting=True)] == [file.file_id]


def test_lost_commits_are_listed_page_by_page_and_kept_for_90_days(
    scene: Scene, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = scene.topic()
    files = [scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]}) for _ in range(5)]
    scene.catalog.incarnations.declare_restore("a test")
    reported = [replace(as_acknowledged(file), number=number) for number, file in enumerate(files)]
    lost_commits = scene.catalog.lost_commits
    lost_commits.report([scene.session_id], reported, scene.catalog.incarnations.current().epoch)
    monkeypatch.setattr("catalog.lifecycle.lost_commits._PAGE", 2)
    assert [each.file_id for each in lost_commits.list()] == [file.file_id for file in files]
    for file in files[:3]:
        scene.catalog.commits.readopt(file)
    for days, left in ((89, 5), (2, 2)):
        clock.advance(days * 86_400)
        assert lost_commits.expire() == 5 - left
        assert len(list(lost_commits.list())) == left


def test_unsettled_sessions_are_listed_page_by_page(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the order of their ids."""
    sessions = [scene.session_id, *(scene.ids.new_uuid() for _ in range(4))]
    for session_id in sessions[1:]:
        scene.catalog.sessions.register(session_id, "another")
    scene.catalog.incarnations.declare_restore("a test")
    monkeypatch.setattr("catalog.lifecycle.lost_commits._PAGE", 2)
    found = islice(scene.catalog.lost_commits.unsettled_sessions(), 6)
    assert [each.session_id for each in found] == sorted(sessions)


def test_a_report_after_the_session_was_settled_still_keeps_the_object(scene: Scene) -> None:
    """An operator may settle all sessions while an agent, which was away, has not compared its commits."""
    catalog = scene.catalog
    topic = scene.topic()
    file = scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
    catalog.incarnations.declare_restore("a test")
    catalog.lost_commits.settle([scene.session_id], catalog.incarnations.current().epoch)
    assert not list(catalog.lost_commits.unsettled_sessions())

    def confirmed() -> frozenset[str]:
        later_ms = catalog.clock.now_ms() + 1
        return catalog.deletions.confirm_orphans(
            OwnerKind.SESSION, scene.session_id, later_ms, [file.object_name]
        )

    assert confirmed() == {file.object_name}
    lost = AcknowledgedCommit(
        file_id=file.file_id,
        session_id=scene.session_id,
        object_name=file.object_name,
        number=1,
        committed_ms=0,
        offsets=(),
    )
    catalog.lost_commits.report([], [lost], catalog.incarnations.current().epoch)
    assert confirmed() == frozenset()
    owner = InactiveOwner(kind=OwnerKind.SESSION, owner_id=scene.session_id, closed_ms=0)
    assert catalog.expiry.delete_owners([owner]) == 0
    assert appended(catalog.commits.readopt(file)) == [0]
