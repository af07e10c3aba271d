"""Two agents that many tests share. Each test creates topics and groups with new names."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from catalog.open import Catalog, open_catalog
from core.clock import SystemClock
from core.ids import SeededIds
from object_store.local.store import LocalStore
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from spark_jobs.task.compaction_task import run_compaction
from tests.agent.faulty_store import FaultyStore
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.coordinators import NO_EXPIRY
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.agent.small_compaction import compact
from tests.catalog.scene import advance_log_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from catalog.model import Topic
    from object_format.record_batch.records import Record
    from tests.fixtures.postgres import PostgresForTests

_PLANNER = PlannerSettings(table_bytes=1 << 20, force=True)
# Sessions that are short, so that killed clients are removed soon, and survive the stalls of a busy machine.
_SETTINGS = {
    **NO_EXPIRY,
    "groups": replace(QUICK_GROUPS, group_consumer_session_timeout_ms=6000),
    "stop_timeout_ms": 5000,
}


class Agents:
    """Agents with one catalog and one object store."""

    def __init__(self, catalog: Catalog, store: FaultyStore) -> None:
        self.catalog = catalog
        self.store = store
        self._clock = SystemClock()
        self._ids = SeededIds(7, self._clock)
        self._names = count()
        self.running: list[BrokerThread] = []

    def add(self, **changes: object) -> BrokerThread:
        """Start an agent with changed settings, and return it when all agents list it."""
        settings = {**_SETTINGS, **changes}
        broker = BrokerThread(self.catalog, self.store, self._clock, self._ids, settings)
        self.running.append(broker)
        broker.start()
        self._wait_for_brokers()
        return broker

    def remove(self, broker: BrokerThread) -> None:
        """Stop an agent gracefully, and return when no agent lists it any more."""
        self.running.remove(broker)
        broker.stop()
        self._wait_for_brokers()

    def _wait_for_brokers(self) -> None:
        for each in self.running:
            groups = each.agent.kafka.groups
            assert groups is not None
            brokers = groups.ownership._brokers
            until(lambda each=each, b=brokers: len(each.run(b.live())) == len(self.running))  # type: ignore[misc]  # defaults bind them

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.running)

    def new_name(self) -> str:
        """Return a new name for a topic or a group."""
        return f"stratum-{next(self._names)}"

    def create_topic(self, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        name = self.new_name()
        self.catalog.topics.create(name, partitions, settings)
        return name

    def run_compaction(self) -> None:
        """Plan all compaction jobs and run them without Spark."""
        plan_and_submit(self.catalog, self._clock, self._ids, _PLANNER)
        for job in self.catalog.jobs.claim("cleaner", 100):
            assert job.attempt_id is not None
            result = run_compaction(
                job.spec, self.store, attempt_id=job.attempt_id, clock=self._clock, ids=self._ids
            )
            self.catalog.jobs.complete(result)

    def compact(self, name: str, keep: Callable[[Record], bool], partition: int = 0) -> None:
        """Replace all extents of a partition by one compacted file."""
        topic: Topic = self.catalog.topics.get(name)
        compact(self.catalog, self.store, self._ids, topic, partition=partition, keep=keep)

    def delete_before(self, name: str, offset: int) -> None:
        """Raise the log start offset of partition 0."""
        topic = self.catalog.topics.get(name)
        advance_log_start(self.catalog.retention, topic.topic_id, 0, offset)

    def stop(self) -> None:
        for broker in self.running:
            broker.stop()


@contextmanager
def two_agents(postgres: PostgresForTests, directory: Path) -> Iterator[Agents]:
    """Run two agents until the block ends."""
    clock = SystemClock()
    address = postgres.create()
    with ExitStack() as stack:
        stack.callback(postgres.drop, address)
        catalog = stack.enter_context(open_catalog(address, clock, SeededIds(3, clock)))
        store = FaultyStore(LocalStore(directory / "objects", SeededIds(4, clock)))
        agents = Agents(catalog, store)
        stack.callback(agents.stop)
        agents.add()
        agents.add()
        yield agents
