"""Recovery of agents after a loss: all reported files are in the log before an agent writes again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import UUID

import psycopg
import pytest
from structlog.testing import capture_logs

from agent.runtime.metrics import AgentMetrics
from agent.runtime.work_pool import WorkPool
from agent.write import acknowledged_commits, loss_recovery
from agent.write.acknowledged_commits import AcknowledgedCommits
from agent.write.ingestion_buffer import IngestionBuffer
from agent.write.ingestion_file import seal
from agent.write.loss_recovery import LossRecovery
from agent.write.pending_append import PendingAppend
from agent.write.validation import validate
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId, RunResult, SectionResult
from catalog.topics import lost
from maintenance.readopt import read_file_commit, readopt
from object_format.record_batch.records import encode_batch
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agent.write.ingestion_file import SealedFile
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids

_RECORDS = 3


class Agent:
    """The parts of an agent that take part in a recovery; its clock runs `late_ms` late."""

    def __init__(self, catalog: Catalog, store: LocalStore, clock: Clock, ids: Ids, late_ms: int) -> None:
        self._catalog, self._store, self._clock, self._ids = catalog, store, clock, ids
        self._late_ms = late_ms
        self._unrecovered: list[UUID] = []
        self.session_id = ids.new_uuid()
        self.incarnation = catalog.sessions.register(self.session_id, "a test")
        self.acknowledged = AcknowledgedCommits(clock)
        self.metrics = AgentMetrics()

    def upload(self, topic: Topic, sequence: int, partition: int = 0) -> SealedFile:
        """Upload a file with one batch of the only producer."""
        now_ms = self._clock.now_ms()
        values = [str(sequence + each).encode() for each in range(_RECORDS)]
        data = encode_batch([now_ms] * _RECORDS, values, values, producer=(5, 0, sequence))
        buffer = IngestionBuffer(1 << 20)
        buffer.add(validate(topic, partition, bytearray(data), now_ms=now_ms), PendingAppend(1), 0)
        late_id = self._ids.new_uuid().int - (self._late_ms << 80)
        sealed = seal(buffer.take(), file_id=UUID(int=late_id), session_id=self.session_id, created_ms=now_ms)
        self._store.put(sealed.object_name, sealed.body, purpose=Purpose.INGEST)
        return sealed

    def write(self, topic: Topic, sequence: int, partition: int = 0) -> None:
        """Write a file and acknowledge it."""
        sealed = self.upload(topic, sequence, partition)
        self.acknowledged.committed(sealed, self._catalog.commits.commit(sealed.commit))

    async def recover(self, pool: WorkPool, *, is_interrupted: bool = False) -> None:
        """Do what the agent does before its next session writes; the next failover may interrupt it."""
        recovery = LossRecovery(
            self._catalog,
            self._store,
            self.acknowledged,
            automatic=True,
            silent_ms=10_000,
            pool=pool,
            metrics=self.metrics,
        )
        sessions = [*self._unrecovered, self.session_id]
        self.session_id = self._ids.new_uuid()
        incarnation = self._catalog.sessions.register(self.session_id, "again")
        if is_interrupted:
            self._unrecovered = sessions
            await recovery._compare(incarnation, sessions)  # and no file is committed again
        else:
            self._unrecovered = sessions
            await recovery.run(incarnation, sessions)
            self._unrecovered = []

    def readopted(self) -> list[float | None]:
        """Return the counters of files and records that were committed again."""
        values = self.metrics.registry.get_sample_value
        return [values(f"siltstone_readopted_{unit}_total") for unit in ("files", "records")]


def recover_all(agents: Iterable[Agent], *, is_interrupted: bool = False) -> None:
    """Let agents recover at once; the next failover may interrupt them once they have reported."""

    async def recover() -> None:
        pool = WorkPool("catalog", threads=4, max_waiting=100)
        try:
            async with asyncio.TaskGroup() as tasks:
                for agent in agents:
                    tasks.create_task(agent.recover(pool, is_interrupted=is_interrupted))
        finally:
            pool.close()

    asyncio.run(recover())


@pytest.fixture(autouse=True)
def agents_wait_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let agents that are away hold up the others for a second only."""
    monkeypatch.setattr(loss_recovery, "MAX_WAIT_SECONDS", 1.0)


@dataclass
class World:
    """A catalog and an object store, whose commits and topics may get lost."""

    catalog: Catalog
    store: LocalStore
    clock: Clock
    ids: Ids
    url: str

    def agent(self, late_ms: int = 0) -> Agent:
        return Agent(self.catalog, self.store, self.clock, self.ids, late_ms)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.url, autocommit=True, options="-c search_path=siltstone") as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def lose_commits(self) -> None:
        """Remove every trace of the commits, as a failover does."""
        tables = ("extents", "files", "commit_results", "producers", "lost_commits", "sequence_gaps")
        self.execute(
            *(f"DELETE FROM {table}" for table in tables),
            "UPDATE partitions SET log_end_offset = 0, high_watermark = 0, last_stable_offset = 0",
        )

    def lose_commits_and_topics(self) -> None:
        """Remove the topics, too, as if they had not been created yet."""
        self.lose_commits()
        tables = ("partitions", "deleted_partitions", "deleted_topics", "topics")
        self.execute(*(f"DELETE FROM {table}" for table in tables))

    def tick(self) -> None:
        """Let the next topic, or the next file, be newer than the last one."""
        self.clock.sleep(0.003)

    def names(self) -> dict[str, UUID]:
        return {topic.name: topic.topic_id for topic in self.catalog.topics.list()}

    def end(self, topic: Topic) -> int:
        (state,) = self.catalog.topics.states([PartitionId(topic.topic_id, 0)])
        return state.high_watermark

    def begin_epoch(self) -> None:
        self.catalog.incarnations.declare_restore("a test")

    def log(self, topic: Topic) -> list[int]:
        """Return the sequence numbers of the first records of the files in the log."""
        query = """
            SELECT object_name FROM extents JOIN files USING (file_id)
            WHERE topic_id = %s ORDER BY base_offset
        """
        with psycopg.connect(self.url, options="-c search_path=siltstone") as connection:
            names = [name for (name,) in connection.execute(query, [topic.topic_id])]
        files = [read_file_commit(self.store, name) for name in names]
        stamps = [run.producer for file in files for section in file.sections for run in section.runs]
        return [stamp.base_sequence for stamp in stamps if stamp is not None]


@pytest.fixture
def world(catalog: Catalog, catalog_url: str, clock: Clock, ids: Ids, tmp_path: Path) -> World:
    return World(catalog, LocalStore(tmp_path, ids), clock, ids, catalog_url)


def test_files_of_a_producer_that_moved_between_agents_are_readopted_in_order(world: World) -> None:
    """The clock of the second agent is an hour late. No agent writes before all files are in the log."""
    topic = world.catalog.topics.create("t", 1, {})
    first, second = (world.agent(late_ms) for late_ms in (0, 3_600_000))
    for number, agent in enumerate((first, second, second, first, second)):
        agent.write(topic, number * _RECORDS)
    world.lose_commits()
    world.begin_epoch()
    recover_all([second, first])
    (state,) = world.catalog.topics.states([PartitionId(topic.topic_id, 0)])
    assert state.high_watermark == 5 * _RECORDS
    assert {each.outcome for each in world.catalog.lost_commits.list()} == {"readopted"}
    for agent, sequence in ((second, 5), (first, 6)):
        sealed = agent.upload(topic, sequence * _RECORDS)
        (result,) = world.catalog.commits.commit(sealed.commit)
        assert result.runs[0].base_offset == sequence * _RECORDS


def test_a_batch_that_the_lost_commit_refused_is_not_readopted_before_those_that_it_lacked(
    world: World,
) -> None:
    """Its producer sent it again, behind them: one order is acknowledged."""
    topic = world.catalog.topics.create("t", 1, {})
    agent = world.agent()
    for number in (0, 2, 1, 2):  # the first 2 has a gap before it
        agent.write(topic, number * _RECORDS)
    expected = [0, _RECORDS, 2 * _RECORDS]
    assert world.log(topic) == expected
    for _ in range(2):
        world.lose_commits()
        world.begin_epoch()
        recover_all([agent])
        assert world.log(topic) == expected
    assert agent.readopted() == [8, 2 * len(expected) * _RECORDS]
    rejected = agent.metrics.registry.get_sample_value("siltstone_readoption_rejected_records_total")
    assert rejected == 0


def test_a_failover_during_a_recovery_does_not_change_the_order(world: World) -> None:
    """One agent has reported its later commit before the second failover, the other one reports after it."""
    topic = world.catalog.topics.create("t", 1, {})
    first, second = world.agent(), world.agent()
    first.write(topic, 0)
    second.write(topic, _RECORDS)
    world.lose_commits()
    world.begin_epoch()
    recover_all([second], is_interrupted=True)
    world.begin_epoch()
    recover_all([second, first])
    assert world.log(topic) == [0, _RECORDS]
    assert {each.committed_epoch for each in world.catalog.lost_commits.list()} == {0}


def test_lost_files_of_two_histories_are_readopted_in_the_order_of_these(world: World) -> None:
    """An agent reports commits of the first history only after the second one was lost, too.

    By the offsets alone, each agent would be first in one of the partitions. The first clock is ahead.
    """
    p, q = (world.catalog.topics.create(name, 1, {}) for name in "pq")
    away, other = world.agent(-3_600_000), world.agent()
    world.agent().write(q, 0)  # this agent dies
    away.write(q, _RECORDS)
    away.write(p, 0)
    world.lose_commits()
    world.begin_epoch()
    recover_all([other])
    world.agent().write(p, 0)
    other.write(p, _RECORDS)
    other.write(q, 0)
    assert all(each.offsets for agent in (away, other) for each in agent.acknowledged.recent())
    world.lose_commits()
    world.begin_epoch()
    with capture_logs() as logs:
        recover_all([other, away])
    assert (world.log(p), world.log(q)) == ([0, _RECORDS], [_RECORDS, 0])
    assert not [each for each in logs if "contradict" in each["event"]]


def test_an_agent_that_reports_late_loses_no_acknowledged_record(world: World) -> None:
    """Its producer has moved to another agent, whose later batches are in the log already."""
    topic = world.catalog.topics.create("t", 1, {})
    late, other = world.agent(), world.agent()
    for number, agent in enumerate((other, late, late, other, other, other, other, other)):
        agent.write(topic, number * _RECORDS)
    late.write(topic, 2 * _RECORDS)  # its producer did not get the first response
    world.lose_commits()
    world.begin_epoch()
    recover_all([other])
    assert world.log(topic) == [each * _RECORDS for each in (0, 3, 4, 5, 6, 7)]
    recover_all([late])
    assert world.log(topic) == [each * _RECORDS for each in (0, 3, 4, 5, 6, 7, 1, 2)]
    assert late.readopted() == [3, 2 * _RECORDS]


@pytest.mark.parametrize("loses_first", [False, True])
def test_a_second_failover_loses_no_acknowledged_record(world: World, *, loses_first: bool) -> None:
    """It loses what the first one kept, or what was committed again after it."""
    topic = world.catalog.topics.create("t", 1, {})
    agents = [world.agent() for _ in range(2)]
    sessions = [agent.session_id for agent in agents]
    for number, agent in enumerate((*agents, *agents)):
        agent.write(topic, number * _RECORDS)
    if loses_first:
        world.lose_commits()
    world.begin_epoch()
    recover_all(agents)
    agents[0].write(topic, 4 * _RECORDS)
    world.lose_commits()
    world.execute(
        "UPDATE sessions SET state = 'active', unsettled = NULL, closed_ms = NULL",
        f"DELETE FROM sessions WHERE session_id = '{sessions[1]}'",
    )
    world.begin_epoch()
    recover_all(agents)
    assert world.log(topic) == [each * _RECORDS for each in range(5)]
    assert not list(world.catalog.lost_commits.unsettled_sessions())


def test_a_repeated_recovery_settles_no_session_of_which_the_agent_forgot_a_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog knows the oldest remembered commit then, because the first attempt committed it again."""
    monkeypatch.setattr(acknowledged_commits, "MAX_FILES", 1)
    agent = world.agent()
    session_id = agent.session_id
    topic = world.catalog.topics.create("t", 1, {})
    for number in range(2):
        agent.write(topic, number * _RECORDS)
    world.lose_commits()
    world.begin_epoch()
    with monkeypatch.context() as patch:
        patch.setattr(LossRecovery, "_count", Mock(side_effect=CatalogUnavailableError("no route to host")))
        with pytest.raises(ExceptionGroup):
            recover_all([agent])
    assert world.log(topic) == [_RECORDS]
    recover_all([agent])
    unsettled = {each.session_id for each in world.catalog.lost_commits.unsettled_sessions()}
    assert session_id in unsettled, "its first file is kept"


def test_records_that_the_log_has_already_are_not_counted_again(world: World) -> None:
    """The producer repeated its first batch at another agent, after the loss and before the recovery."""
    topic = world.catalog.topics.create("t", 1, {})
    agent = world.agent()
    for number in range(2):
        agent.write(topic, number * _RECORDS)
    world.lose_commits()
    world.begin_epoch()
    world.agent().write(topic, 0)
    with capture_logs() as logs:
        recover_all([agent])
    (state,) = world.catalog.topics.states([PartitionId(topic.topic_id, 0)])
    assert state.high_watermark == 2 * _RECORDS
    assert agent.readopted() == [2, _RECORDS]
    (lost,) = [each for each in logs if "lost commits" in each["event"]]
    assert (lost["files"], lost["records"]) == (2, 2 * _RECORDS)
    assert lost["first_object"] != lost["last_object"]
    assert lost["remedy"] == "the agent commits them again now"


def test_records_of_deleted_topics_are_not_counted(world: World) -> None:
    """Their sections are rejected when the file is committed again."""
    agent = world.agent()
    kept, topic = (world.catalog.topics.create(name, 1, {}) for name in ("kept", "deleted"))
    agent.write(kept, 0)
    agent.write(topic, 0)
    world.lose_commits()
    world.begin_epoch()
    world.catalog.topics.delete("deleted")
    with capture_logs() as logs:
        recover_all([agent])
    assert agent.readopted() == [2, _RECORDS]
    (error,) = [each for each in logs if "were rejected" in each["event"]]
    assert (error["log_level"], error["records"], error["partitions"]) == ("error", _RECORDS, 1)
    reason = "unknown_topic_or_partition: the topic was deleted, or lacks this partition"
    assert error["old_offsets_and_reasons"] == [(str(topic.topic_id), 0, 0, _RECORDS, reason)]
    rejected = agent.metrics.registry.get_sample_value("siltstone_readoption_rejected_records_total")
    assert rejected == _RECORDS


def test_topics_that_were_created_in_the_lost_history_are_created_again(world: World) -> None:
    """Their records would be rejected otherwise, although producers have the acknowledgements."""
    agents = [world.agent() for _ in range(2)]
    topic = world.catalog.topics.create("t", 2, {"cleanup.policy": "compact"})
    for number, agent in enumerate(agents):
        agent.write(topic, number * _RECORDS)
    world.lose_commits_and_topics()
    world.begin_epoch()
    with capture_logs() as logs:
        recover_all(agents)
    again = world.catalog.topics.get("t")
    assert (again.topic_id, again.partition_count) == (topic.topic_id, 2)
    assert again.config == topic.config
    assert [state.high_watermark for state in world.catalog.topics.partitions(topic.topic_id)] == [
        2 * _RECORDS,
        0,
    ]
    created = [each for each in logs if each["event"].startswith("a topic")]
    assert {(each["log_level"], each["topic"], each["partitions"]) for each in created} == {
        ("warning", "t", 2)
    }


def test_partitions_that_were_added_in_the_lost_history_are_added_again(world: World) -> None:
    agent = world.agent()
    world.catalog.topics.create("t", 1, {})
    agent.write(world.catalog.topics.add_partitions("t", 3), 0)
    world.lose_commits()
    world.execute("DELETE FROM partitions WHERE partition > 0", "UPDATE topics SET partition_count = 1")
    world.begin_epoch()
    with capture_logs() as logs:
        recover_all([agent])
    (added,) = [each for each in logs if each["event"].startswith("partitions")]
    assert (added["log_level"], added["name"], added["partitions"]) == ("warning", "t", 3)
    assert world.catalog.topics.get("t").partition_count == 3
    assert len(world.catalog.topics.partitions(world.catalog.topics.get("t").topic_id)) == 3


def test_a_lost_topic_whose_name_is_taken_is_created_under_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent was away for longer than names are protected. It says who has the name, and what to do."""
    agent = world.agent()
    topic = world.catalog.topics.create("t.a", 1, {"cleanup.policy": "compact"})
    agent.write(topic, 0)
    world.lose_commits_and_topics()
    world.begin_epoch()
    monkeypatch.setattr(lost, "REPORT_PERIOD_MS", 0)
    other = world.catalog.topics.create("t_a", 1, {})
    with capture_logs() as logs:
        recover_all([agent])
    name = f"t.a-{topic.topic_id.hex[:8]}"
    assert world.names() == {"t_a": other.topic_id, name: topic.topic_id}
    assert world.catalog.topics.get(name).config == topic.config
    assert world.end(topic) == _RECORDS
    assert agent.readopted() == [1, _RECORDS]
    (logged,) = [each for each in logs if each["event"].startswith("a lost topic has another name")]
    assert (logged["log_level"], logged["topic"], logged["name"]) == ("error", "t.a", name)
    assert (logged["other_topic"], logged["other_topic_id"]) == ("t_a", str(other.topic_id))
    assert f"siltstone topics undelete {name} --as t.a" in logged["remedy"]


@pytest.mark.parametrize(
    "order", [[0], [0, 1], [1, 0]], ids=["one agent", "the older first", "the newer first"]
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_topic_that_was_deleted_and_created_again_keeps_its_name(
    world: World, order: list[int], *, at_once: bool
) -> None:
    """The deleted one comes back under another name, because its deletion was lost, too."""
    agents = [world.agent() for _ in order]
    older = world.catalog.topics.create("t", 1, {})
    agents[0].write(older, 0)
    world.catalog.topics.delete("t")
    world.tick()
    newer = world.catalog.topics.create("t", 1, {})
    agents[-1].write(newer, 0)
    agents[-1].write(newer, _RECORDS)
    world.lose_commits_and_topics()
    world.tick()
    world.begin_epoch()
    for recovering in [[agents[each] for each in order]] if at_once else [[agents[each]] for each in order]:
        recover_all(recovering)
    assert world.names() == {"t": newer.topic_id, f"t-{older.topic_id.hex[:8]}": older.topic_id}
    assert (world.end(older), world.end(newer)) == (_RECORDS, 2 * _RECORDS)


def test_another_name_is_reported_although_the_response_was_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent was interrupted after the restoration, or the call was repeated."""
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.lose_commits_and_topics()
    world.begin_epoch()
    monkeypatch.setattr(lost, "REPORT_PERIOD_MS", 0)
    world.catalog.topics.create("t", 1, {})
    world.catalog.topics.lost.restore([topic], world.catalog.incarnations.current().epoch)
    with capture_logs() as logs:
        recover_all([agent])
    names = [each["name"] for each in logs if each["event"].startswith("a lost topic has another name")]
    assert names == [f"t-{topic.topic_id.hex[:8]}"]
    assert world.end(topic) == _RECORDS


def test_a_topic_that_the_catalog_has_not_lost_keeps_its_name(world: World) -> None:
    """Its deletion was lost, and so was the creation of the newer one. Readers know its records."""
    agent = world.agent()
    older = world.catalog.topics.create("t", 1, {})
    agent.write(older, 0)
    world.tick()
    newer = replace(older, topic_id=world.ids.new_uuid(), created_ms=world.clock.now_ms())
    sealed = agent.upload(newer, 0)
    result = SectionResult(
        topic_id=newer.topic_id,
        partition=0,
        log_start_offset=0,
        high_watermark=_RECORDS,
        leader_epoch=0,
        runs=(RunResult(base_offset=0),),
        committed_ms=world.clock.now_ms(),
    )
    agent.acknowledged.committed(sealed, [result])
    world.tick()
    world.begin_epoch()
    recover_all([agent])
    assert world.names() == {"t": older.topic_id, f"t-{newer.topic_id.hex[:8]}": newer.topic_id}
    assert (world.end(older), world.end(newer)) == (_RECORDS, _RECORDS)


def test_a_repeated_restoration_changes_nothing(world: World) -> None:
    """The recovery may fail after each step; the names stay."""
    agent = world.agent()
    topics = []
    for _ in range(3):
        topics.append(world.catalog.topics.create("t", 1, {}))
        agent.write(topics[-1], 0)
        world.catalog.topics.delete("t")
        world.tick()
    world.lose_commits_and_topics()
    world.begin_epoch()
    epoch = world.catalog.incarnations.current().epoch
    world.catalog.topics.lost.restore(topics[:2], epoch)
    names = {}
    for _ in range(2):
        world.catalog.topics.lost.restore(topics, epoch)
        names = world.names()
    recover_all([agent])
    assert world.names() == names
    assert names["t"] == topics[2].topic_id
    assert [world.end(topic) for topic in topics] == [_RECORDS] * 3


@pytest.mark.parametrize("is_found", [True, False])
def test_an_unreadable_acknowledged_file_is_kept_and_tried_again(world: World, *, is_found: bool) -> None:
    """The bytes come back, or an operator deletes the object and gives the file up."""
    verify_binding(world.store, world.catalog.store_binding, world.ids)
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    (lost,) = agent.acknowledged.recent()
    sound = bytes(world.store.read_tail(lost.object_name, 10_000, purpose=Purpose.FSCK)[0])
    world.lose_commits()
    world.begin_epoch()

    def replace_object(body: bytes | bytearray) -> None:
        world.store.delete([lost.object_name], purpose=Purpose.FSCK)
        if body:
            world.store.put(lost.object_name, [body], purpose=Purpose.INGEST)

    replace_object(sound[:40] + b"?" + sound[41:])
    recover_all([agent])
    unsettled = world.catalog.lost_commits.unsettled_sessions
    assert [each.session_id for each in unsettled()] == [lost.session_id]
    for _ in range(2):
        (planned,) = readopt(world.catalog, world.store).files
        assert planned.outcome == "unreadable"
        done = readopt(world.catalog, world.store, apply=True)
        assert (done.counts, done.kept, done.settled_sessions) == ({"unreadable": 1}, 1, 0)
    replace_object(sound if is_found else b"")
    (planned,) = readopt(world.catalog, world.store).files
    assert planned.outcome == ("waiting" if is_found else "unreadable")
    world.execute("UPDATE sessions SET unsettled = NULL")  # as agents of the previous release do
    done = readopt(world.catalog, world.store, apply=True)
    assert (done.counts, done.kept) == ({"readopted" if is_found else "unreadable": 1}, 0)
    assert world.log(topic) == [0] * is_found
    assert not list(unsettled())
    assert not readopt(world.catalog, world.store).files
    (known,) = world.catalog.lost_commits.list()
    assert (known.detail is None) is is_found


def test_one_bad_response_of_the_store_makes_no_file_unreadable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.lose_commits()
    world.begin_epoch()
    read_range = world.store.read_range
    responses = iter([b"?" * 100])
    monkeypatch.setattr(
        world.store,
        "read_range",
        lambda *args, **kwargs: next(responses, None) or read_range(*args, **kwargs),
    )
    recover_all([agent])
    assert world.log(topic) == [0]


def test_no_client_takes_the_name_of_a_lost_topic(world: World) -> None:
    """Clients ask for it as soon as it is missing: before the loss is noticed, and before agents report."""
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.lose_commits_and_topics()
    with pytest.raises(CatalogUnavailableError, match="an acknowledged commit is unknown"):
        world.catalog.topics.create("t", 1, {})
    world.catalog.incarnations.ensure()
    with pytest.raises(CatalogUnavailableError, match="agents have not reported"):
        world.catalog.topics.create("t", 1, {})
    recover_all([agent])
    assert world.catalog.topics.get("t").topic_id == topic.topic_id
    world.catalog.topics.create("u", 1, {})


def test_a_deleted_topic_is_not_created_again(world: World) -> None:
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.lose_commits()
    world.begin_epoch()
    world.catalog.topics.delete("t")
    recover_all([agent])
    assert not world.catalog.topics.list()
    assert not world.catalog.topics.states([PartitionId(topic.topic_id, 0)])
    assert [each.topic.topic_id for each in world.catalog.topics.deleted.list()] == [topic.topic_id]


def test_a_topic_whose_undeletion_was_lost_is_undeleted_again(world: World) -> None:
    """The commits come after it: they would have survived with the deletion otherwise."""
    agents = [world.agent() for _ in range(2)]
    topic = world.catalog.topics.create("t", 1, {})
    for number, agent in enumerate(agents):
        agent.write(topic, number * _RECORDS)
    world.catalog.topics.delete("t")
    world.lose_commits()
    world.begin_epoch()
    with capture_logs() as logs:
        recover_all(agents)
    assert world.log(topic) == [0, _RECORDS]
    assert world.names() == {"t": topic.topic_id}
    (undeleted,) = [each for each in logs if "undeleted again" in each["event"]]
    assert (undeleted["log_level"], undeleted["topic"]) == ("warning", "t")
    assert not [each for each in logs if "were rejected" in each["event"]]


def test_a_file_of_a_topic_that_no_agent_remembers_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent says so. It commits its other files again, and the operator creates the topic."""
    verify_binding(world.store, world.catalog.store_binding, world.ids)
    agent = world.agent()
    topic, other = (world.catalog.topics.create(name, 1, {}) for name in "tu")
    agent.write(topic, 0)
    agent.write(other, 0)
    world.lose_commits_and_topics()
    world.begin_epoch()
    monkeypatch.setattr(agent.acknowledged, "_topics", {other.topic_id: other})
    with capture_logs() as logs:
        recover_all([agent])
    errors = {each["event"]: each for each in logs if each["log_level"] == "error"}
    forgotten = errors["the catalog has lost a topic that this agent does not remember"]
    assert forgotten["topic_id"] == str(topic.topic_id)
    command = f"siltstone topics create NAME --partitions 1 --id {topic.topic_id}"
    assert command in errors["a lost file is not committed again"]["reason"]
    assert [each.outcome for each in world.catalog.lost_commits.list()] == [None, "readopted"]
    monkeypatch.setattr(lost, "REPORT_PERIOD_MS", 0)
    world.catalog.topics.create("t", 1, {}, topic_id=topic.topic_id)
    assert readopt(world.catalog, world.store, apply=True).rejected == 0
    assert (world.end(topic), world.end(other)) == (_RECORDS, _RECORDS)


def test_records_of_deleted_topics_in_lost_files_are_reported(world: World) -> None:
    """Producers have their acknowledgements, so each rejection is an error; the deletion explains it."""
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.lose_commits()
    world.begin_epoch()
    world.catalog.topics.delete("t")
    with capture_logs() as logs:
        recover_all([agent])
    (deleted,) = [each for each in logs if "is deleted" in each["event"]]
    assert (deleted["log_level"], deleted["topic"]) == ("warning", "t")
    (rejected,) = [each for each in logs if "were rejected" in each["event"]]
    assert (rejected["log_level"], rejected["records"]) == ("error", 3)


def test_an_operator_creates_a_lost_topic_again_whose_agent_died(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dry run names its id, and with the topic no record is rejected."""
    verify_binding(world.store, world.catalog.store_binding, world.ids)
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.lose_commits_and_topics()
    world.begin_epoch()
    (planned,) = readopt(world.catalog, world.store).files
    (missing,) = planned.missing_topics
    assert missing.command == f"siltstone topics create NAME --partitions 1 --id {topic.topic_id}"
    monkeypatch.setattr(lost, "REPORT_PERIOD_MS", 0)  # agents that live have reported
    world.catalog.topics.create("t", 1, {}, topic_id=topic.topic_id)
    (planned,) = readopt(world.catalog, world.store).files
    assert planned.missing_topics == ()
    done = readopt(world.catalog, world.store, apply=True)
    assert (done.records, done.rejected) == (_RECORDS, 0)
