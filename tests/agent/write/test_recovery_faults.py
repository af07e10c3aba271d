"""Recovery of an agent after the catalog began a new incarnation, against a real catalog."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
import pytest
from structlog.testing import capture_logs

from agent.runtime.metrics import AgentMetrics
from agent.runtime.work_pool import WorkPool
from agent.write import acknowledged_commits, loss_recovery
from agent.write.acknowledged_commits import AcknowledgedCommits
from agent.write.loss_recovery import LossRecovery
from catalog.errors import CatalogReplacedError
from catalog.lifecycle.incarnation import MAX_COMMIT_AGE_SECONDS
from catalog.model import PartitionId, RunResult, SectionResult
from core.clock import ManualClock
from core.errors import CorruptDataError, FatalError
from maintenance.readopt import read_lost_file, readopt_file
from object_store.errors import StoreUnavailableError
from object_store.local.store import LocalStore
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from agent.cluster.commits import CommittedSection
    from catalog.model import FileCommit, Topic
    from catalog.open import Catalog
    from core.ids import Ids
    from maintenance.readopt import LostFile
    from object_store.interface import ObjectStore

_TIMEOUT_SECONDS = 240
_SILENT_MS = 10_000


@dataclass
class _File:
    commit: FileCommit
    sections: Sequence[CommittedSection] = ()
    topics: Mapping[UUID, Topic] = field(default_factory=dict)


@dataclass
class _Agent:
    scene: Scene
    acknowledged: AcknowledgedCommits
    recovery: LossRecovery
    clock: ManualClock
    url: str

    def acknowledge(self, *, lost: bool = False) -> FileCommit:
        """Acknowledge a file of one batch, whose commit the catalog has, or has lost."""
        topic = self.scene.topic(f"t{len(self.acknowledged)}")
        file = self.scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
        results = self._duplicates(file) if lost else self.scene.catalog.commits.commit(file)
        self.acknowledged.committed(_File(file, topics={topic.topic_id: topic}), results)
        return file

    def _duplicates(self, file: FileCommit) -> tuple[SectionResult, ...]:
        """Return the results of a commit that appended nothing, because the log had all of it."""
        return tuple(
            SectionResult(
                topic_id=section.topic_id,
                partition=section.partition,
                log_start_offset=0,
                high_watermark=3,
                leader_epoch=0,
                runs=(RunResult(base_offset=0, duplicate=True),),
                committed_ms=self.clock.now_ms(),
            )
            for section in file.sections
        )

    def suspend(self, *, forgetting: Sequence[FileCommit]) -> None:
        """Stop the monotonic clock for two hours; the catalog forgets compacted files and their results."""
        self.clock._start_ms += 2 * 3_600_000
        with psycopg.connect(self.url, options="-c search_path=siltstone") as connection:
            for file in forgetting:
                for table in ("extents", "files"):
                    connection.execute(f"DELETE FROM {table} WHERE file_id = %s".encode(), [file.file_id])
        self.scene.catalog.expiry.expire_commit_results()

    def ends(self) -> list[int]:
        """Return the high watermarks of all topics."""
        topics = self.scene.catalog.topics
        ids = [PartitionId(topic.topic_id, 0) for topic in topics.list()]
        return [state.high_watermark for state in topics.states(ids)]

    def recover(self) -> None:
        """Begin an incarnation and recover in it."""
        incarnation = self.scene.catalog.incarnations.declare_restore("a test")
        asyncio.run(self.recovery.run(incarnation, [self.scene.session_id]))

    def unsettled(self) -> list[UUID]:
        return [each.session_id for each in self.scene.catalog.lost_commits.unsettled_sessions()]


@pytest.fixture
def clock() -> ManualClock:
    """Return the clock of the catalog and the agent."""
    return ManualClock()


@pytest.fixture
def agent(
    catalog: Catalog, catalog_url: str, clock: ManualClock, ids: Ids, tmp_path: Path
) -> Iterator[_Agent]:
    acknowledged = AcknowledgedCommits(clock)
    pool = WorkPool("catalog", threads=1, max_waiting=10)
    with closing(pool), closing(LocalStore(tmp_path, ids)) as store:
        recovery = LossRecovery(
            catalog,
            store,
            acknowledged,
            automatic=True,
            silent_ms=_SILENT_MS,
            pool=pool,
            metrics=AgentMetrics(),
        )
        yield _Agent(Scene.set_up(catalog, ids), acknowledged, recovery, clock, catalog_url)


def test_an_agent_that_was_idle_for_long_leaves_nothing_unsettled(agent: _Agent) -> None:
    """It remembers none of its commits, but the catalog knows a later heartbeat of its session."""
    agent.acknowledge()
    agent.clock.advance(2 * MAX_COMMIT_AGE_SECONDS)
    agent.scene.catalog.sessions.heartbeat(agent.scene.session_id)
    agent.clock.advance(60)
    agent.recover()
    assert agent.unsettled() == []


def test_a_commit_that_was_forgotten_after_the_last_known_heartbeat_may_be_lost(agent: _Agent) -> None:
    agent.acknowledge()
    agent.clock.advance(MAX_COMMIT_AGE_SECONDS + 60)
    agent.recover()
    assert agent.unsettled() == [agent.scene.session_id]


def test_a_heartbeat_of_a_clock_that_was_ahead_proves_nothing(agent: _Agent) -> None:
    agent.clock._start_ms += 3_600_000
    agent.scene.catalog.sessions.heartbeat(agent.scene.session_id)
    agent.clock._start_ms -= 3_600_000
    agent.acknowledge()
    agent.clock.advance(MAX_COMMIT_AGE_SECONDS + 60)
    agent.recover()
    assert agent.unsettled() == [agent.scene.session_id]


def test_forgotten_commits_are_known_if_the_oldest_remembered_one_is(
    agent: _Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss has no gaps, although later commits are lost."""
    monkeypatch.setattr(acknowledged_commits, "MAX_FILES", 2)
    for lost in (False, False, True):
        agent.acknowledge(lost=lost)
    agent.recover()
    lost_commits = agent.scene.catalog.lost_commits
    (found,) = lost_commits.list()
    assert found.outcome == "unreadable"
    assert agent.unsettled() == [agent.scene.session_id], "the object is kept"
    lost_commits.mark_unreadable(found.file_id, found.session_id, found.object_name, "", gives_up=True)
    assert lost_commits.settle([found.session_id], agent.scene.catalog.incarnations.current().epoch) == 1


@pytest.mark.parametrize(
    ("forgotten", "has_heartbeat", "is_unsettled"),
    [([0, 1], False, True), ([0], False, False), ([0, 1], True, False)],
    ids=["all forgotten", "a later commit is known", "a later heartbeat is known"],
)
def test_a_commit_that_was_forgotten_while_the_machine_was_suspended_is_not_lost(
    agent: _Agent, forgotten: list[int], *, has_heartbeat: bool, is_unsettled: bool
) -> None:
    """Nothing is committed again, and a topic that was deleted after the commit stays deleted."""
    files = [agent.acknowledge() for _ in range(2)]
    agent.suspend(forgetting=[files[index] for index in forgotten])
    if has_heartbeat:
        agent.scene.catalog.sessions.heartbeat(agent.scene.session_id)
    agent.scene.catalog.topics.delete("t0")
    agent.recover()
    assert list(agent.scene.catalog.lost_commits.list()) == []
    assert [topic.name for topic in agent.scene.catalog.topics.list()] == ["t1"]
    assert agent.unsettled() == ([agent.scene.session_id] if is_unsettled else [])


@pytest.mark.parametrize(("minutes", "is_compared"), [(54, True), (56, False)])
def test_lost_commits_are_found_if_the_clock_of_the_new_server_is_less_than_an_hour_ahead(
    agent: _Agent, minutes: int, *, is_compared: bool
) -> None:
    """Otherwise the new server may have deleted their results. Their objects are kept then."""
    file = agent.acknowledge(lost=True)
    agent.clock._start_ms += minutes * 60_000
    agent.recover()
    reported = [each.file_id for each in agent.scene.catalog.lost_commits.list()]
    assert reported == ([file.file_id] if is_compared else [])
    assert agent.unsettled() == [agent.scene.session_id]


def test_objects_of_commits_that_a_suspended_agent_cannot_compare_are_kept(agent: _Agent) -> None:
    """The last commit is too old for a comparison. It is lost, although the catalog knows the one before."""
    agent.acknowledge()
    agent.acknowledge(lost=True)
    agent.suspend(forgetting=[])
    agent.recover()
    assert list(agent.scene.catalog.lost_commits.list()) == []
    assert agent.unsettled() == [agent.scene.session_id]


def test_an_agent_asks_once_for_others_if_there_are_none(
    agent: _Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    unverified = agent.scene.catalog.lost_commits.unverified

    def count_call(silent_ms: int) -> int:
        calls.append(silent_ms)
        return unverified(silent_ms)

    monkeypatch.setattr(agent.scene.catalog.lost_commits, "unverified", count_call)
    agent.recover()
    assert calls == [_SILENT_MS]


def test_another_failover_during_the_recovery_repeats_all_of_it(
    agent: _Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next recovery compares the same commits again, because the report may be lost, too."""
    file = agent.acknowledge(lost=True)

    def fail(*_: object, **_options: object) -> None:
        raise CatalogReplacedError("the server changed")

    with monkeypatch.context() as patch:
        patch.setattr(loss_recovery, "readopt_file", fail)
        with pytest.raises(CatalogReplacedError):
            agent.recover()
    epoch = agent.scene.catalog.incarnations.current().epoch
    assert [each.file_id for each in agent.acknowledged.recent()] == [file.file_id]
    assert agent.unsettled() == [agent.scene.session_id]
    agent.recover()
    (lost,) = agent.scene.catalog.lost_commits.list()
    assert (lost.file_id, lost.outcome, lost.epoch) == (file.file_id, "unreadable", epoch)


def test_a_loss_is_counted_and_logged_once(agent: _Agent) -> None:
    """The agent remembers the commits after the recovery, also those that are still lost."""
    agent.acknowledge()
    with capture_logs() as logs:
        agent.recover()
        for _ in range(2):
            agent.acknowledge(lost=True)
            agent.recover()
        agent.recover()
    noted = [(each["event"], each.get("files")) for each in logs if each["event"].startswith("the catalog ")]
    lost = "the catalog lost commits that this agent had acknowledged"
    assert [each for each in noted if "history" not in each[0]] == [
        ("the catalog began a new epoch; it knows every commit of this agent", None),
        (lost, 1),
        (lost, 1),
        ("the catalog began a new epoch; it lacks no further commit of this agent", None),
    ]


@pytest.mark.parametrize("failures", [3, 1_000_000])
def test_an_object_that_cannot_be_read_does_not_hold_up_the_agent_for_ever(
    agent: _Agent, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The agent tries again, and then leaves the file to the operator."""
    first, second = (agent.acknowledge(lost=True) for _ in range(2))
    attempts = 0

    def fail_for_first(*arguments: object, **options: object) -> object:
        nonlocal attempts
        if arguments[2].file_id == first.file_id:  # type: ignore[attr-defined]  # a LostFile
            attempts += 1
            if attempts <= failures:
                raise StoreUnavailableError("an input/output error")
        return readopt_file(*arguments, **options)  # type: ignore[arg-type]  # the same ones

    monkeypatch.setattr(loss_recovery, "readopt_file", fail_for_first)
    monkeypatch.setattr(loss_recovery, "_POLL_SECONDS", 0.001)
    if failures > 3:
        monkeypatch.setattr(loss_recovery, "MAX_FILE_SECONDS", 0.01)
    agent.recover()
    outcomes = {each.file_id: each.outcome for each in agent.scene.catalog.lost_commits.list()}
    is_left = failures > 3
    assert outcomes == {first.file_id: None if is_left else "unreadable", second.file_id: "unreadable"}
    assert agent.unsettled() == [agent.scene.session_id]


def test_an_outage_during_reads_before_their_turn_delays_no_file(
    agent: _Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is read again at its turn, so the order stays."""
    files = [agent.acknowledge(lost=True) for _ in range(3)]
    reads: list[LostFile] = []
    done: list[UUID] = []
    away = threading.Barrier(len(files))

    def fail_at_first(store: ObjectStore, lost: LostFile) -> FileCommit:
        reads.append(lost)
        if threading.current_thread().name.startswith("siltstone-lost-file"):
            away.wait(_TIMEOUT_SECONDS)
            raise StoreUnavailableError("no route to host")
        return read_lost_file(store, lost)

    def note(*arguments: object, **options: object) -> object:
        done.append(arguments[2].file_id)  # type: ignore[attr-defined]  # a LostFile
        return readopt_file(*arguments, **options)  # type: ignore[arg-type]  # the same ones

    monkeypatch.setattr(loss_recovery, "read_lost_file", fail_at_first)
    monkeypatch.setattr(loss_recovery, "readopt_file", note)
    agent.recover()
    assert done == [file.file_id for file in files]
    assert len(reads) == 2 * len(files)
    assert {each.outcome for each in agent.scene.catalog.lost_commits.list()} == {"unreadable"}


def test_a_store_that_is_away_holds_up_the_recovery(agent: _Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recovery is repeated. The agent tries no further file, and leaves none to the operator."""
    for _ in range(2):
        agent.acknowledge(lost=True)
    attempts: list[object] = []

    def fail(*arguments: object, **_options: object) -> None:
        attempts.append(arguments)
        raise StoreUnavailableError("no route to host")

    monkeypatch.setattr(loss_recovery, "readopt_file", fail)
    monkeypatch.setattr(loss_recovery, "require_bound", fail)
    with pytest.raises(StoreUnavailableError):
        agent.recover()
    assert len(attempts) == 2, "one file, and the store's marker"


@pytest.mark.parametrize("error", [FatalError, CorruptDataError])
def test_a_file_that_can_never_be_committed_does_not_hold_up_the_agent(
    agent: _Agent, monkeypatch: pytest.MonkeyPatch, error: type[FatalError]
) -> None:
    """It waits for the operator, its object is kept, and the files after it are committed again."""
    first, second = (agent.acknowledge(lost=True) for _ in range(2))

    def fail_for_first(*arguments: object, **options: object) -> object:
        if arguments[2].file_id == first.file_id:  # type: ignore[attr-defined]  # a LostFile
            raise error("a defect")
        return readopt_file(*arguments, **options)  # type: ignore[arg-type]  # the same ones

    monkeypatch.setattr(loss_recovery, "readopt_file", fail_for_first)
    agent.recover()
    outcomes = {each.file_id: each.outcome for each in agent.scene.catalog.lost_commits.list()}
    assert outcomes == {first.file_id: None, second.file_id: "unreadable"}
    assert agent.unsettled() == [agent.scene.session_id]
