"""Recovery of agents after a loss: all reported files are in the log before an agent writes again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
from structlog.testing import capture_logs

from agent.runtime.metrics import AgentMetrics
from agent.runtime.work_pool import WorkPool
from agent.write.acknowledged_commits import AcknowledgedCommits
from agent.write.ingestion_buffer import IngestionBuffer
from agent.write.ingestion_file import seal
from agent.write.loss_recovery import LossRecovery
from agent.write.pending_append import PendingAppend
from agent.write.validation import validate
from catalog.model import PartitionId
from object_format.record_batch.records import encode_batch
from object_store.accounting import Purpose
from object_store.local.store import LocalStore

if TYPE_CHECKING:
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
        self.session_id = ids.new_uuid()
        self.incarnation = catalog.sessions.register(self.session_id, "a test")
        self.acknowledged = AcknowledgedCommits(clock)
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


def recover_alone(agent: Agent) -> None:
    """Let one agent recover."""

    async def recover() -> None:
        pool = WorkPool("catalog", threads=4, max_waiting=100)
        try:
            await agent.recover(pool)
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

    async def recover() -> None:
        pool = WorkPool("catalog", threads=4, max_waiting=100)
        try:
            async with asyncio.TaskGroup() as tasks:
                for agent in (second, first):
                    tasks.create_task(agent.recover(pool))
        finally:
            pool.close()

    asyncio.run(recover())
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
        recover_alone(agent)
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
    recover_alone(agent)
    assert agent.readopted() == [2, _RECORDS]
