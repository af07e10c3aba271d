"""Recovery of agents after a loss: all reported files are in the log before an agent writes again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest
from structlog.testing import capture_logs

from agent.runtime.metrics import AgentMetrics
from agent.runtime.work_pool import WorkPool
from agent.write.acknowledged_commits import AcknowledgedCommits
from agent.write.ingestion_buffer import IngestionBuffer
from agent.write.ingestion_file import seal
from agent.write.loss_recovery import LossRecovery
from agent.write.pending_append import PendingAppend
from agent.write.validation import validate
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from catalog.topics import repository
from maintenance.readopt import readopt
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
        self._topics: dict[UUID, Topic] = {}
        self.session_id = ids.new_uuid()
        self.incarnation = catalog.sessions.register(self.session_id, "a test")
        self.acknowledged = AcknowledgedCommits(clock)
        self.acknowledged.topic_of = self._topics.get
        self.metrics = AgentMetrics()

    def upload(self, topic: Topic, sequence: int) -> SealedFile:
        """Upload a file with one batch of the only producer."""
        now_ms = self._clock.now_ms()
        values = [str(sequence + each).encode() for each in range(_RECORDS)]
        data = encode_batch([now_ms] * _RECORDS, values, values, producer=(5, 0, sequence))
        buffer = IngestionBuffer(1 << 20)
        buffer.add(validate(topic, 0, bytearray(data), now_ms=now_ms), PendingAppend(1), 0)
        late_id = self._ids.new_uuid().int - (self._late_ms << 80)
        sealed = seal(buffer.take(), file_id=UUID(int=late_id), session_id=self.session_id, created_ms=now_ms)
        self._store.put(sealed.object_name, sealed.body, purpose=Purpose.INGEST)
        return sealed

    def write(self, topic: Topic, sequence: int) -> None:
        """Write a file and acknowledge it."""
        self._topics[topic.topic_id] = topic
        sealed = self.upload(topic, sequence)
        self.acknowledged.committed(sealed, self._catalog.commits.commit(sealed.commit))

    async def recover(self, pool: WorkPool) -> None:
        """Do what the agent does before its next session writes."""
        recovery = LossRecovery(
            self._catalog,
            self._store,
            self.acknowledged,
            automatic=True,
            silent_ms=10_000,
            pool=pool,
            metrics=self.metrics,
        )
        sessions = [self.session_id]
        self.session_id = self._ids.new_uuid()
        incarnation = self._catalog.sessions.register(self.session_id, "again")
        await recovery.run(incarnation, sessions)

    def readopted(self) -> list[float | None]:
        """Return the counters of files and records that were committed again."""
        values = self.metrics.registry.get_sample_value
        return [values(f"siltstone_readopted_{unit}_total") for unit in ("files", "records")]


def recover_all(agents: Iterable[Agent]) -> None:
    """Let agents recover at once."""

    async def recover() -> None:
        pool = WorkPool("catalog", threads=4, max_waiting=100)
        try:
            async with asyncio.TaskGroup() as tasks:
                for agent in agents:
                    tasks.create_task(agent.recover(pool))
        finally:
            pool.close()

    asyncio.run(recover())


def lose_all_commits(catalog_url: str) -> None:
    """Remove every trace of the commits, as a failover does."""
    with psycopg.connect(catalog_url, autocommit=True, options="-c search_path=siltstone") as connection:
        connection.execute("DELETE FROM extents")
        connection.execute("DELETE FROM files")
        connection.execute("DELETE FROM commit_results")
        connection.execute("DELETE FROM producers")
        connection.execute(
            "UPDATE partitions SET log_end_offset = 0, high_watermark = 0, last_stable_offset = 0"
        )


def lose_topics(catalog_url: str) -> None:
    """Remove the topics as if they had not been created yet, also those that were deleted."""
    with psycopg.connect(catalog_url, autocommit=True, options="-c search_path=siltstone") as connection:
        for table in ("partitions", "deleted_partitions", "deleted_topics", "topics"):
            connection.execute(f"DELETE FROM {table}")


def test_files_of_a_producer_that_moved_between_agents_are_readopted_in_order(
    catalog: Catalog, catalog_url: str, clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    """The clock of the second agent is an hour late. No agent writes before all files are in the log."""
    store = LocalStore(tmp_path, ids)
    topic = catalog.topics.create("t", 1, {})
    first, second = (Agent(catalog, store, clock, ids, late_ms) for late_ms in (0, 3_600_000))
    for number, agent in enumerate((first, second, second, first, second)):
        agent.write(topic, number * _RECORDS)
    lose_all_commits(catalog_url)
    catalog.incarnations.declare_restore("a test")
    recover_all([second, first])
    (state,) = catalog.topics.states([PartitionId(topic.topic_id, 0)])
    assert state.high_watermark == 5 * _RECORDS
    assert {each.outcome for each in catalog.lost_commits.list()} == {"readopted"}
    for agent, sequence in ((second, 5), (first, 6)):
        sealed = agent.upload(topic, sequence * _RECORDS)
        (result,) = catalog.commits.commit(sealed.commit)
        assert result.runs[0].base_offset == sequence * _RECORDS


def test_records_that_the_log_has_already_are_not_counted_again(
    catalog: Catalog, catalog_url: str, clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    """The producer repeated its first batch at another agent, after the loss and before the recovery."""
    store = LocalStore(tmp_path, ids)
    topic = catalog.topics.create("t", 1, {})
    agent = Agent(catalog, store, clock, ids, 0)
    for number in range(2):
        agent.write(topic, number * _RECORDS)
    lose_all_commits(catalog_url)
    catalog.incarnations.declare_restore("a test")
    Agent(catalog, store, clock, ids, 0).write(topic, 0)
    with capture_logs() as logs:
        recover_all([agent])
    (state,) = catalog.topics.states([PartitionId(topic.topic_id, 0)])
    assert state.high_watermark == 2 * _RECORDS
    assert agent.readopted() == [2, _RECORDS]
    (lost,) = [each for each in logs if "lost commits" in each["event"]]
    assert (lost["files"], lost["records"]) == (2, 2 * _RECORDS)
    assert lost["first_object"] != lost["last_object"]
    assert lost["remedy"] == "the agent commits them again now"


def test_records_of_deleted_topics_are_not_counted(
    catalog: Catalog, catalog_url: str, clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    """Their sections are rejected when the file is committed again."""
    store = LocalStore(tmp_path, ids)
    agent = Agent(catalog, store, clock, ids, 0)
    for name in ("kept", "deleted"):
        agent.write(catalog.topics.create(name, 1, {}), 0)
    catalog.topics.delete("deleted")
    lose_all_commits(catalog_url)
    catalog.incarnations.declare_restore("a test")
    recover_all([agent])
    assert agent.readopted() == [2, _RECORDS]


def test_topics_that_were_created_in_the_lost_history_are_created_again(
    catalog: Catalog, catalog_url: str, clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    """Their records would be rejected otherwise, although producers have the acknowledgements."""
    store = LocalStore(tmp_path, ids)
    agents = [Agent(catalog, store, clock, ids, 0) for _ in range(2)]
    topic = catalog.topics.create("t", 2, {"cleanup.policy": "compact"})
    for number, agent in enumerate(agents):
        agent.write(topic, number * _RECORDS)
    lose_all_commits(catalog_url)
    lose_topics(catalog_url)
    catalog.incarnations.declare_restore("a test")
    with capture_logs() as logs:
        recover_all(agents)
    again = catalog.topics.get("t")
    assert (again.topic_id, again.partition_count) == (topic.topic_id, 2)
    assert again.config == topic.config
    assert [state.high_watermark for state in catalog.topics.partitions(topic.topic_id)] == [2 * _RECORDS, 0]
    created = [each for each in logs if each["event"].startswith("a topic")]
    assert {(each["log_level"], each["topic"], each["partitions"]) for each in created} == {
        ("warning", "t", 2)
    }


def test_partitions_that_were_added_in_the_lost_history_are_added_again(
    catalog: Catalog, catalog_url: str, clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path, ids)
    agent = Agent(catalog, store, clock, ids, 0)
    catalog.topics.create("t", 1, {})
    agent.write(catalog.topics.add_partitions("t", 3), 0)
    lose_all_commits(catalog_url)
    with psycopg.connect(catalog_url, autocommit=True, options="-c search_path=siltstone") as connection:
        connection.execute("DELETE FROM partitions WHERE partition > 0")
        connection.execute("UPDATE topics SET partition_count = 1")
    catalog.incarnations.declare_restore("a test")
    recover_all([agent])
    assert catalog.topics.get("t").partition_count == 3
    assert len(catalog.topics.partitions(catalog.topics.get("t").topic_id)) == 3


def test_a_lost_topic_whose_name_is_taken_is_reported(
    catalog: Catalog,
    catalog_url: str,
    clock: Clock,
    ids: Ids,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = LocalStore(tmp_path, ids)
    agent = Agent(catalog, store, clock, ids, 0)
    agent.write(catalog.topics.create("t", 1, {}), 0)
    lose_all_commits(catalog_url)
    lose_topics(catalog_url)
    catalog.incarnations.declare_restore("a test")
    monkeypatch.setattr(repository, "_RESTORE_MS", 0)  # an agent that was away for longer
    other = catalog.topics.create("t", 1, {})
    with capture_logs() as logs:
        recover_all([agent])
    assert catalog.topics.get("t").topic_id == other.topic_id
    assert [each["topic"] for each in logs if "cannot be created again" in each["event"]] == ["t"]
    assert agent.readopted() == [1, 0]


def test_no_client_takes_the_name_of_a_lost_topic(
    catalog: Catalog, catalog_url: str, clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    """Clients ask for it as soon as it is missing: before the loss is noticed, and before agents report."""
    store = LocalStore(tmp_path, ids)
    agent = Agent(catalog, store, clock, ids, 0)
    topic = catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    lose_all_commits(catalog_url)
    lose_topics(catalog_url)
    with pytest.raises(CatalogUnavailableError, match="an acknowledged commit is unknown"):
        catalog.topics.create("t", 1, {})
    catalog.incarnations.ensure()
    with pytest.raises(CatalogUnavailableError, match="agents have not reported"):
        catalog.topics.create("t", 1, {})
    recover_all([agent])
    assert catalog.topics.get("t").topic_id == topic.topic_id
    catalog.topics.create("u", 1, {})


def test_a_deleted_topic_is_not_created_again(
    catalog: Catalog, catalog_url: str, clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path, ids)
    agent = Agent(catalog, store, clock, ids, 0)
    topic = catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    catalog.topics.delete("t")
    lose_all_commits(catalog_url)
    catalog.incarnations.declare_restore("a test")
    recover_all([agent])
    assert not catalog.topics.list()
    assert not catalog.topics.states([PartitionId(topic.topic_id, 0)])
    assert [each.topic.topic_id for each in catalog.topics.deleted.list()] == [topic.topic_id]


def test_an_operator_creates_a_lost_topic_again_whose_agent_died(
    catalog: Catalog,
    catalog_url: str,
    clock: Clock,
    ids: Ids,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dry run names its id, and with the topic no record is rejected."""
    store = LocalStore(tmp_path, ids)
    verify_binding(store, catalog.store_binding, ids)
    agent = Agent(catalog, store, clock, ids, 0)
    topic = catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    lose_all_commits(catalog_url)
    lose_topics(catalog_url)
    catalog.incarnations.declare_restore("a test")
    (planned,) = readopt(catalog, store).files
    assert planned.unknown_topics == (topic.topic_id,)
    monkeypatch.setattr(repository, "_RESTORE_MS", 0)  # agents that live have reported
    catalog.topics.create("t", 1, {}, topic_id=topic.topic_id)
    (planned,) = readopt(catalog, store).files
    assert planned.unknown_topics == ()
    done = readopt(catalog, store, apply=True)
    assert (done.records, done.rejected) == (_RECORDS, 0)
